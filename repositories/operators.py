"""SQL of operators: keys, nodes, named queues, and the record of what was changed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from models.states import LIVE_ATTEMPT_STATES, sql_list
from repositories.base import SqlRepository

__all__ = ["AdminEventRow", "AdminKeyRow", "LeaderRow", "NodeRow", "OperatorRepository", "QueueRow"]

_LIVE = f"state IN ({sql_list(LIVE_ATTEMPT_STATES)})"

_KEYS = """
SELECT k.id, k.name, k.prefix, k.role, t.name AS tenant, k.created_at, k.revoked_at
FROM api_keys k LEFT JOIN tenants t ON t.id = k.tenant_id
WHERE k.tenant_id IS NOT DISTINCT FROM %(tenant_id)s AND (%(before)s::uuid IS NULL OR k.id < %(before)s)
ORDER BY k.id DESC LIMIT %(limit)s
"""

_KEY = """
SELECT k.id, k.name, k.prefix, k.role, t.name AS tenant, k.created_at, k.revoked_at
FROM api_keys k LEFT JOIN tenants t ON t.id = k.tenant_id WHERE k.id = %(id)s
"""

_NEWEST_KEY = "SELECT id FROM api_keys WHERE key_hash = %(hash)s"

_REVOKE = """
UPDATE api_keys SET revoked_at = clock_timestamp() WHERE id = %(id)s AND revoked_at IS NULL
"""

# Counted by the partial index over live attempts: the cost follows what runs.
_NODES = f"""
WITH usage AS (
  SELECT node_id, count(*)::int AS n, sum(cpu_millicores)::bigint AS cpu, sum(memory_bytes)::bigint AS memory,
         sum(gpu)::int AS gpu
  FROM attempts WHERE {_LIVE} GROUP BY node_id
)
SELECT n.id, n.name, n.runtimes, n.labels, n.cpu_millicores, n.memory_bytes, n.gpu, n.slots, n.cordoned_at,
       n.drained_at, n.created_at, s.id AS session_id, s.version, s.created_at AS session_since, s.beat_at, s.canary_at,
       coalesce(s.lease_until > clock_timestamp(), false) AS is_live, coalesce(s.draining, false) AS is_stopping,
       coalesce(u.n, 0) AS running, coalesce(u.cpu, 0) AS used_cpu_millicores,
       coalesce(u.memory, 0) AS used_memory_bytes, coalesce(u.gpu, 0) AS used_gpu
FROM nodes n
LEFT JOIN worker_sessions s ON s.node_id = n.id AND s.ended_at IS NULL
LEFT JOIN usage u ON u.node_id = n.id
WHERE (%(id)s::uuid IS NULL OR n.id = %(id)s) AND (%(after)s::uuid IS NULL OR n.id > %(after)s)
ORDER BY n.id LIMIT %(limit)s
"""

_CORDON = """
UPDATE nodes SET cordoned_at = coalesce(cordoned_at, clock_timestamp()),
  drained_at = CASE WHEN %(drain)s THEN coalesce(drained_at, clock_timestamp()) ELSE drained_at END
WHERE id = %(id)s
"""

_UNCORDON = "UPDATE nodes SET cordoned_at = NULL, drained_at = NULL WHERE id = %(id)s"

_QUEUES = f"""
WITH running AS (
  SELECT queue, count(*)::int AS n FROM attempts WHERE {_LIVE} GROUP BY queue
)
SELECT q.name, q.max_running, q.paused_at, q.created_at, coalesce(r.n, 0) AS running
FROM queues q LEFT JOIN running r ON r.queue = q.name
WHERE (%(name)s::text IS NULL OR q.name = %(name)s) AND (%(after)s::text IS NULL OR q.name > %(after)s)
ORDER BY q.name LIMIT %(limit)s
"""

_PUT_QUEUE = """
INSERT INTO queues (name, max_running) VALUES (%(name)s, %(max_running)s)
ON CONFLICT (name) DO UPDATE SET max_running = excluded.max_running
"""

_PAUSE_QUEUE = """
UPDATE queues SET paused_at = CASE WHEN %(paused)s THEN coalesce(paused_at, clock_timestamp()) END
WHERE name = %(name)s
"""

_LEADER = "SELECT epoch, holder, since FROM leader WHERE name = 'scheduler'"

_RECORD = """
INSERT INTO admin_events (key_id, action, subject, detail)
VALUES (%(key_id)s, %(action)s, %(subject)s, %(detail)s)
"""

_EVENTS = """
SELECT id, at, key_id, action, subject, detail FROM admin_events
WHERE (%(subject)s::text IS NULL OR subject = %(subject)s) AND (%(before)s::bigint IS NULL OR id < %(before)s)
ORDER BY id DESC LIMIT %(limit)s
"""


@dataclass(frozen=True, slots=True)
class AdminKeyRow:
    """A key as operators see it: never its text or its hash. tenant: name; None for an operator's key."""

    id: UUID
    name: str
    prefix: str
    role: str
    tenant: str | None
    created_at: datetime
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node, the session that holds it if any, and what of it is in use."""

    id: UUID
    name: str
    runtimes: list[str]
    labels: dict[str, str]
    cpu_millicores: int
    memory_bytes: int
    gpu: int
    slots: int
    cordoned_at: datetime | None
    drained_at: datetime | None
    created_at: datetime
    session_id: UUID | None
    version: str | None
    session_since: datetime | None
    beat_at: datetime | None
    canary_at: datetime | None
    is_live: bool
    is_stopping: bool
    running: int
    used_cpu_millicores: int
    used_memory_bytes: int
    used_gpu: int


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A named queue that operators know by name."""

    name: str
    max_running: int | None
    paused_at: datetime | None
    created_at: datetime
    running: int


@dataclass(frozen=True, slots=True)
class AdminEventRow:
    """One change."""

    id: int
    at: datetime
    key_id: UUID
    action: str
    subject: str
    detail: dict[str, Any]


@dataclass(frozen=True, slots=True)
class LeaderRow:
    """The scheduler that began to lead last. holder: host and process."""

    epoch: int
    holder: str
    since: datetime


class OperatorRepository(SqlRepository):
    """Statements over all tenants: for operators only."""

    def keys(self, tenant_id: int | None, *, before: UUID | None, limit: int) -> list[AdminKeyRow]:
        """Newest first; None: operators' keys."""
        parameters = {"tenant_id": tenant_id, "before": before, "limit": limit}
        return [AdminKeyRow(**row) for row in self._rows(_KEYS, parameters)]

    def key(self, key_id: UUID) -> AdminKeyRow | None:
        """Look one up, whoever's."""
        row = self._row(_KEY, {"id": key_id})
        return None if row is None else AdminKeyRow(**row)

    def key_of_hash(self, key_hash: bytes) -> UUID | None:
        """Find the key that was just stored."""
        row = self._row(_NEWEST_KEY, {"hash": key_hash})
        return None if row is None else row["id"]

    def revoke(self, key_id: UUID) -> bool:
        """End a key, whoever's. False: it has ended already."""
        return self._count(_REVOKE, {"id": key_id}) == 1

    def nodes(
        self, *, node_id: UUID | None = None, after: UUID | None = None, limit: int = 1
    ) -> Sequence[NodeRow]:
        """All nodes by id, or one."""
        parameters = {"id": node_id, "after": after, "limit": limit}
        return [NodeRow(**row) for row in self._rows(_NODES, parameters)]

    def cordon(self, node_id: UUID, *, drain: bool) -> bool:
        """Give it nothing new; drain: and let it give back what runs. False: no such node."""
        return self._count(_CORDON, {"id": node_id, "drain": drain}) == 1

    def uncordon(self, node_id: UUID) -> bool:
        """Take work again. False: no such node."""
        return self._count(_UNCORDON, {"id": node_id}) == 1

    def queues(
        self, *, name: str | None = None, after: str | None = None, limit: int = 1
    ) -> Sequence[QueueRow]:
        """All named queues by name, or one."""
        parameters = {"name": name, "after": after, "limit": limit}
        return [QueueRow(**row) for row in self._rows(_QUEUES, parameters)]

    def put_queue(self, name: str, *, max_running: int | None) -> None:
        """Make it, or set its cap."""
        self._count(_PUT_QUEUE, {"name": name, "max_running": max_running})

    def pause_queue(self, name: str, *, paused: bool) -> bool:
        """Start nothing of it, or again. False: no such queue."""
        return self._count(_PAUSE_QUEUE, {"name": name, "paused": paused}) == 1

    def leader(self) -> LeaderRow | None:
        """The last leader; None when there never was one."""
        row = self._row(_LEADER)
        return None if row is None else LeaderRow(**row)

    def record(self, key_id: UUID, action: str, subject: str, detail: Mapping[str, Any]) -> None:
        """Keep what was done."""
        parameters = {"key_id": key_id, "action": action, "subject": subject, "detail": Jsonb(dict(detail))}
        self._count(_RECORD, parameters)

    def events(self, *, subject: str | None, before: int | None, limit: int) -> list[AdminEventRow]:
        """Newest first."""
        parameters = {"subject": subject, "before": before, "limit": limit}
        return [AdminEventRow(**row) for row in self._rows(_EVENTS, parameters)]
