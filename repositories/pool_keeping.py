"""SQL by which the scheduler keeps warm pools: who is there, who has to go. Pools of all tenants."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from models.states import READY
from repositories.base import SqlRepository
from repositories.pools import POOL_COLUMNS, PoolRow

__all__ = [
    "WARM_PRIORITY",
    "KeptPool",
    "MemberCounts",
    "PoolKeepingRepository",
    "QueuedMembers",
    "WaitingRow",
]

WARM_PRIORITY = -100
"""Of members that nobody has yet: what somebody waits for goes first."""

# One probe of two small indexes per pool. Members that were made together failed together, and count once; what runs,
# or is used, since a failure shows that the pool works again. What ended after it had run for a while says nothing of
# the next one: it is replaced at once.
_COUNTS = """
CROSS JOIN LATERAL (
  SELECT count(*)::int AS total,
    count(*) FILTER (WHERE NOT s.is_warm)::int AS allocated,
    count(*) FILTER (WHERE s.is_warm AND s.state = 'Running' AND s.pool_revision = p.revision)::int AS free,
    count(*) FILTER (WHERE s.is_warm AND s.state = 'Pending' AND s.pool_revision = p.revision)::int AS starting,
    count(*) FILTER (WHERE s.is_warm AND s.state IN ('Pending', 'Running') AND s.pool_revision <> p.revision)::int
      AS outdated,
    count(*) FILTER (WHERE s.is_warm AND s.state = 'Running' AND s.pool_revision = p.revision
      AND s.running_at < clock_timestamp() - make_interval(secs => %(max_age)s))::int AS aged,
    count(*) FILTER (WHERE s.is_warm AND s.state = 'Running' AND s.pool_revision = p.revision
      AND s.running_at < clock_timestamp() - make_interval(secs => 2 * %(max_age)s))::int AS overaged,
    max(s.running_at) FILTER (WHERE s.pool_revision = p.revision) AS running_at
  FROM sandbox_sessions s WHERE s.pool_id = p.id AND s.ended_at IS NULL
) c CROSS JOIN LATERAL (
  SELECT count(DISTINCT s.created_at)::int AS failed_tries,
    extract(epoch FROM clock_timestamp() - max(s.ended_at))::float8 AS failed_seconds_ago,
    (array_agg(coalesce(s.state_message, s.state_reason) ORDER BY s.ended_at DESC))[1] AS problem
  FROM sandbox_sessions s
  WHERE s.pool_id = p.id AND s.ended_at > greatest(c.running_at, p.updated_at, clock_timestamp() - interval '1 hour')
    AND s.is_warm AND s.state = 'Failed' AND s.pool_revision = p.revision
    AND (s.running_at IS NULL OR s.ended_at < s.running_at + interval '30 seconds')
) f
"""

_COUNTED = """
c.total, c.allocated, c.free, c.starting, c.outdated, c.aged, c.overaged, f.failed_tries, f.failed_seconds_ago,
f.problem
"""

_ALL = f"SELECT {POOL_COLUMNS}, {_COUNTED} FROM sandbox_pools p {_COUNTS} ORDER BY p.id"
_ONE = f"SELECT {_COUNTED} FROM sandbox_pools p {_COUNTS} WHERE p.id = %(id)s"
_LOCK = f"SELECT {POOL_COLUMNS} FROM sandbox_pools p WHERE p.id = %(id)s FOR UPDATE"

# The trials first, as nodes lock them that write about a start. Whoever takes a member at this moment has it: the row
# is looked at again.
_RETIRE = """
WITH old AS MATERIALIZED (
  SELECT s.trial_id FROM sandbox_sessions s JOIN trials t ON t.id = s.trial_id
  WHERE s.pool_id = %(id)s AND s.is_warm AND s.ended_at IS NULL AND s.state IN ('Pending', 'Running') AND {which}
  ORDER BY s.state = 'Running', s.running_at LIMIT %(limit)s FOR UPDATE OF t SKIP LOCKED
), moved AS (
  UPDATE sandbox_sessions s SET state = 'Stopping', state_reason = %(reason)s, state_at = clock_timestamp(),
    wish_no = wish_no + 1, end_reason = %(reason)s, ended_by = %(actor)s
  FROM old WHERE s.trial_id = old.trial_id AND s.is_warm AND s.ended_at IS NULL AND s.state IN ('Pending', 'Running')
  RETURNING s.trial_id
), happened AS (
  INSERT INTO sandbox_events (trial_id, actor, reason) SELECT trial_id, %(actor)s, %(reason)s FROM moved
)
SELECT trial_id FROM moved
"""

_AGED = "s.state = 'Running' AND s.running_at < clock_timestamp() - make_interval(secs => %(max_age)s)"
_RETIRE_ANY = _RETIRE.format(which="true")
_RETIRE_OUTDATED = _RETIRE.format(which="s.pool_revision <> %(revision)s")
_RETIRE_AGED = _RETIRE.format(which=_AGED)

# Such as somebody wrote about at the moment at which their pool was deleted.
_ORPHANS = """
SELECT DISTINCT s.pool_id FROM sandbox_sessions s
WHERE s.is_warm AND s.ended_at IS NULL AND s.state IN ('Pending', 'Running')
  AND NOT EXISTS (SELECT 1 FROM sandbox_pools p WHERE p.id = s.pool_id)
"""


_HEAD = """t.job_id, t.tenant_id, t.shape, t.priority, t.seq, t.runtime, t.queue, t.cpu_millicores, t.memory_bytes,
           t.gpu, t.node_labels"""
_FIRST = "ORDER BY t.tenant_id, t.shape, t.priority DESC, t.seq LIMIT 1"

# A loose scan of trials_ready_idx, as the dispatcher does for all tenants: however many trials wait. Members of pools
# wait behind all else, so that a head is one of them only where nothing else of its shape waits.
_WAITING = f"""
WITH RECURSIVE heads AS (
  (SELECT {_HEAD}, 1 AS k FROM trials t WHERE {READY} AND t.tenant_id = %(tenant_id)s {_FIRST})
  UNION ALL
  SELECT h.*, f.k + 1 FROM heads f CROSS JOIN LATERAL (
    SELECT {_HEAD} FROM trials t WHERE {READY} AND t.tenant_id = %(tenant_id)s AND t.shape > f.shape {_FIRST}) h
  WHERE f.k < 64
)
SELECT h.runtime, h.queue, h.cpu_millicores, h.memory_bytes, h.gpu, h.node_labels, j.kind, j.spec, (
  SELECT count(*)::int FROM (
    SELECT 1 FROM trials t WHERE {READY} AND t.tenant_id = h.tenant_id AND t.shape = h.shape
      AND t.priority > %(warm_priority)s LIMIT %(most)s) c) AS number
FROM heads h JOIN jobs j ON j.id = h.job_id
WHERE h.priority > %(warm_priority)s
ORDER BY h.priority DESC, h.seq
"""

_TENANTS_WAITING = f"""
SELECT w.tenant_id FROM unnest(%(tenants)s::bigint[]) AS w(tenant_id)
WHERE EXISTS (SELECT 1 FROM trials t WHERE {READY} AND t.tenant_id = w.tenant_id AND t.priority > %(warm_priority)s)
"""

_QUEUED = """
SELECT count(*)::int AS number, coalesce(sum(t.cpu_millicores), 0)::bigint AS cpu_millicores,
       coalesce(sum(t.memory_bytes), 0)::bigint AS memory_bytes, coalesce(sum(t.gpu), 0)::int AS gpu
FROM sandbox_pools p JOIN sandbox_sessions s ON s.pool_id = p.id AND s.is_warm AND s.ended_at IS NULL
JOIN trials t ON t.id = s.trial_id AND t.state = 'queued'
WHERE p.tenant_id = %(tenant_id)s
"""


# Live sandboxes, members among them, take no slots.
_IS_TAKING = """
SELECT EXISTS (
  SELECT 1 FROM attempts WHERE tenant_id = %(tenant_id)s AND state IN ('dispatched', 'starting') AND slots > 0
    AND sandbox_name IS NULL AND created_at > clock_timestamp() - make_interval(secs => %(within)s)) AS is_taking
"""


@dataclass(frozen=True, slots=True)
class WaitingRow:
    """Trials of one shape of a tenant that wait, members of pools left out. number: of them, or as many as were wanted.

    spec: of the first one's job.
    """

    runtime: str
    queue: str
    cpu_millicores: int
    memory_bytes: int
    gpu: int
    node_labels: dict[str, str]
    kind: str
    spec: dict[str, Any]
    number: int


@dataclass(frozen=True, slots=True)
class QueuedMembers:
    """Members of a tenant's pools that wait for a node, and what they will hold of its quotas."""

    number: int
    cpu_millicores: int
    memory_bytes: int
    gpu: int


@dataclass(frozen=True, slots=True)
class MemberCounts:
    """Members of a pool that have not ended. Those neither allocated, free, starting nor outdated are on their way out.

    free: run, of the newest template; aged: of these, longer than they may; overaged: twice as long.
    failed_tries: since one of them ran, the last of them so many seconds ago, with this problem.
    """

    total: int = 0
    allocated: int = 0
    free: int = 0
    starting: int = 0
    outdated: int = 0
    aged: int = 0
    overaged: int = 0
    failed_tries: int = 0
    failed_seconds_ago: float | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class KeptPool:
    """A pool with its members."""

    pool: PoolRow
    counts: MemberCounts


class PoolKeepingRepository(SqlRepository):
    """Members of pools of any tenant: the caller has checked whose they are."""

    def all(self, *, max_age_seconds: float) -> list[KeptPool]:
        """All pools with their members' numbers."""
        return [
            _to_kept(row, {name: row.pop(name) for name in MemberCounts.__slots__})
            for row in self._rows(_ALL, {"max_age": max_age_seconds})
        ]

    def tenants_waiting(self, tenants: Collection[int]) -> set[int]:
        """Say which of these tenants have trials that wait and are no members of pools."""
        parameters = {"tenants": list(tenants), "warm_priority": WARM_PRIORITY}
        return {row["tenant_id"] for row in self._rows(_TENANTS_WAITING, parameters)}

    def waiting(self, tenant_id: int, *, most: int) -> list[WaitingRow]:
        """What a tenant has waiting, by shape, in the order of their turn. most: of each shape, that are counted."""
        parameters = {"tenant_id": tenant_id, "warm_priority": WARM_PRIORITY, "most": most}
        return [WaitingRow(**row) for row in self._rows(_WAITING, parameters)]

    def is_taking(self, tenant_id: int, *, within_seconds: float) -> bool:
        """Whether an attempt of a job was placed so lately that it may be about to take a member."""
        parameters = {"tenant_id": tenant_id, "within": within_seconds}
        return bool(self._rows(_IS_TAKING, parameters)[0]["is_taking"])

    def queued(self, tenant_id: int) -> QueuedMembers:
        """Members that a tenant's pools have asked for and that no node has yet."""
        return QueuedMembers(**self._rows(_QUEUED, {"tenant_id": tenant_id})[0])

    def lock(self, pool_id: UUID) -> PoolRow | None:
        """Hold a pool against changes until the end of the transaction. None: it is gone."""
        row = self._row(_LOCK, {"id": pool_id})
        return None if row is None else PoolRow(**row)

    def counts(self, pool_id: UUID, *, max_age_seconds: float) -> MemberCounts:
        """Count the members of one pool. Under its lock none is added meanwhile."""
        row = self._row(_ONE, {"id": pool_id, "max_age": max_age_seconds})
        return MemberCounts() if row is None else MemberCounts(**row)

    def retire(self, pool_id: UUID, *, limit: int, reason: str, actor: str) -> list[UUID]:
        """Wish the end of free members, those that do not run yet first; gives which."""
        return self._retire(_RETIRE_ANY, id=pool_id, limit=limit, reason=reason, actor=actor)

    def retire_outdated(self, pool_id: UUID, *, revision: int, reason: str, actor: str) -> list[UUID]:
        """Wish the end of all members of older templates."""
        return self._retire(
            _RETIRE_OUTDATED, id=pool_id, revision=revision, limit=10_000, reason=reason, actor=actor
        )

    def retire_aged(
        self, pool_id: UUID, *, max_age_seconds: float, limit: int, reason: str, actor: str
    ) -> list[UUID]:
        """Wish the end of members that have waited for so long, the oldest first."""
        return self._retire(
            _RETIRE_AGED, id=pool_id, max_age=max_age_seconds, limit=limit, reason=reason, actor=actor
        )

    def without_pool(self) -> list[UUID]:
        """Ids of pools that are gone and have free members all the same."""
        return [row["pool_id"] for row in self._rows(_ORPHANS)]

    def _retire(self, sql: str, **parameters: object) -> list[UUID]:
        return [row["trial_id"] for row in self._rows(sql, parameters)]


def _to_kept(row: dict[str, object], counts: dict[str, object]) -> KeptPool:
    return KeptPool(PoolRow(**row), MemberCounts(**counts))  # type: ignore[arg-type] # columns as they are named
