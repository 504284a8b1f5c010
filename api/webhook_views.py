"""From webhooks as services give them to what the wire shows."""

from typing import Any

from api.schemas.webhooks import WebhookDeliveryView, WebhookSecretView, WebhookView
from repositories.webhooks import DeliveryRow, EndpointRow
from services.webhooks import WebhookWithSecret

__all__ = ["to_delivery_view", "to_secret_view", "to_webhook_view"]


def to_webhook_view(row: EndpointRow) -> WebhookView:
    """Show a webhook."""
    return WebhookView.model_validate(_fields(row))


def to_secret_view(made: WebhookWithSecret) -> WebhookSecretView:
    """Show a webhook with its secret."""
    return WebhookSecretView.model_validate({**_fields(made.row), "secret": made.secret})


def to_delivery_view(row: DeliveryRow) -> WebhookDeliveryView:
    """Show a message."""
    return WebhookDeliveryView.model_validate(
        {
            "id": row.id,
            "webhook_id": row.endpoint_id,
            "url": row.url,
            "event": row.event,
            "subject_id": row.subject_id,
            "state": row.state,
            "tries": row.tries,
            "next_try_at": row.next_try_at if row.state == "pending" else None,
            "last_status": row.last_status,
            "last_error": row.last_error,
            "payload": row.payload,
            "created_at": row.created_at,
            "finished_at": row.finished_at,
        }
    )


def _fields(row: EndpointRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "name": row.name,
        "url": row.url,
        "events": row.events,
        "created_at": row.created_at,
        "disabled_at": row.disabled_at,
        "disabled_reason": row.disabled_reason,
    }
