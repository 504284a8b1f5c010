"""SQL of the scheduler. All of it runs under the dispatch lock; nothing here decides."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from models.states import BEFORE_THE_GATE, LIVE_ATTEMPT_STATES, sql_list
from repositories.base import SqlRepository
from repositories.fair_share import NodeRoom
from repositories.nodes import TAKES_WORK

__all__ = ["Bell", "DispatchRepository", "SpareRow"]

_DISPATCH_LOCK = 0x5A4D_0002
_LIVE = f"state IN ({sql_list(LIVE_ATTEMPT_STATES)})"

# Without sorts, as far as there is another way: a plan that reads and sorts a tenant's whole queue, where
# trials_ready_idx gives its first trials in order, looks cheap by the statistics of a shallow queue. And a new plan
# each time, for the arrays at hand: the one for any arrays joins by nested loops, which took 20 times as long with
# 1,000 tenants.
_LOCK = """
SELECT pg_advisory_xact_lock(%(lock)s), set_config('enable_sort', 'off', true),
       set_config('enable_incremental_sort', 'off', true), set_config('plan_cache_mode', 'force_custom_plan', true),
       set_config('synchronous_commit',
                  CASE WHEN %(is_durable)s THEN current_setting('synchronous_commit') ELSE 'off' END, true)
"""

_NODES = f"""
WITH held AS (
  SELECT node_id, sum(slots)::int AS n, sum(cpu_millicores)::bigint AS cpu, sum(memory_bytes)::bigint AS memory,
         sum(gpu)::int AS gpu
  FROM attempts WHERE {_LIVE} GROUP BY node_id
)
SELECT n.id, n.runtimes, n.labels, n.images, n.slots, n.slots - coalesce(h.n, 0) AS free_slots,
       n.cpu_millicores, n.memory_bytes, n.gpu,
       n.cpu_millicores - coalesce(h.cpu, 0) AS free_cpu_millicores,
       n.memory_bytes - coalesce(h.memory, 0) AS free_memory_bytes,
       n.gpu - coalesce(h.gpu, 0) AS free_gpu,
       EXISTS (SELECT 1 FROM trials WHERE {BEFORE_THE_GATE}) AS has_capped
FROM nodes n LEFT JOIN held h ON h.node_id = n.id
WHERE {TAKES_WORK}
ORDER BY n.id
"""

_DISPATCH = """
WITH chosen AS (
  SELECT * FROM unnest(%(trials)s::uuid[], %(nodes)s::uuid[], %(attempts)s::uuid[]) AS c(trial_id, node_id, attempt_id)
), locked AS MATERIALIZED (
  -- By id, as everybody who locks several trials does: a cancel of the same batch then waits instead of deadlocking.
  SELECT id, state, desired FROM trials WHERE id = ANY(%(trials)s::uuid[]) ORDER BY id FOR UPDATE
), started AS (
  UPDATE trials t SET state = 'running', state_reason = NULL, fence = fence + 1, attempts_used = attempts_used + 1
  FROM chosen c JOIN locked l ON l.id = c.trial_id
  -- Not by the columns of t, for which there are indexes that look short: one was read from end to end instead.
  WHERE t.id = l.id AND l.state = 'queued' AND l.desired = 'run'
  RETURNING t.id, t.fence, t.tenant_id, t.attempts_used, t.queue, t.cpu_millicores, t.memory_bytes, t.gpu, t.slots,
            t.max_cpu_seconds, c.node_id, c.attempt_id
)
INSERT INTO attempts (trial_id, fence, id, number, tenant_id, node_id, queue, cpu_millicores, memory_bytes, gpu,
                      slots, reserved_cpu_seconds, start_deadline, last_rung_at)
SELECT s.id, s.fence, s.attempt_id, s.attempts_used, s.tenant_id, s.node_id, s.queue, s.cpu_millicores, s.memory_bytes,
       s.gpu, s.slots, CASE WHEN n.budget_cpu_seconds IS NOT NULL THEN s.max_cpu_seconds END,
       clock_timestamp() + make_interval(secs => %(claim_timeout)s), clock_timestamp()
FROM started s JOIN tenants n ON n.id = s.tenant_id
RETURNING trial_id, fence, node_id
"""

# Of tenants without pools for jobs, which are nearly all, this reads one entry of an index each.
_SPARES = """
SELECT s.node_id, s.runtime, p.tenant_id, p.spec, count(*)::int AS number
FROM sandbox_pools p JOIN sandbox_sessions s ON s.pool_id = p.id AND s.pool_revision = p.revision
WHERE p.tenant_id = ANY(%(tenants)s) AND p.spec ? 'job_workdir' AND s.is_warm AND s.state = 'Running'
  AND s.ended_at IS NULL
GROUP BY s.node_id, s.runtime, p.id
"""

_SPECS = """
SELECT t.id, j.spec FROM trials t JOIN jobs j ON j.id = t.job_id WHERE t.id = ANY(%(ids)s) AND j.kind = 'run'
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
UPDATE trials t SET state = CASE WHEN is_paused THEN 'paused' ELSE 'queued' END, state_reason = 'never_started',
                    attempts_used = attempts_used - 1,
                    queued_at = clock_timestamp()
FROM recalled r WHERE t.id = r.trial_id AND t.fence = r.fence AND t.state = 'running'
"""

_END_LAPSED_SESSIONS = """
UPDATE worker_sessions SET ended_at = clock_timestamp(), end_reason = 'lease_lapsed'
WHERE ended_at IS NULL AND lease_until + make_interval(secs => %(grace)s) < clock_timestamp()
RETURNING id, node_id
"""

_PURGE_KEYS = """
DELETE FROM idempotency WHERE (tenant_id, key) IN (
  SELECT tenant_id, key FROM idempotency WHERE expires_at < clock_timestamp() LIMIT 5000)
"""


@dataclass(frozen=True, slots=True)
class Bell:
    """What goes over the broker: which attempt waits on which node, and nothing else."""

    trial_id: UUID
    fence: int
    node_id: UUID


@dataclass(frozen=True, slots=True)
class SpareRow:
    """Free members of one pool for jobs on one node. spec: what they were made from."""

    node_id: UUID
    runtime: str
    tenant_id: int
    spec: dict[str, Any]
    number: int


class DispatchRepository(SqlRepository):
    """Statements that admit, place, ring, recall and reap."""

    def lock(self, *, is_durable: bool = True) -> None:
        """Wait for the dispatch lock, held until the end of the transaction.

        is_durable False: its commit does not wait for the disk. What is then done on the strength of it does, and the
        log is written in order; see docs/decisions/0029.

        Must be the first statement: the next one then takes a snapshot in which all of the previous holder's work
        is seen (READ COMMITTED). Lock and count in one statement would count from a snapshot older than the lock.
        """
        self._rows(_LOCK, {"lock": _DISPATCH_LOCK, "is_durable": is_durable})

    def nodes(self) -> list[NodeRoom]:
        """All nodes with a live session, with what is free on each."""
        return self.look()[0]

    def look(self) -> tuple[list[NodeRoom], bool]:
        """All nodes with a live session, with what is free on each; and whether trials wait for caps of their batches.

        In one statement: most ticks are about one trial, and each statement more is a tenth of such a tick.
        """
        rows = self._rows(_NODES)
        told = {row.pop("has_capped") for row in rows}
        nodes = [
            NodeRoom(**{**row, "runtimes": frozenset(row["runtimes"]), "images": frozenset(row["images"])})
            for row in rows
        ]
        return nodes, True in told

    def spares(self, tenants: Collection[int]) -> list[SpareRow]:
        """Free members for jobs of some tenants, by pool and node."""
        return [SpareRow(**row) for row in self._rows(_SPARES, {"tenants": list(tenants)})]

    def specs(self, trials: Collection[UUID]) -> dict[UUID, dict[str, Any]]:
        """What the jobs of some trials ask for; live sandboxes are left out."""
        return {row["id"]: row["spec"] for row in self._rows(_SPECS, {"ids": list(trials)})}

    def dispatch(
        self, placed: Sequence[tuple[UUID, UUID, UUID]], *, claim_timeout_seconds: float
    ) -> list[Bell]:
        """Start attempts. placed: (trial, node, new attempt id). Gives those that were still queued, in that order."""
        rows = self._rows(
            _DISPATCH,
            {
                "trials": [trial for trial, _, _ in placed],
                "nodes": [node for _, node, _ in placed],
                "attempts": [attempt for _, _, attempt in placed],
                "claim_timeout": claim_timeout_seconds,
            },
        )
        turn = {trial: number for number, (trial, _, _) in enumerate(placed)}
        return sorted((Bell(**row) for row in rows), key=lambda bell: turn[bell.trial_id])

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
