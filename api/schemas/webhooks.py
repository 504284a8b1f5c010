"""Webhooks on the wire."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import AfterValidator, Field

from api.schemas.base import RequestSchema, ResponseSchema
from api.schemas.fields import ResourceName
from core.errors import InvalidRequestError
from core.outbound import parse_url
from services.webhook_events import WebhookEvent
from services.webhook_secrets import check_secret

__all__ = [
    "BatchWebhookRequest",
    "OnCompleteRequest",
    "WebhookDeliveryView",
    "WebhookRequest",
    "WebhookSecretRequest",
    "WebhookSecretView",
    "WebhookView",
]

EventName = Literal["trial.finished", "batch.finished"]
DeliveryState = Literal["pending", "delivered", "dead"]


def _check_url(text: str) -> str:
    try:
        parse_url(text, field="url")
    except InvalidRequestError as error:
        raise ValueError(error.message) from error
    return text


def _check_secret(text: str) -> str:
    try:
        check_secret(text)
    except InvalidRequestError as error:
        raise ValueError(error.message) from error
    return text


def _check_unique(events: list[EventName]) -> list[EventName]:
    if len(set(events)) != len(events):
        message = "names an event twice"
        raise ValueError(message)
    return events


WebhookUrl = Annotated[str, AfterValidator(_check_url)]
Secret = Annotated[
    str,
    Field(max_length=200),
    AfterValidator(_check_secret),
]
Events = Annotated[list[EventName], Field(max_length=len(WebhookEvent)), AfterValidator(_check_unique)]


class WebhookRequest(RequestSchema):
    """A receiver of the tenant's events.

    One without events is there for its secret, which batches name by `secret_ref`.
    """

    name: ResourceName
    url: WebhookUrl
    events: Events = Field(default=["batch.finished"])
    secret: Secret | None = Field(
        default=None,
        description="`whsec_` and 24 to 64 bytes as base64. Left out: one is made, and shown once.",
    )


class WebhookSecretRequest(RequestSchema):
    """The next secret. The one before also signs for a day."""

    secret: Secret | None = Field(default=None, description="Left out: one is made.")


class BatchWebhookRequest(RequestSchema):
    """A receiver of one batch's events."""

    url: WebhookUrl
    secret_ref: ResourceName = Field(description="Name of a webhook of the tenant, whose secret signs.")
    events: Annotated[Events, Field(min_length=1)] = Field(default=["batch.finished"])


class OnCompleteRequest(RequestSchema):
    """What happens when trials, or the batch, have ended."""

    webhook: BatchWebhookRequest


class WebhookView(ResponseSchema):
    """A receiver, without its secret."""

    id: UUID
    name: str
    url: str
    events: list[str]
    created_at: datetime
    disabled_at: datetime | None = Field(description="Since when nothing is sent any more.")
    disabled_reason: str | None


class WebhookSecretView(WebhookView):
    """A receiver with its secret, which is shown this once."""

    secret: str


class WebhookDeliveryView(ResponseSchema):
    """One message to one receiver."""

    id: UUID = Field(description="The header `webhook-id`: the same at every try.")
    webhook_id: UUID = Field(description="The webhook whose secret signs.")
    url: str
    event: str
    subject_id: UUID = Field(description="Of the trial or batch it tells of.")
    state: DeliveryState
    tries: int
    next_try_at: datetime | None = Field(description="Null once it is delivered or dead.")
    last_status: int | None = Field(description="Of the receiver's last answer.")
    last_error: str | None = Field(description="Why the last try failed.")
    payload: dict[str, Any]
    created_at: datetime
    finished_at: datetime | None
