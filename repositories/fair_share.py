"""The one statement that says whose turn it is: weighted dominant-resource fair share within all quotas.

Runs under the dispatch lock, after it. What the words mean: `docs/scheduling.md`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from models.states import LIVE_ATTEMPT_STATES, READY, sql_list
from repositories.base import SqlRepository
from repositories.tenant_budgets import BUDGET_LEFT, TOKENS

__all__ = ["FairShareRepository", "NodeRoom", "PickLimits", "QueuedTrial", "Starving", "WaitingShape"]

_LIVE = f"state IN ({sql_list(LIVE_ATTEMPT_STATES)})"

_SHAPES_PER_TENANT = 64
"""Most shapes of one tenant that a tick looks at one by one. Of a tenant with more, a tick also takes as many from a
random place on, so that each has its turn, and nobody makes the ticks of all others slow."""

_NO_LIMIT = (1 << 62) - 1

_HEAD = """t.tenant_id, t.shape, t.id, t.priority, t.seq, t.queue, t.runtime, t.cpu_millicores, t.memory_bytes, t.gpu,
           t.node_labels, t.max_cpu_seconds, t.queued_at"""
_IN_ORDER = "ORDER BY t.tenant_id, t.shape, t.priority DESC, t.seq LIMIT 1"

# A loose scan of trials_ready_idx: one probe per tenant and shape, however many trials wait.
_HEADS = f"""
rooms AS MATERIALIZED (
  SELECT * FROM unnest(%(runtimes)s::text[], %(cpus)s::bigint[], %(memories)s::bigint[], %(gpus)s::int[],
                       %(labels)s::jsonb[]) AS r(runtime, cpu, memory, gpu, labels)
), first_heads AS (
  (SELECT {_HEAD}, 1 AS n FROM trials t WHERE {READY} {_IN_ORDER})
  UNION ALL
  SELECT h.*, CASE WHEN h.tenant_id = f.tenant_id THEN f.n + 1 ELSE 1 END
  FROM first_heads f CROSS JOIN LATERAL (
    SELECT {_HEAD} FROM trials t
    WHERE {READY} AND (t.tenant_id, t.shape) >
          (f.tenant_id, CASE WHEN f.n < {_SHAPES_PER_TENANT} THEN f.shape ELSE 9223372036854775807 END)
    {_IN_ORDER}) h
), more_heads AS (
  (SELECT h.*, 1 AS n FROM (SELECT tenant_id FROM first_heads WHERE n = {_SHAPES_PER_TENANT}) f CROSS JOIN LATERAL (
     SELECT {_HEAD} FROM trials t
     WHERE {READY} AND t.tenant_id = f.tenant_id AND t.shape > %(start)s {_IN_ORDER}) h)
  UNION ALL
  SELECT h.*, m.n + 1 FROM more_heads m CROSS JOIN LATERAL (
    SELECT {_HEAD} FROM trials t
    WHERE {READY} AND t.tenant_id = m.tenant_id AND t.shape > m.shape {_IN_ORDER}) h
  WHERE m.n < {_SHAPES_PER_TENANT}
), heads AS MATERIALIZED (
  SELECT * FROM first_heads
  UNION ALL
  SELECT * FROM more_heads m
  WHERE NOT EXISTS (SELECT 1 FROM first_heads f WHERE f.tenant_id = m.tenant_id AND f.shape = m.shape)
)"""

# What every tenant with work holds, and what its quotas leave. All derived from rows: nothing here can drift.
_TENANTS = f"""
held AS MATERIALIZED (
  SELECT tenant_id, count(*)::int AS n, sum(cpu_millicores)::bigint AS cpu, sum(memory_bytes)::bigint AS memory,
         sum(gpu)::int AS gpu
  FROM attempts WHERE {_LIVE} GROUP BY tenant_id
), queue_rooms AS MATERIALIZED (
  SELECT q.name, CASE WHEN q.paused_at IS NOT NULL THEN 0
                      WHEN q.max_running IS NULL THEN {_NO_LIMIT}
                      ELSE q.max_running - (SELECT count(*) FROM attempts a WHERE a.{_LIVE} AND a.queue = q.name)
                 END AS room
  FROM queues q
), accounts AS MATERIALIZED (
  SELECT t.id AS tenant_id, t.class, t.weight, t.guaranteed_share,
         coalesce(u.n, 0) AS n, coalesce(u.cpu, 0) AS cpu, coalesce(u.memory, 0) AS memory, coalesce(u.gpu, 0) AS gpu,
         %(history)s * coalesce(s.usage, 0) AS history,
         t.rate_per_second IS NOT NULL AS has_rate,
         least(t.max_running - coalesce(u.n, 0), floor({TOKENS})) AS starts_left,
         coalesce(t.max_cpu_millicores, {_NO_LIMIT}) AS max_cpu,
         coalesce(t.max_memory_bytes, {_NO_LIMIT}) AS max_memory,
         coalesce(t.max_gpu, {_NO_LIMIT}) AS max_gpu, coalesce(t.budget_cpu_seconds, {_NO_LIMIT}) AS max_budget,
         coalesce(t.max_cpu_millicores, {_NO_LIMIT}) - coalesce(u.cpu, 0) AS cpu_left,
         coalesce(t.max_memory_bytes, {_NO_LIMIT}) - coalesce(u.memory, 0) AS memory_left,
         coalesce(t.max_gpu, {_NO_LIMIT}) - coalesce(u.gpu, 0) AS gpu_left,
         coalesce({BUDGET_LEFT}, {_NO_LIMIT}) AS budget_left
  FROM (SELECT DISTINCT tenant_id FROM heads) a JOIN tenants t ON t.id = a.tenant_id
    LEFT JOIN held u ON u.tenant_id = t.id LEFT JOIN tenant_schedule s ON s.tenant_id = t.id
  WHERE t.paused_at IS NULL
), looked_at AS MATERIALIZED (
  SELECT h.*, coalesce(q.room, {_NO_LIMIT}) AS queue_room,
         h.cpu_millicores <= a.cpu_left AND h.memory_bytes <= a.memory_left AND h.max_cpu_seconds <= a.budget_left
           AS has_quota,
         h.gpu = 0 OR h.gpu <= a.gpu_left AS has_gpu_quota,
         h.cpu_millicores <= a.max_cpu AND h.memory_bytes <= a.max_memory AND h.max_cpu_seconds <= a.max_budget
           AND h.gpu <= a.max_gpu AS can_ever_have_quota,
         EXISTS (SELECT 1 FROM rooms r WHERE r.runtime = h.runtime AND r.cpu >= h.cpu_millicores
                 AND r.memory >= h.memory_bytes AND r.gpu >= h.gpu AND r.labels @> h.node_labels) AS has_room,
         h.queued_at < clock_timestamp() - make_interval(secs => %(hold)s) AS is_old
  FROM heads h JOIN accounts a ON a.tenant_id = h.tenant_id LEFT JOIN queue_rooms q ON q.name = h.queue
), shares AS MATERIALIZED (
  SELECT a.tenant_id, a.class, (greatest(a.cpu / %(capacity_cpu)s::float8, a.memory / %(capacity_memory)s::float8,
                                         a.gpu / %(capacity_gpu)s::float8) + a.history) / a.weight AS share
  FROM accounts a
), blockers AS MATERIALIZED (
  -- A trial that has waited long for its tenant's quota keeps it: those behind it no longer slip past.
  SELECT DISTINCT ON (tenant_id) tenant_id, priority, seq FROM looked_at
  WHERE is_old AND NOT has_quota AND can_ever_have_quota AND queue_room > 0
  ORDER BY tenant_id, priority DESC, seq
)"""

_IS_AHEAD = """NOT EXISTS (SELECT 1 FROM blockers b WHERE b.tenant_id = {0}.tenant_id
                   AND (b.priority > {0}.priority OR (b.priority = {0}.priority AND b.seq < {0}.seq)))"""

# Progressive filling: a trial's tag is its tenant's dominant share before the grant, over the weight. The smallest
# tags win. A tenant outside of the `slots` poorest of its class cannot own one of the `slots` smallest tags.
_PICK = f"""
WITH RECURSIVE {_HEADS}, {_TENANTS}, open_shapes AS MATERIALIZED (
  SELECT l.* FROM looked_at l
  WHERE has_quota AND has_gpu_quota AND has_room AND queue_room > 0 AND {_IS_AHEAD.format("l")}
    AND (%(only_tenant)s::bigint IS NULL OR (tenant_id = %(only_tenant)s AND shape = %(only_shape)s))
), reserve AS (
  -- What is kept free for tenants that hold nothing: the smaller the more tenants there are already.
  SELECT %(free_slots)s - CASE WHEN %(newcomer_reserve)s > 0 THEN
    floor(%(all_slots)s * power(%(newcomer_reserve)s, (SELECT count(*) FROM held))) ELSE 0 END AS established_slots
), eligible AS MATERIALIZED (
  SELECT a.*, least(a.starts_left, %(slots)s)::int AS room,
         -- Not all of `slots` from each tenant: that would be slots squared rows.
         greatest(4, 4 * %(slots)s / (SELECT count(*) FROM accounts))::int AS page, s.share, r.established_slots
  FROM accounts a JOIN shares s ON s.tenant_id = a.tenant_id CROSS JOIN reserve r
  WHERE a.starts_left >= 1 AND (a.n = 0 OR r.established_slots > 0)
    -- Before the limit: a tenant with nothing that can start now must not stand in the place of one that has.
    AND EXISTS (SELECT 1 FROM open_shapes o WHERE o.tenant_id = a.tenant_id)
  ORDER BY a.class DESC, s.share, a.tenant_id LIMIT %(slots)s
), queued AS (
  SELECT e.*, q.id, q.job_id, q.priority, q.seq, q.fence, q.queue, q.runtime, q.node_labels, q.queued_at, o.queue_room,
         q.cpu_millicores, q.memory_bytes, q.gpu AS gpus, row_number() OVER w AS place,
         sum(q.cpu_millicores) OVER w AS cpu_sum, sum(q.memory_bytes) OVER w AS memory_sum,
         sum(q.gpu) OVER w AS gpu_sum, sum(q.max_cpu_seconds) OVER w AS budget_sum
  FROM eligible e JOIN open_shapes o ON o.tenant_id = e.tenant_id CROSS JOIN LATERAL (
    SELECT t.id, t.job_id, t.tenant_id, t.priority, t.seq, t.fence, t.queue, t.runtime, t.node_labels, t.queued_at,
           t.cpu_millicores, t.memory_bytes, t.gpu, t.max_cpu_seconds
    FROM trials t
    WHERE t.tenant_id = e.tenant_id AND t.shape = o.shape AND {READY} AND t.desired = 'run'
    ORDER BY t.priority DESC, t.seq LIMIT least(e.room, e.page)) q
  WHERE {_IS_AHEAD.format("q")}
  WINDOW w AS (PARTITION BY e.tenant_id ORDER BY q.priority DESC, q.seq)
), allowed AS (
  SELECT q.*, place <= page AND cpu_sum <= cpu_left AND memory_sum <= memory_left AND budget_sum <= budget_left
              AND (gpus = 0 OR gpu_sum <= gpu_left) AS is_allowed
  FROM queued q WHERE place <= room
), candidates AS (
  SELECT a.*, n = 0 AND place = 1 AS is_newcomer, (greatest(
      (cpu + coalesce(sum(cpu_millicores) OVER w, 0)) / %(capacity_cpu)s::float8,
      (memory + coalesce(sum(memory_bytes) OVER w, 0)) / %(capacity_memory)s::float8,
      (gpu + coalesce(sum(gpus) OVER w, 0)) / %(capacity_gpu)s::float8) + history) / weight AS tag
  FROM allowed a WHERE is_allowed
  WINDOW w AS (PARTITION BY tenant_id ORDER BY priority DESC, seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
), horizon AS (
  -- Of these tenants not all was read that might come next, so nobody gets more than what they surely come after.
  SELECT 9 - c.class AS rank, max(c.tag) AS tag FROM candidates c
  WHERE c.tenant_id IN (SELECT tenant_id FROM allowed WHERE NOT is_allowed)
     OR (c.page < c.room AND c.place = c.page)
  GROUP BY c.tenant_id, c.class ORDER BY 1, 2 LIMIT 1
), ranked AS (
  SELECT c.*, row_number() OVER (PARTITION BY queue ORDER BY class DESC, tag, tenant_id, place) AS queue_place,
         row_number() OVER (PARTITION BY is_newcomer ORDER BY class DESC, tag, tenant_id, place) AS kind_place
  FROM candidates c
  WHERE NOT EXISTS (SELECT 1 FROM horizon h WHERE (9 - c.class, c.tag) > (h.rank, h.tag))
), picked AS MATERIALIZED (
  SELECT * FROM ranked
  WHERE queue_place <= queue_room AND (is_newcomer OR kind_place <= established_slots)
  ORDER BY class DESC, tag, tenant_id, place LIMIT %(slots)s
)
SELECT p.id, p.tenant_id, p.has_rate, p.runtime, p.cpu_millicores, p.memory_bytes, p.gpus AS gpu, p.node_labels,
       extract(epoch FROM clock_timestamp() - p.queued_at)::float8 AS waited_seconds,
       CASE WHEN %(many_nodes)s THEN j.spec ->> 'image' END AS image,
       CASE WHEN p.fence = 0 OR j.spec #>> '{{retry,avoid_node}}' = 'false' THEN '{{}}'::uuid[] ELSE ARRAY(
         SELECT a.node_id FROM attempts a
         WHERE a.trial_id = p.id AND (a.state = 'lost' OR a.failure ->> 'class' = 'infra')
           AND coalesce(a.failure ->> 'code', '') NOT IN ('preempted', 'worker_shutdown')) END AS avoided
FROM picked p JOIN jobs j ON j.id = p.job_id
ORDER BY p.class DESC, p.tag, p.tenant_id, p.place
"""

_FEW = 32

# The statements about whose turn it is are large: to plan one takes longer than all else in a tick, most ticks find
# nothing that waits, and most others a few trials. Their plan for any numbers is good for those; for more, a new one
# each time, as `DispatchRepository.lock` says.
_ARE_READY = f"""
SELECT n > 0 AS are_ready,
  set_config('plan_cache_mode', CASE WHEN n < {_FEW} THEN 'force_generic_plan' ELSE 'force_custom_plan' END, true)
FROM (SELECT count(*) AS n FROM (SELECT 1 FROM trials t WHERE {READY} LIMIT {_FEW}) found) counted
"""

# Heads that every quota would let start, for which no node has room now: in the order in which they may reserve one.
_STARVING = f"""
WITH RECURSIVE {_HEADS}, {_TENANTS}
SELECT l.tenant_id, l.shape, l.runtime, l.cpu_millicores, l.memory_bytes, l.gpu, l.node_labels, l.has_room,
       NOT EXISTS (SELECT 1 FROM shares o WHERE (9 - o.class, o.share) < (9 - s.class, s.share)) AS is_next
FROM looked_at l JOIN accounts a ON a.tenant_id = l.tenant_id JOIN shares s ON s.tenant_id = l.tenant_id
WHERE l.is_old AND l.has_quota AND l.has_gpu_quota AND l.queue_room > 0 AND a.starts_left >= 1
ORDER BY a.class DESC, l.queued_at, l.seq LIMIT 100
"""

# What has waited for room of tenants with a guaranteed share; whether they hold less than that is for the caller.
_WAITING = f"""
WITH RECURSIVE {_HEADS}, {_TENANTS}
SELECT l.tenant_id, l.shape, l.runtime, l.cpu_millicores, l.memory_bytes, l.gpu, l.node_labels, l.has_room,
       true AS is_next
FROM looked_at l JOIN accounts a ON a.tenant_id = l.tenant_id
WHERE a.guaranteed_share IS NOT NULL AND l.is_old AND l.has_quota AND l.has_gpu_quota AND l.queue_room > 0
  AND NOT l.has_room AND a.starts_left >= 1 AND {_IS_AHEAD.format("l")}
ORDER BY a.class DESC, l.queued_at, l.seq LIMIT 100
"""


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """A node that takes work, and what is free on it.

    spares: free members of warm pools for jobs, by tenant, runtime and sandbox key; only those that were asked for.
    """

    id: UUID
    runtimes: frozenset[str]
    free_slots: int
    cpu_millicores: int
    memory_bytes: int
    free_cpu_millicores: int
    free_memory_bytes: int
    slots: int = 0
    gpu: int = 0
    free_gpu: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    images: frozenset[str] = frozenset()
    spares: Mapping[tuple[int, str, str], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueuedTrial:
    """A trial whose turn it is. avoided: nodes on which it failed by no fault of its own.

    sandbox_key: of the sandbox that is made for it, where it is known that its tenant has free members for jobs.
    """

    id: UUID
    runtime: str
    cpu_millicores: int
    memory_bytes: int
    gpu: int = 0
    node_labels: Mapping[str, str] = field(default_factory=dict)
    image: str | None = None
    avoided: frozenset[UUID] = frozenset()
    waited_seconds: float = 0.0
    tenant_id: int = 0
    has_rate: bool = False
    sandbox_key: str | None = None


@dataclass(frozen=True, slots=True)
class WaitingShape:
    """What the trials of one shape want of a node."""

    runtime: str
    cpu_millicores: int
    memory_bytes: int
    gpu: int
    node_labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Starving:
    """A shape whose first trial has waited long for room.

    has_room: there is some now. is_next: no tenant with work holds less for its weight.
    """

    tenant_id: int
    shape: int
    wanted: WaitingShape
    has_room: bool
    is_next: bool


@dataclass(frozen=True, slots=True)
class PickLimits:
    """How to choose. slots: most trials. free_slots, all_slots: of the nodes to choose for, of all nodes.

    newcomer_reserve: r, so that r to the power of the number of tenants that hold something is kept free for others.
    history: how much the past counts against the present share. hold_seconds: so long trials may slip past one that
    waits for quota or room. capacity: (cpu millicores, memory bytes, GPUs) of the whole installation.
    """

    slots: int
    free_slots: int
    all_slots: int
    newcomer_reserve: float
    history: float
    hold_seconds: float
    capacity: tuple[int, int, int]


class FairShareRepository(SqlRepository):
    """Reads only; `DispatchRepository` starts what was chosen."""

    def pick(
        self,
        nodes: Sequence[NodeRoom],
        limits: PickLimits,
        *,
        start: int,
        only: tuple[int, int] | None = None,
    ) -> list[QueuedTrial]:
        """Choose trials by fair share, of those that fit on at least one of the nodes; in the order of their turn.

        start: any 64-bit number, another one each time. only: (tenant, shape), where a node is kept for that one.
        """
        if not self._are_ready():
            return []
        parameters = {
            **_parameters(nodes, limits, start),
            "slots": limits.slots,
            "free_slots": limits.free_slots,
            "all_slots": limits.all_slots,
            # A node that is kept for a trial is not kept from it.
            "newcomer_reserve": limits.newcomer_reserve if only is None else 0.0,
            "only_tenant": None if only is None else only[0],
            "only_shape": None if only is None else only[1],
            "many_nodes": len(nodes) > 1,
        }
        rows = self._rows(_PICK, parameters)
        return [QueuedTrial(**{**row, "avoided": frozenset(row["avoided"])}) for row in rows]

    def starving(self, nodes: Sequence[NodeRoom], limits: PickLimits, *, start: int) -> list[Starving]:
        """Shapes whose first trial has waited for longer than `hold_seconds` though its quotas let it start."""
        return self._starving(_STARVING, nodes, limits, start)

    def waiting_with_guarantee(
        self, nodes: Sequence[NodeRoom], limits: PickLimits, *, start: int
    ) -> list[Starving]:
        """The same, of tenants with a guaranteed share alone, and only what has no room now."""
        return self._starving(_WAITING, nodes, limits, start)

    def _starving(
        self, sql: str, nodes: Sequence[NodeRoom], limits: PickLimits, start: int
    ) -> list[Starving]:
        return _to_starving(self._rows(sql, _parameters(nodes, limits, start))) if self._are_ready() else []

    def _are_ready(self) -> bool:
        """Say whether any trial may be dispatched, and have the next statements planned for how many there are."""
        row = self._row(_ARE_READY)
        return row is not None and bool(row["are_ready"])


def _to_starving(rows: Sequence[dict[str, Any]]) -> list[Starving]:
    return [
        Starving(
            row.pop("tenant_id"),
            row.pop("shape"),
            has_room=row.pop("has_room"),
            is_next=row.pop("is_next"),
            wanted=WaitingShape(**row),
        )
        for row in rows
    ]


def _parameters(nodes: Sequence[NodeRoom], limits: PickLimits, start: int) -> dict[str, Any]:
    rooms = _rooms(nodes)
    cpu, memory, gpu = limits.capacity
    return {
        "runtimes": [room[0] for room in rooms],
        "labels": [room[1] for room in rooms],
        "gpus": [room[2] for room in rooms],
        "cpus": [room[3] for room in rooms],
        "memories": [room[4] for room in rooms],
        # Nothing can be held of what there is none of: any divisor gives a share of 0.
        "capacity_cpu": max(1, cpu),
        "capacity_memory": max(1, memory),
        "capacity_gpu": max(1, gpu),
        "history": limits.history,
        "hold": limits.hold_seconds,
        "start": start,
    }


def _rooms(nodes: Sequence[NodeRoom]) -> list[tuple[str, str, int, int, int]]:
    """Give (runtime, labels, gpu, cpu, memory) that is free, without nodes that another one covers."""
    rooms = sorted(
        {
            (
                name,
                labels,
                node.free_gpu,
                node.free_cpu_millicores,
                node.free_memory_bytes,
            )
            for node in nodes
            for labels in [json.dumps(dict(node.labels), sort_keys=True)]
            for name in node.runtimes
        },
        reverse=True,
    )
    kept: list[tuple[str, str, int, int, int]] = []
    for room in rooms:
        # Sorted by cpu downwards among equals: only more memory than all before makes a room of its own.
        if not kept or kept[-1][:3] != room[:3] or room[4] > kept[-1][4]:
            kept.append(room)
    return kept
