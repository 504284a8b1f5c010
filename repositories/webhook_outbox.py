"""SQL of the sender of webhooks: take what is due, write down what became of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from repositories.base import SqlRepository

__all__ = ["DueDelivery", "WebhookOutboxRepository"]

# A loose index scan over the receivers that have something pending, then a few of each: a receiver with a million
# messages costs as much as one with ten, and none stands in the way of another. What is claimed is due again after a
# while, so that nothing is lost with a sender that dies.
_CLAIM = """
WITH RECURSIVE targets(target) AS (
  (SELECT target FROM webhook_deliveries WHERE state = 'pending' ORDER BY target LIMIT 1)
  UNION ALL
  SELECT (SELECT d.target FROM webhook_deliveries d WHERE d.state = 'pending' AND d.target > t.target
          ORDER BY d.target LIMIT 1)
  FROM targets t WHERE t.target IS NOT NULL
), busy AS (
  SELECT target, count(*)::int AS n FROM unnest(%(busy_targets)s::text[]) AS b(target) GROUP BY target
), busy_tenants AS (
  SELECT tenant_id, count(*)::int AS n FROM unnest(%(busy_tenants)s::bigint[]) AS b(tenant_id) GROUP BY tenant_id
), due AS (
  SELECT d.id, d.tenant_id, d.next_try_at, row_number() OVER (PARTITION BY d.tenant_id ORDER BY d.next_try_at) AS place
  FROM targets t LEFT JOIN busy b ON b.target = t.target CROSS JOIN LATERAL (
    SELECT d.id, d.tenant_id, d.next_try_at FROM webhook_deliveries d
    WHERE d.state = 'pending' AND d.target = t.target AND d.next_try_at <= clock_timestamp()
      AND NOT d.id = ANY(%(in_flight)s::uuid[])
    ORDER BY d.next_try_at LIMIT greatest(0, %(per_target)s - coalesce(b.n, 0))) d
), chosen AS (
  SELECT d.id FROM due d LEFT JOIN busy_tenants b ON b.tenant_id = d.tenant_id
  WHERE d.place + coalesce(b.n, 0) <= %(per_tenant)s ORDER BY d.next_try_at LIMIT %(limit)s
), locked AS MATERIALIZED (
  -- Another sender may have taken it since the look above: then it is locked, or not due any more.
  SELECT id FROM webhook_deliveries
  WHERE id IN (SELECT id FROM chosen) AND state = 'pending' AND next_try_at <= clock_timestamp()
  FOR UPDATE SKIP LOCKED
)
UPDATE webhook_deliveries d SET
  -- One that was deleted while the message was being written: the delete has not seen it.
  state = CASE WHEN e.deleted_at IS NULL THEN d.state ELSE 'dead' END,
  finished_at = CASE WHEN e.deleted_at IS NOT NULL THEN clock_timestamp() END,
  last_error = CASE WHEN e.deleted_at IS NULL THEN d.last_error ELSE 'webhook deleted' END,
  tries = tries + CASE WHEN e.deleted_at IS NULL THEN 1 ELSE 0 END,
  next_try_at = clock_timestamp() + make_interval(secs => %(hold)s)
FROM locked l, webhook_endpoints e
WHERE d.id = l.id AND e.id = d.endpoint_id
RETURNING d.id, d.tenant_id, d.endpoint_id, d.target, coalesce(d.url, e.url) AS url, d.event, d.payload, d.tries,
  d.state = 'pending' AS is_wanted, e.secret,
  CASE WHEN e.previous_until > clock_timestamp() THEN e.previous_secret END AS previous_secret
"""

# tries: whoever claimed it later owns it.
_MINE = "id = %(id)s AND tries = %(tries)s AND state = 'pending'"

_DELIVERED = f"""
UPDATE webhook_deliveries SET state = 'delivered', finished_at = clock_timestamp(), last_status = %(status)s,
  last_error = NULL
WHERE {_MINE}
"""

_RETRY = f"""
UPDATE webhook_deliveries SET next_try_at = clock_timestamp() + make_interval(secs => %(seconds)s),
  last_status = %(status)s, last_error = %(error)s
WHERE {_MINE}
"""

_DEAD = f"""
UPDATE webhook_deliveries SET state = 'dead', finished_at = clock_timestamp(), last_status = %(status)s,
  last_error = %(error)s
WHERE {_MINE}
"""

# The receiver has said that it is gone: the endpoint and all that waits for it, or the batch's own receiver alone.
_DISABLE = """
WITH told AS (
  SELECT endpoint_id, url, target, payload -> 'data' ->> 'batch_id' AS batch_id
  FROM webhook_deliveries WHERE id = %(id)s
), off AS (
  UPDATE webhook_endpoints e SET disabled_at = clock_timestamp(), disabled_reason = %(reason)s
  FROM told t WHERE e.id = t.endpoint_id AND t.url IS NULL AND e.disabled_at IS NULL
), detached AS (
  DELETE FROM batch_webhooks w USING told t WHERE t.url IS NOT NULL AND w.batch_id = t.batch_id::uuid
)
UPDATE webhook_deliveries d SET state = 'dead', finished_at = clock_timestamp(), last_error = %(reason)s
FROM told t
WHERE d.state = 'pending' AND d.target = t.target AND d.endpoint_id = t.endpoint_id
  AND d.url IS NOT DISTINCT FROM t.url
"""


@dataclass(frozen=True, slots=True)
class DueDelivery:
    """A claimed message. tries: with this one. Secrets are sealed."""

    id: UUID
    tenant_id: int
    endpoint_id: UUID
    target: str
    url: str
    event: str
    payload: Mapping[str, Any]
    tries: int
    secret: bytes
    previous_secret: bytes | None


class WebhookOutboxRepository(SqlRepository):
    """Messages of all tenants."""

    def claim(
        self,
        *,
        in_flight: Sequence[DueDelivery],
        limit: int,
        per_target: int,
        per_tenant: int,
        hold_seconds: float,
    ) -> list[DueDelivery]:
        """Take what is due.

        in_flight: what this sender has under way already. limit: most to take. per_target, per_tenant: most that one
        receiver and one tenant have under way. hold_seconds: after so long it counts as not sent.
        """
        rows = self._rows(
            _CLAIM,
            {
                "in_flight": [d.id for d in in_flight],
                "busy_targets": [d.target for d in in_flight],
                "busy_tenants": [d.tenant_id for d in in_flight],
                "limit": limit,
                "per_target": per_target,
                "per_tenant": per_tenant,
                "hold": hold_seconds,
            },
        )
        return [DueDelivery(**row) for row in rows if row.pop("is_wanted")]

    def mark_delivered(self, delivery: DueDelivery, *, status: int) -> bool:
        """The receiver has it. False: somebody else has claimed it meanwhile."""
        return self._count(_DELIVERED, {"id": delivery.id, "tries": delivery.tries, "status": status}) == 1

    def retry(self, delivery: DueDelivery, *, seconds: float, status: int | None, error: str) -> bool:
        """Try again after so long."""
        parameters = {"id": delivery.id, "tries": delivery.tries, "status": status, "error": error}
        return self._count(_RETRY, {**parameters, "seconds": seconds}) == 1

    def give_up(self, delivery: DueDelivery, *, status: int | None, error: str) -> bool:
        """Keep it as a dead letter."""
        parameters = {"id": delivery.id, "tries": delivery.tries, "status": status, "error": error}
        return self._count(_DEAD, parameters) == 1

    def disable(self, delivery: DueDelivery, *, reason: str) -> None:
        """Send nothing more to the receiver of this message, and give up what waits for it."""
        self._count(_DISABLE, {"id": delivery.id, "reason": reason})
