"""SQL of tenants and their keys: the only repository that is not bound to a tenant."""

from dataclasses import dataclass
from uuid import UUID

from core.ids import new_id
from models.states import LIVE_ATTEMPT_STATES, sql_list
from repositories.base import SqlRepository

__all__ = ["KeyRow", "QueueRoomRow", "TenantRepository"]

_LIVE = f"state IN ({sql_list(LIVE_ATTEMPT_STATES)})"

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

# Not the tenant's row: changes of its limits, and its references, have to wait for nobody.
_LOCK_QUEUE = "SELECT pg_advisory_xact_lock(hashtextextended('sandmill.queue', %(tenant_id)s))"

# What runs may come back to wait, so it counts as well: then only submissions make it more. The lock is taken before
# the row is changed, and the row is looked at again if somebody has changed it meanwhile. Where it does not fit, the
# lock may not have been taken.
_FITS_SURELY = f"""
WITH locked AS MATERIALIZED ({_LOCK_QUEUE})
UPDATE queue_bounds b SET at_most = b.at_most + %(trials)s
FROM tenants t, locked WHERE t.id = %(tenant_id)s AND b.tenant_id = t.id AND b.at_most + %(trials)s <= t.max_queued
RETURNING b.at_most
"""

_MAY_FIT_SURELY = """
SELECT 1 FROM queue_bounds b JOIN tenants t ON t.id = b.tenant_id
WHERE t.id = %(tenant_id)s AND b.at_most + %(trials)s <= t.max_queued
"""

_SET_BOUND = """
INSERT INTO queue_bounds (tenant_id, at_most) VALUES (%(tenant_id)s, %(at_most)s)
ON CONFLICT (tenant_id) DO UPDATE SET at_most = excluded.at_most
"""

_QUEUE_ROOM = f"""
SELECT t.max_queued, (SELECT count(*) FROM attempts a WHERE a.tenant_id = t.id AND a.{_LIVE}) AS running,
 t.max_queued - (
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


@dataclass(frozen=True, slots=True)
class QueueRoomRow:
    """room: how many more may wait; negative: too many do. running: attempts whose trials may come back to wait."""

    max_queued: int
    running: int
    room: int


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

    def queue_room(self, tenant_id: int) -> QueueRoomRow:
        """Count how many more trials of this tenant may wait, for whatever reason: walks through all that do."""
        row = self._row(_QUEUE_ROOM, {"tenant_id": tenant_id})
        return QueueRoomRow(0, 0, 0) if row is None else QueueRoomRow(**row)

    def fit_surely(self, tenant_id: int, trials: int) -> bool:
        """Say whether so many more certainly fit, without counting what waits."""
        return self._row(_MAY_FIT_SURELY, {"tenant_id": tenant_id, "trials": trials}) is not None

    def add_to_bound(self, tenant_id: int, trials: int) -> bool:
        """Note so many more if they certainly fit; then nobody else counts the queue until the transaction ends."""
        return self._row(_FITS_SURELY, {"tenant_id": tenant_id, "trials": trials}) is not None

    def set_bound(self, tenant_id: int, at_most: int) -> None:
        """Note how many wait at most. Needs the lock of the queue, from before they were counted."""
        self._count(_SET_BOUND, {"tenant_id": tenant_id, "at_most": at_most})

    def lock_queue(self, tenant_id: int) -> None:
        """Let nobody else count this tenant's queue until the end of the transaction."""
        self._rows(_LOCK_QUEUE, {"tenant_id": tenant_id})
