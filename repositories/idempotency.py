"""SQL of Idempotency-Keys."""

from dataclasses import dataclass
from uuid import UUID

from repositories.tenant_base import TenantSqlRepository

__all__ = ["IdempotencyRepository", "UsedKey"]

# A key past its time is taken over as if it were new. A second client with the same key waits here for the first one's
# commit, and then sees its row.
_CLAIM = """
INSERT INTO idempotency (tenant_id, key, route, request_hash, resource_id, expires_at)
VALUES (%(tenant_id)s, %(key)s, %(route)s, %(hash)s, %(resource_id)s,
        clock_timestamp() + make_interval(secs => %(keep)s))
ON CONFLICT (tenant_id, key) DO UPDATE SET route = excluded.route, request_hash = excluded.request_hash,
  resource_id = excluded.resource_id, created_at = clock_timestamp(), expires_at = excluded.expires_at
WHERE idempotency.expires_at <= clock_timestamp()
"""

_FIND = """
SELECT route, request_hash, resource_id FROM idempotency WHERE tenant_id = %(tenant_id)s AND key = %(key)s
"""

_MOVE = """
UPDATE idempotency SET resource_id = %(resource_id)s WHERE tenant_id = %(tenant_id)s AND key = %(key)s
"""

_RELEASE = "DELETE FROM idempotency WHERE tenant_id = %(tenant_id)s AND key = %(key)s"


@dataclass(frozen=True, slots=True)
class UsedKey:
    """What a key was used for."""

    route: str
    request_hash: bytes
    resource_id: UUID


class IdempotencyRepository(TenantSqlRepository):
    """Keys of one tenant."""

    def claim(
        self, key: str, *, route: str, request_hash: bytes, resource_id: UUID, keep_seconds: float
    ) -> bool:
        """Take a key for a resource that this transaction is about to make. False: it is in use."""
        parameters = {
            "key": key,
            "route": route,
            "hash": request_hash,
            "resource_id": resource_id,
            "keep": keep_seconds,
        }
        return self._mine_count(_CLAIM, parameters) == 1

    def find(self, key: str) -> UsedKey | None:
        """Look up what a key was used for."""
        row = self._mine_or_none(_FIND, {"key": key})
        return None if row is None else UsedKey(**row)

    def move(self, key: str, resource_id: UUID) -> None:
        """Let a key stand for another resource."""
        self._mine_count(_MOVE, {"key": key, "resource_id": resource_id})

    def release(self, key: str) -> None:
        """Forget a key."""
        self._mine_count(_RELEASE, {"key": key})
