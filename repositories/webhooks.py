"""SQL of a tenant's webhooks and of what was sent to them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from repositories.tenant_base import TenantSqlRepository

__all__ = ["DeliveryRow", "EndpointRow", "WebhookRepository"]

_COLUMNS = "e.id, e.name, e.url, e.events, e.created_at, e.disabled_at, e.disabled_reason"
_MINE = "e.tenant_id = %(tenant_id)s AND e.deleted_at IS NULL"

_INSERT = """
INSERT INTO webhook_endpoints (id, tenant_id, name, url, target, events, secret)
VALUES (%(id)s, %(tenant_id)s, %(name)s, %(url)s, %(target)s, %(events)s, %(secret)s)
ON CONFLICT (tenant_id, name) WHERE deleted_at IS NULL DO NOTHING
"""

_COUNT = f"SELECT count(*)::int AS n FROM webhook_endpoints e WHERE {_MINE}"
_FIND = f"SELECT {_COLUMNS} FROM webhook_endpoints e WHERE {_MINE} AND e.id = %(id)s"
_FIND_NAME = f"SELECT {_COLUMNS} FROM webhook_endpoints e WHERE {_MINE} AND e.name = %(name)s"
_LIST = f"""
SELECT {_COLUMNS} FROM webhook_endpoints e
WHERE {_MINE} AND (%(after)s::uuid IS NULL OR e.id > %(after)s) ORDER BY e.id LIMIT %(limit)s
"""

_ROTATE = f"""
UPDATE webhook_endpoints e SET secret = %(secret)s, previous_secret = secret,
  previous_until = clock_timestamp() + make_interval(secs => %(overlap)s)
WHERE {_MINE} AND e.id = %(id)s
"""

_ENABLE = f"""
UPDATE webhook_endpoints e SET disabled_at = NULL, disabled_reason = NULL,
  enabled_at = CASE WHEN disabled_at IS NULL THEN enabled_at ELSE clock_timestamp() END
WHERE {_MINE} AND e.id = %(id)s
"""

# What waits is given up in the same statement: nothing is sent to a receiver that was deleted.
_DELETE = f"""
WITH gone AS (
  UPDATE webhook_endpoints e SET deleted_at = clock_timestamp() WHERE {_MINE} AND e.id = %(id)s RETURNING e.id
), given_up AS (
  UPDATE webhook_deliveries d SET state = 'dead', finished_at = clock_timestamp(), last_error = 'webhook deleted'
  FROM gone g WHERE d.endpoint_id = g.id AND d.state = 'pending'
)
SELECT id FROM gone
"""

_ATTACH = """
INSERT INTO batch_webhooks (batch_id, endpoint_id, url, target, events)
VALUES (%(batch_id)s, %(endpoint_id)s, %(url)s, %(target)s, %(events)s)
"""

_DELIVERY = """
d.id, d.endpoint_id, coalesce(d.url, e.url) AS url, d.event, d.subject_id, d.payload, d.state, d.tries, d.next_try_at,
d.last_status, d.last_error, d.created_at, d.finished_at
FROM webhook_deliveries d JOIN webhook_endpoints e ON e.id = d.endpoint_id
WHERE d.tenant_id = %(tenant_id)s
"""

_DELIVERIES = f"""
SELECT {_DELIVERY} AND (%(before)s::uuid IS NULL OR d.id < %(before)s)
  AND (%(state)s::text IS NULL OR d.state = %(state)s)
  AND (%(endpoint_id)s::uuid IS NULL OR d.endpoint_id = %(endpoint_id)s)
ORDER BY d.id DESC LIMIT %(limit)s
"""

_FIND_DELIVERY = f"SELECT {_DELIVERY} AND d.id = %(id)s"

_REDELIVER = """
UPDATE webhook_deliveries d SET state = 'pending', finished_at = NULL, tries = 0, next_try_at = clock_timestamp()
FROM webhook_endpoints e
WHERE d.tenant_id = %(tenant_id)s AND d.id = %(id)s AND d.state <> 'pending'
  AND e.id = d.endpoint_id AND e.deleted_at IS NULL AND e.disabled_at IS NULL
"""


@dataclass(frozen=True, slots=True)
class EndpointRow:
    """A webhook without its secrets."""

    id: UUID
    name: str
    url: str
    events: list[str]
    created_at: datetime
    disabled_at: datetime | None
    disabled_reason: str | None


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    """A message. url: where it goes, or went, by now."""

    id: UUID
    endpoint_id: UUID
    url: str
    event: str
    subject_id: UUID
    payload: dict[str, Any]
    state: str
    tries: int
    next_try_at: datetime
    last_status: int | None
    last_error: str | None
    created_at: datetime
    finished_at: datetime | None


class WebhookRepository(TenantSqlRepository):
    """Webhooks of one tenant."""

    def insert(
        self, endpoint_id: UUID, *, name: str, url: str, target: str, events: Sequence[str], secret: bytes
    ) -> bool:
        """Add one. secret: sealed. False: the name is taken."""
        parameters = {"id": endpoint_id, "name": name, "url": url, "target": target}
        return self._mine_count(_INSERT, {**parameters, "events": list(events), "secret": secret}) == 1

    def count(self) -> int:
        """How many there are."""
        return int(self._mine(_COUNT)[0]["n"])

    def find(self, endpoint_id: UUID) -> EndpointRow | None:
        """Look one up."""
        row = self._mine_or_none(_FIND, {"id": endpoint_id})
        return None if row is None else EndpointRow(**row)

    def find_by_name(self, name: str) -> EndpointRow | None:
        """Look one up."""
        row = self._mine_or_none(_FIND_NAME, {"name": name})
        return None if row is None else EndpointRow(**row)

    def page(self, *, after: UUID | None, limit: int) -> list[EndpointRow]:
        """Oldest first, after `after`."""
        return [EndpointRow(**row) for row in self._mine(_LIST, {"after": after, "limit": limit})]

    def rotate(self, endpoint_id: UUID, *, secret: bytes, overlap_seconds: float) -> bool:
        """Set the next secret, sealed; the present one also signs for so long. False: there is no such webhook."""
        parameters = {"id": endpoint_id, "secret": secret, "overlap": overlap_seconds}
        return self._mine_count(_ROTATE, parameters) == 1

    def enable(self, endpoint_id: UUID) -> bool:
        """Send to it again. False: there is no such webhook."""
        return self._mine_count(_ENABLE, {"id": endpoint_id}) == 1

    def delete(self, endpoint_id: UUID) -> bool:
        """Send nothing to it any more. False: there is no such webhook."""
        return self._mine_or_none(_DELETE, {"id": endpoint_id}) is not None

    def attach(
        self, batch_id: UUID, *, endpoint_id: UUID, url: str, target: str, events: Sequence[str]
    ) -> None:
        """Give this tenant's new batch a receiver of its own."""
        parameters = {"batch_id": batch_id, "endpoint_id": endpoint_id, "url": url, "target": target}
        self._count(_ATTACH, {**parameters, "events": list(events)})

    def page_deliveries(
        self, *, state: str | None, endpoint_id: UUID | None, before: UUID | None, limit: int
    ) -> list[DeliveryRow]:
        """Newest first, older than `before`."""
        parameters = {"state": state, "endpoint_id": endpoint_id, "before": before, "limit": limit}
        return [DeliveryRow(**row) for row in self._mine(_DELIVERIES, parameters)]

    def find_delivery(self, delivery_id: UUID) -> DeliveryRow | None:
        """Look one up."""
        row = self._mine_or_none(_FIND_DELIVERY, {"id": delivery_id})
        return None if row is None else DeliveryRow(**row)

    def redeliver(self, delivery_id: UUID) -> bool:
        """Send a delivered or dead one again. False: it is pending, or its webhook takes nothing."""
        return self._mine_count(_REDELIVER, {"id": delivery_id}) == 1
