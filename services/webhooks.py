"""Webhooks of a tenant: make, look, rotate the secret, delete; what was sent, and sending it again."""

from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection

from core.errors import ConflictError, NotFoundError, QuotaExceededError
from core.ids import new_id
from core.outbound import AddressGuard, UnresolvedError, parse_url
from core.sealing import SecretBox
from repositories.webhooks import DeliveryRow, EndpointRow, WebhookRepository
from services.webhook_events import WebhookEvent
from services.webhook_secrets import make_secret, seal_purpose

__all__ = ["NewWebhook", "WebhookService", "WebhookWithSecret", "check_receiver"]

MAX_WEBHOOKS = 100
_OVERLAP_SECONDS = 86400.0
"""How long the secret before a rotation also signs: time to bring the new one to the receiver."""


@dataclass(frozen=True, slots=True)
class NewWebhook:
    """A checked wish. secret: None: make one."""

    name: str
    url: str
    events: tuple[WebhookEvent, ...]
    secret: str | None = None


@dataclass(frozen=True, slots=True)
class WebhookWithSecret:
    """The one time a secret is shown."""

    row: EndpointRow
    secret: str


def check_receiver(guard: AddressGuard, url: str, *, field: str) -> None:
    """Refuse a URL that leads where nobody is called. Looks its name up, so not inside a transaction.

    A name that does not resolve now may do so later; it is looked up again at every delivery.
    Raises InvalidRequestError.
    """
    try:
        guard.resolve(parse_url(url, field=field), field=field)
    except UnresolvedError:
        return


class WebhookService:
    """Webhooks of one tenant, inside the caller's transaction."""

    def __init__(self, connection: Connection, tenant_id: int, *, box: SecretBox) -> None:
        """box: seals the secrets."""
        self._repository = WebhookRepository(connection, tenant_id)
        self._box = box

    def create(self, wanted: NewWebhook) -> WebhookWithSecret:
        """Add one; the caller has checked the receiver. Raises ConflictError, QuotaExceededError."""
        if self._repository.count() >= MAX_WEBHOOKS:
            raise QuotaExceededError(f"there are {MAX_WEBHOOKS} webhooks: delete one first")
        endpoint_id, secret = new_id(), wanted.secret or make_secret()
        added = self._repository.insert(
            endpoint_id,
            name=wanted.name,
            url=wanted.url,
            target=parse_url(wanted.url, field="url").origin,
            events=[event.value for event in wanted.events],
            secret=self._seal(endpoint_id, secret),
        )
        if not added:
            raise ConflictError(f"a webhook is named {wanted.name} already", field="name")
        return WebhookWithSecret(self.get(endpoint_id), secret)

    def get(self, endpoint_id: UUID) -> EndpointRow:
        """Look one up. Raises NotFoundError."""
        row = self._repository.find(endpoint_id)
        if row is None:
            raise NotFoundError("webhook", endpoint_id)
        return row

    def page(self, *, after: UUID | None, limit: int) -> list[EndpointRow]:
        """List them, oldest first."""
        return self._repository.page(after=after, limit=limit)

    def rotate(self, endpoint_id: UUID, secret: str | None) -> WebhookWithSecret:
        """Give it the next secret; for a day the one before signs, too. Raises NotFoundError."""
        row, text = self.get(endpoint_id), secret or make_secret()
        self._repository.rotate(
            endpoint_id, secret=self._seal(endpoint_id, text), overlap_seconds=_OVERLAP_SECONDS
        )
        return WebhookWithSecret(row, text)

    def enable(self, endpoint_id: UUID) -> EndpointRow:
        """Send to it again after its receiver was gone. Raises NotFoundError."""
        self.get(endpoint_id)
        self._repository.enable(endpoint_id)
        return self.get(endpoint_id)

    def delete(self, endpoint_id: UUID) -> None:
        """Send nothing to it any more, and give up what waits. Raises NotFoundError."""
        if not self._repository.delete(endpoint_id):
            raise NotFoundError("webhook", endpoint_id)

    def page_deliveries(
        self, *, state: str | None, endpoint_id: UUID | None, before: UUID | None, limit: int
    ) -> list[DeliveryRow]:
        """List what was sent and what waits, newest first."""
        return self._repository.page_deliveries(
            state=state, endpoint_id=endpoint_id, before=before, limit=limit
        )

    def get_delivery(self, delivery_id: UUID) -> DeliveryRow:
        """Look one up. Raises NotFoundError."""
        row = self._repository.find_delivery(delivery_id)
        if row is None:
            raise NotFoundError("webhook delivery", delivery_id)
        return row

    def redeliver(self, delivery_id: UUID) -> DeliveryRow:
        """Send one again under its id, with all its tries. Raises NotFoundError, ConflictError."""
        before = self.get_delivery(delivery_id)
        if before.state != "pending" and not self._repository.redeliver(delivery_id):
            raise ConflictError("its webhook was deleted or is disabled: nothing is sent to it")
        return self.get_delivery(delivery_id)

    def _seal(self, endpoint_id: UUID, secret: str) -> bytes:
        return self._box.seal(secret.encode(), purpose=seal_purpose(endpoint_id))
