"""SQL of the scheduler. All of it runs under the dispatch lock; nothing here decides."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from models.states import LIVE_ATTEMPT_STATES, sql_list
from repositories.base import SqlRepository
from repositories.nodes import TAKES_WORK

__all__ = ["Bell", "DispatchRepository", "NodeRoom", "QueuedTrial"]

_DISPATCH_LOCK = 0x5A4D_0002
_LIVE = f"state IN ({sql_list(LIVE_ATTEMPT_STATES)})"

_LOCK = "SELECT pg_advisory_xact_lock(%(lock)s)"

_NODES = f"""
WITH usage AS (
  SELECT node_id, count(*)::int AS n, sum(cpu_millicores)::bigint AS cpu, sum(memory_bytes)::bigint AS memory
  FROM attempts WHERE {_LIVE} GROUP BY node_id
)
SELECT n.id, n.runtimes, n.slots - coalesce(u.n, 0) AS free_slots,
       n.cpu_millicores, n.memory_bytes,
       n.cpu_millicores - coalesce(u.cpu, 0) AS free_cpu_millicores,
       n.memory_bytes - coalesce(u.memory, 0) AS free_memory_bytes
FROM nodes n LEFT JOIN usage u ON u.node_id = n.id
WHERE {TAKES_WORK}
ORDER BY n.id
"""

_PLACEABLE = """q.desired = 'run' AND EXISTS (
      SELECT 1 FROM shapes s
      WHERE s.runtime = q.runtime AND s.cpu >= q.cpu_millicores AND s.memory >= q.memory_bytes)"""

# Weighted dominant-resource fair share as progressive filling (queue-design 2.7): the cost follows tenants with work
# and free slots, not the depth of the queue.
_PICK = f"""
WITH RECURSIVE shapes AS MATERIALIZED (
  SELECT * FROM unnest(%(runtimes)s::text[], %(cpus)s::int[], %(memories)s::bigint[]) AS s(runtime, cpu, memory)
), active(tenant_id) AS (
  (SELECT tenant_id FROM trials WHERE state = 'queued' ORDER BY tenant_id LIMIT 1)
  UNION ALL
  SELECT (SELECT t.tenant_id FROM trials t WHERE t.state = 'queued' AND t.tenant_id > a.tenant_id
          ORDER BY t.tenant_id LIMIT 1)
  FROM active a WHERE a.tenant_id IS NOT NULL
), usage AS MATERIALIZED (
  SELECT tenant_id, count(*)::int AS n, sum(cpu_millicores)::bigint AS cpu, sum(memory_bytes)::bigint AS memory
  FROM attempts WHERE {_LIVE} GROUP BY tenant_id
), eligible AS MATERIALIZED (
  SELECT t.id AS tenant_id, t.weight, coalesce(u.cpu, 0) AS cpu, coalesce(u.memory, 0) AS memory,
         least(t.max_running - coalesce(u.n, 0), %(slots)s,
               greatest(4, 4 * %(slots)s / (SELECT count(*) FROM active)))::int AS room,
         greatest(coalesce(u.cpu, 0) / %(capacity_cpu)s::float8,
                  coalesce(u.memory, 0) / %(capacity_memory)s::float8) / t.weight AS share
  FROM active a JOIN tenants t ON t.id = a.tenant_id LEFT JOIN usage u ON u.tenant_id = t.id
  WHERE t.paused_at IS NULL AND t.max_running > coalesce(u.n, 0)
    -- Before the limit: a tenant with nothing that fits now must not stand in the place of one that has.
    AND EXISTS (SELECT 1 FROM trials q WHERE q.tenant_id = t.id AND q.state = 'queued' AND {_PLACEABLE})
  ORDER BY share, t.id LIMIT %(slots)s
), candidates AS (
  SELECT e.tenant_id, q.*, greatest(
      (e.cpu + coalesce(sum(q.cpu_millicores) OVER w, 0)) / %(capacity_cpu)s::float8,
      (e.memory + coalesce(sum(q.memory_bytes) OVER w, 0)) / %(capacity_memory)s::float8) / e.weight AS tag
  FROM eligible e CROSS JOIN LATERAL (
    SELECT q.id, q.priority, q.seq, q.runtime, q.cpu_millicores, q.memory_bytes FROM trials q
    WHERE q.tenant_id = e.tenant_id AND q.state = 'queued' AND {_PLACEABLE}
    ORDER BY q.priority DESC, q.seq LIMIT e.room) q
  WINDOW w AS (PARTITION BY e.tenant_id ORDER BY q.priority DESC, q.seq
               ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
)
SELECT id, runtime, cpu_millicores, memory_bytes FROM candidates ORDER BY tag, tenant_id, seq LIMIT %(slots)s
"""

_DISPATCH = """
WITH chosen AS (
  SELECT * FROM unnest(%(trials)s::uuid[], %(nodes)s::uuid[], %(attempts)s::uuid[]) AS c(trial_id, node_id, attempt_id)
), locked AS MATERIALIZED (
  -- By id, as everybody who locks several trials does: a cancel of the same batch then waits instead of deadlocking.
  SELECT id FROM trials WHERE id = ANY(%(trials)s::uuid[]) ORDER BY id FOR UPDATE
), started AS (
  UPDATE trials t SET state = 'running', state_reason = NULL, fence = fence + 1, attempts_used = attempts_used + 1
  FROM chosen c JOIN locked l ON l.id = c.trial_id
  WHERE t.id = c.trial_id AND t.state = 'queued' AND t.desired = 'run'
  RETURNING t.id, t.fence, t.tenant_id, t.attempts_used, t.cpu_millicores, t.memory_bytes, c.node_id, c.attempt_id
)
INSERT INTO attempts (trial_id, fence, id, number, tenant_id, node_id, cpu_millicores, memory_bytes,
                      start_deadline, last_rung_at)
SELECT id, fence, attempt_id, attempts_used, tenant_id, node_id, cpu_millicores, memory_bytes,
       clock_timestamp() + make_interval(secs => %(claim_timeout)s), clock_timestamp()
FROM started
RETURNING trial_id, fence, node_id
"""

_RING_AGAIN = """
UPDATE attempts SET last_rung_at = clock_timestamp()
WHERE state = 'dispatched' AND last_rung_at < clock_timestamp() - make_interval(secs => %(age)s)
  AND start_deadline > clock_timestamp()
RETURNING trial_id, fence, node_id
"""

# The trial keeps its seq, so it goes back to the head of its queue; no attempt is used up.
_RECALL = """
WITH recalled AS (
  UPDATE attempts SET state = 'never_started', finished_at = clock_timestamp()
  WHERE state = 'dispatched' AND start_deadline < clock_timestamp()
  RETURNING trial_id, fence
)
UPDATE trials t SET state = 'queued', state_reason = 'never_started', attempts_used = attempts_used - 1,
                    queued_at = clock_timestamp()
FROM recalled r WHERE t.id = r.trial_id AND t.fence = r.fence AND t.state = 'running'
"""

_END_LAPSED_SESSIONS = """
UPDATE worker_sessions SET ended_at = clock_timestamp(), end_reason = 'lease_lapsed'
WHERE ended_at IS NULL AND lease_until + make_interval(secs => %(grace)s) < clock_timestamp()
RETURNING id, node_id
"""

_FINISH_BATCHES = """
UPDATE batches b SET state = 'finished', finished_at = clock_timestamp()
WHERE b.state = 'running' AND NOT EXISTS (SELECT 1 FROM trials t WHERE t.batch_id = b.id AND t.state <> 'finished')
"""


_PURGE_KEYS = """
DELETE FROM idempotency WHERE (tenant_id, key) IN (
  SELECT tenant_id, key FROM idempotency WHERE expires_at < clock_timestamp() LIMIT 5000)
"""


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """A node that takes work, and what is free on it."""

    id: UUID
    runtimes: frozenset[str]
    free_slots: int
    cpu_millicores: int
    memory_bytes: int
    free_cpu_millicores: int
    free_memory_bytes: int


@dataclass(frozen=True, slots=True)
class QueuedTrial:
    """A trial whose turn it is."""

    id: UUID
    runtime: str
    cpu_millicores: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Bell:
    """What goes over the broker: which attempt waits on which node, and nothing else."""

    trial_id: UUID
    fence: int
    node_id: UUID


class DispatchRepository(SqlRepository):
    """Statements that admit, place, ring, recall and reap."""

    def lock(self) -> None:
        """Wait for the dispatch lock, held until the end of the transaction.

        Must be the first statement: the next one then takes a snapshot in which all of the previous holder's work
        is seen (READ COMMITTED). Lock and count in one statement would count from a snapshot older than the lock.
        """
        self._connection.exec_driver_sql(_LOCK, {"lock": _DISPATCH_LOCK})

    def nodes(self) -> list[NodeRoom]:
        """All nodes with a live session, with what is free on each."""
        return [NodeRoom(**{**row, "runtimes": frozenset(row["runtimes"])}) for row in self._rows(_NODES)]

    def pick(self, nodes: Sequence[NodeRoom], *, slots: int) -> list[QueuedTrial]:
        """Choose at most `slots` trials by fair share, of those that fit on at least one node."""
        shapes = _shapes(nodes)
        rows = self._rows(
            _PICK,
            {
                "slots": slots,
                "capacity_cpu": sum(node.cpu_millicores for node in nodes),
                "capacity_memory": sum(node.memory_bytes for node in nodes),
                "runtimes": [runtime for runtime, _, _ in shapes],
                "cpus": [cpu for _, cpu, _ in shapes],
                "memories": [memory for _, _, memory in shapes],
            },
        )
        return [QueuedTrial(**row) for row in rows]

    def dispatch(
        self, placed: Sequence[tuple[UUID, UUID, UUID]], *, claim_timeout_seconds: float
    ) -> list[Bell]:
        """Start attempts. placed: (trial, node, new attempt id). Gives those that were still queued."""
        rows = self._rows(
            _DISPATCH,
            {
                "trials": [trial for trial, _, _ in placed],
                "nodes": [node for _, node, _ in placed],
                "attempts": [attempt for _, _, attempt in placed],
                "claim_timeout": claim_timeout_seconds,
            },
        )
        return [Bell(**row) for row in rows]

    def ring_again(self, *, age_seconds: float) -> list[Bell]:
        """Bells that nobody answered for so long."""
        return [Bell(**row) for row in self._rows(_RING_AGAIN, {"age": age_seconds})]

    def recall_unclaimed(self) -> int:
        """Put trials back whose attempt nobody claimed in time."""
        return self._count(_RECALL)

    def end_lapsed_sessions(self, *, grace_seconds: float) -> int:
        """End sessions whose lease ran out so long ago; gives how many."""
        return self._count(_END_LAPSED_SESSIONS, {"grace": grace_seconds})

    def purge_idempotency_keys(self) -> int:
        """Delete keys past their time, some thousand at most; gives how many."""
        return self._count(_PURGE_KEYS)

    def finish_batches(self) -> int:
        """Close batches whose last trial is finished."""
        return self._count(_FINISH_BATCHES)


def _shapes(nodes: Sequence[NodeRoom]) -> list[tuple[str, int, int]]:
    """Give (runtime, free cpu, free memory) of the nodes, without those that another covers in both."""
    shapes = sorted(
        {(name, n.free_cpu_millicores, n.free_memory_bytes) for n in nodes for name in n.runtimes},
        reverse=True,
    )
    kept: list[tuple[str, int, int]] = []
    for runtime, cpu, memory in shapes:
        # Sorted by cpu downwards within a runtime: only more memory than all before makes a shape of its own.
        if not kept or kept[-1][0] != runtime or memory > kept[-1][2]:
            kept.append((runtime, cpu, memory))
    return kept
