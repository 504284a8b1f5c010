"""SQL of tenants and their keys: the only repository that is not bound to a tenant."""

from dataclasses import dataclass
from uuid import UUID

from core.ids import new_id
from repositories.base import SqlRepository

__all__ = ["KeyRow", "TenantRepository"]

_ENSURE = """
INSERT INTO tenants (name) VALUES (%(name)s) ON CONFLICT (name) DO NOTHING
"""

_FIND = "SELECT id FROM tenants WHERE name = %(name)s"

_ADD_KEY = """
INSERT INTO api_keys (id, tenant_id, role, name, prefix, key_hash)
VALUES (%(id)s, %(tenant_id)s, CASE WHEN %(tenant_id)s::bigint IS NULL THEN 'admin' ELSE 'tenant' END, %(name)s,
        %(prefix)s, %(hash)s)
ON CONFLICT (key_hash) DO NOTHING
"""

_KEYS = """
SELECT k.id AS key_id, k.tenant_id, k.key_hash FROM api_keys k
WHERE k.prefix = %(prefix)s AND k.revoked_at IS NULL
"""

_OWNER = "SELECT tenant_id FROM api_keys WHERE key_hash = %(hash)s AND revoked_at IS NULL"

_REVOKE = """
UPDATE api_keys SET revoked_at = clock_timestamp()
WHERE id = %(id)s AND tenant_id = %(tenant_id)s AND revoked_at IS NULL
"""

_QUEUE_ROOM = """
SELECT t.max_queued - (
  SELECT count(*) FROM (
    SELECT 1 FROM trials
    WHERE tenant_id + 0 = t.id AND state IN ('blocked', 'paused', 'queued', 'retry_wait')
    -- One more, so that too many are told from as many as may be.
    LIMIT t.max_queued + 1::bigint) q)
  -- Trials of large batches that have no row yet wait as much as the others.
  - (SELECT coalesce(sum(tail_count), 0) FROM jobs
     WHERE tenant_id = t.id AND tail_count > 0 AND tail_outcome IS NULL) AS room
FROM tenants t WHERE t.id = %(tenant_id)s
"""


# Not the tenant's row: changes of its limits, and its references, have to wait for nobody.
_LOCK_QUEUE = "SELECT pg_advisory_xact_lock(hashtextextended('sandmill.queue', %(tenant_id)s))"


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A key that is not revoked. tenant_id: None for an operator's. key_hash: SHA-256 of its text."""

    key_id: UUID
    tenant_id: int | None
    key_hash: bytes


class TenantRepository(SqlRepository):
    """Tenants by name, keys by prefix."""

    def ensure(self, name: str) -> int:
        """Give the id of the tenant of this name, made if missing."""
        self._count(_ENSURE, {"name": name})
        found = self.find(name)
        if found is None:
            message = f"tenant {name!r} vanished between two statements"
            raise LookupError(message)
        return found

    def find(self, name: str) -> int | None:
        """Give the id of the tenant of this name."""
        row = self._row(_FIND, {"name": name})
        return None if row is None else int(row["id"])

    def add_key(self, tenant_id: int | None, *, name: str, prefix: str, key_hash: bytes) -> bool:
        """Store a key, an operator's if there is no tenant. False: it is there already, whoever's, live or revoked."""
        parameters = {
            "id": new_id(),
            "tenant_id": tenant_id,
            "name": name,
            "prefix": prefix,
            "hash": key_hash,
        }
        return self._count(_ADD_KEY, parameters) == 1

    def keys(self, prefix: str) -> list[KeyRow]:
        """All live keys with this prefix: none, one, or by rare chance more."""
        return [KeyRow(**row) for row in self._rows(_KEYS, {"prefix": prefix})]

    def key_owner(self, key_hash: bytes) -> int | None:
        """Give the tenant of a live key."""
        row = self._row(_OWNER, {"hash": key_hash})
        return None if row is None else int(row["tenant_id"])

    def revoke_key(self, tenant_id: int, key_id: UUID) -> bool:
        """End a key. False: there is no such live key of this tenant."""
        return self._count(_REVOKE, {"id": key_id, "tenant_id": tenant_id}) == 1

    def queue_room(self, tenant_id: int) -> int:
        """How many more trials of this tenant may wait, for whatever reason; negative if too many do."""
        row = self._row(_QUEUE_ROOM, {"tenant_id": tenant_id})
        return 0 if row is None else int(row["room"])

    def lock_queue(self, tenant_id: int) -> None:
        """Let nobody else count this tenant's queue until the end of the transaction."""
        self._rows(_LOCK_QUEUE, {"tenant_id": tenant_id})
