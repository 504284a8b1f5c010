from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Response

from api.body import json_body, small_json_body
from api.cursors import CursorScope
from api.json_body import parse_json
from api.openapi_parts import json_request
from api.schemas.errors import error_responses
from api.schemas.pages import Cursor, Limit, Page
from api.schemas.webhooks import (
    DeliveryState,
    WebhookDeliveryView,
    WebhookRequest,
    WebhookSecretRequest,
    WebhookSecretView,
    WebhookView,
)
from api.services import Caller, Services
from api.validation import check_schema
from api.webhook_views import to_delivery_view, to_secret_view, to_webhook_view
from services.webhook_events import WebhookEvent
from services.webhooks import NewWebhook, check_receiver

__all__ = ["router"]

router = APIRouter(prefix="/v1", tags=["webhooks"])

_EXAMPLE = {"name": "ci", "url": "https://ci.example.org/hooks/sandmill", "events": ["batch.finished"]}


@router.post(
    "/webhooks",
    status_code=201,
    summary="Add a webhook",
    responses=error_responses(408, 409, 413, 415, 429),
    openapi_extra=json_request(WebhookRequest, _EXAMPLE),
)
def create_webhook(
    services: Services, caller: Caller, response: Response, body: Annotated[bytes, Depends(json_body)]
) -> WebhookSecretView:
    """Tell a receiver of what happens from now on. The answer shows the secret this once."""
    wanted = check_schema(WebhookRequest, parse_json(body))
    check_receiver(services.guard, wanted.url, field="url")
    new = NewWebhook(
        wanted.name, wanted.url, tuple(WebhookEvent(name) for name in wanted.events), wanted.secret
    )
    with services.engine.begin() as connection:
        made = services.webhooks(connection, caller).create(new)
    response.headers["Location"] = f"/v1/webhooks/{made.row.id}"
    return to_secret_view(made)


@router.get("/webhooks", summary="List webhooks", responses=error_responses())
def list_webhooks(
    services: Services, caller: Caller, limit: Limit = 50, cursor: Cursor = None
) -> Page[WebhookView]:
    """List the tenant's webhooks, oldest first."""
    scope = CursorScope("webhooks", caller.tenant_id)
    after = scope.decode_id(cursor)
    with services.engine.begin() as connection:
        found = services.webhooks(connection, caller).page(after=after, limit=limit)
    following = scope.encode_id(found[-1].id) if len(found) == limit else None
    return Page(items=[to_webhook_view(row) for row in found], next_cursor=following)


@router.get("/webhooks/{webhook_id}", summary="Look at a webhook", responses=error_responses(404))
def get_webhook(services: Services, caller: Caller, webhook_id: UUID) -> WebhookView:
    """Give it without its secret."""
    with services.engine.begin() as connection:
        return to_webhook_view(services.webhooks(connection, caller).get(webhook_id))


@router.delete(
    "/webhooks/{webhook_id}", status_code=204, summary="Delete a webhook", responses=error_responses(404)
)
def delete_webhook(services: Services, caller: Caller, webhook_id: UUID) -> None:
    """Send nothing to it any more. What waits for it is given up."""
    with services.engine.begin() as connection:
        services.webhooks(connection, caller).delete(webhook_id)


@router.post(
    "/webhooks/{webhook_id}/rotate",
    summary="Rotate the secret of a webhook",
    responses=error_responses(404, 413, 415),
    openapi_extra=json_request(WebhookSecretRequest, {}, required=False),
)
def rotate_webhook(
    services: Services, caller: Caller, webhook_id: UUID, body: Annotated[bytes, Depends(small_json_body)]
) -> WebhookSecretView:
    """Give it the next secret. For a day messages carry two signatures, by the new secret and by the one before."""
    wanted = check_schema(WebhookSecretRequest, parse_json(body))
    with services.engine.begin() as connection:
        return to_secret_view(services.webhooks(connection, caller).rotate(webhook_id, wanted.secret))


@router.post(
    "/webhooks/{webhook_id}/enable", summary="Enable a webhook again", responses=error_responses(404)
)
def enable_webhook(services: Services, caller: Caller, webhook_id: UUID) -> WebhookView:
    """Send to it again: a webhook is disabled when its receiver answers 410."""
    with services.engine.begin() as connection:
        return to_webhook_view(services.webhooks(connection, caller).enable(webhook_id))


@router.get("/webhook-deliveries", summary="List webhook deliveries", responses=error_responses())
def list_deliveries(
    *,
    services: Services,
    caller: Caller,
    state: Annotated[DeliveryState | None, Query(description="dead: nobody tries any more.")] = None,
    webhook_id: Annotated[UUID | None, Query(description="Only of this webhook.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[WebhookDeliveryView]:
    """List messages, newest first: what waits, what was delivered, and what was given up."""
    scope = CursorScope("webhook-deliveries", caller.tenant_id, state, webhook_id)
    before = scope.decode_id(cursor)
    with services.engine.begin() as connection:
        found = services.webhooks(connection, caller).page_deliveries(
            state=state, endpoint_id=webhook_id, before=before, limit=limit
        )
    following = scope.encode_id(found[-1].id) if len(found) == limit else None
    return Page(items=[to_delivery_view(row) for row in found], next_cursor=following)


@router.get(
    "/webhook-deliveries/{delivery_id}", summary="Look at a webhook delivery", responses=error_responses(404)
)
def get_delivery(services: Services, caller: Caller, delivery_id: UUID) -> WebhookDeliveryView:
    """Give one message, with what became of it."""
    with services.engine.begin() as connection:
        return to_delivery_view(services.webhooks(connection, caller).get_delivery(delivery_id))


@router.post(
    "/webhook-deliveries/{delivery_id}/redeliver",
    summary="Send a webhook again",
    responses=error_responses(404, 409),
)
def redeliver(services: Services, caller: Caller, delivery_id: UUID) -> WebhookDeliveryView:
    """Send a message again, under the same `webhook-id`. One that waits goes on waiting."""
    with services.engine.begin() as connection:
        return to_delivery_view(services.webhooks(connection, caller).redeliver(delivery_id))
