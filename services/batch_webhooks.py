"""The receiver of one batch's events."""

from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection

from core.errors import InvalidRequestError
from core.outbound import parse_url
from repositories.webhooks import EndpointRow, WebhookRepository
from services.webhook_events import WebhookEvent

__all__ = ["BatchWebhook", "BatchWebhookService"]

_FIELD = "on_complete.webhook"


@dataclass(frozen=True, slots=True)
class BatchWebhook:
    """secret_ref: name of a webhook of the tenant, whose secret signs."""

    url: str
    secret_ref: str
    events: tuple[WebhookEvent, ...]


class BatchWebhookService:
    """Receivers of a tenant's batches, inside the caller's transaction."""

    def __init__(self, connection: Connection, tenant_id: int) -> None:
        """Bind to one tenant."""
        self._repository = WebhookRepository(connection, tenant_id)

    def attach(self, batch_id: UUID, webhook: BatchWebhook) -> None:
        """Let a new batch tell of itself. Raises InvalidRequestError for a secret_ref that names no webhook."""
        endpoint = self.check(webhook)
        self._repository.attach(
            batch_id,
            endpoint_id=endpoint.id,
            url=webhook.url,
            target=parse_url(webhook.url, field=f"{_FIELD}.url").origin,
            events=[event.value for event in webhook.events],
        )

    def check(self, webhook: BatchWebhook) -> EndpointRow:
        """Find whose secret signs. Raises InvalidRequestError for a secret_ref that names no webhook."""
        endpoint = self._repository.find_by_name(webhook.secret_ref)
        if endpoint is None:
            raise InvalidRequestError(
                f"no webhook is named {webhook.secret_ref}: make one with POST /v1/webhooks",
                field=f"{_FIELD}.secret_ref",
            )
        return endpoint
