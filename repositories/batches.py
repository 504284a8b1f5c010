"""SQL of batches: insert with jobs, needs and the first trials, append, look, list, count."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from models.states import Outcome
from repositories.tenant_base import TenantSqlRepository

__all__ = [
    "BY_OUTCOME",
    "TAIL_STATE",
    "BatchRepository",
    "BatchRow",
    "LockedBatch",
    "NewBatchRow",
    "NewJobRow",
    "NewNeed",
    "NewTrials",
]

BY_OUTCOME = ", ".join(f"('{outcome.value}', p.{outcome.value})" for outcome in Outcome)
"""The counters of a progress row `p` as rows of (outcome, n)."""

TAIL_STATE = """
CASE WHEN j.tail_outcome IS NOT NULL THEN 'cancelling' WHEN j.unmet_needs > 0 THEN 'blocked'
     WHEN j.paused_at IS NOT NULL OR b.paused_at IS NOT NULL THEN 'paused' ELSE 'queued' END
"""
"""Where the trials of job `j` of batch `b` that have no row yet stand."""

_INSERT_BATCH = """
INSERT INTO batches (id, tenant_id, name, labels, priority, implicit, max_running, max_per_label, is_open,
                     defaults, stop_when, job_count, trial_count)
VALUES (%(id)s, %(tenant_id)s, %(name)s, %(labels)s, %(priority)s, %(implicit)s, %(max_running)s,
        %(max_per_label)s, %(is_open)s, %(defaults)s, %(stop_when)s, %(jobs)s, %(trials)s)
"""

# Waits for whoever works on the batch: its progress, another verb, another append.
_LOCK = """
SELECT b.id, b.is_open, b.paused_at IS NOT NULL AS is_paused, b.job_count, b.trial_count, b.state,
       b.cancel_requested_at IS NOT NULL AS is_cancelled, b.stopped_at IS NOT NULL AS is_stopped,
       b.max_running, b.max_per_label
FROM batches b WHERE b.id = %(id)s AND b.tenant_id = %(tenant_id)s AND b.archiving_at IS NULL FOR NO KEY UPDATE
"""

_GROW = """
UPDATE batches SET job_count = job_count + %(jobs)s, trial_count = trial_count + %(trials)s
WHERE id = %(id)s AND tenant_id = %(tenant_id)s
"""

_TAKEN_KEYS = """
SELECT key, id FROM jobs WHERE batch_id = %(batch_id)s AND tenant_id = %(tenant_id)s AND key = ANY(%(keys)s)
"""

# %()b sends the specs in binary: as text, each quote in them would be escaped twice, which took four times as long.
_INSERT_JOBS = """
INSERT INTO jobs (id, tenant_id, batch_id, ordinal, key, kind, digest, labels, spec, trial_count, tail_count,
                  queue_deadline, unmet_needs, stop)
SELECT j.id, %(tenant_id)s, %(batch_id)s, %(first_ordinal)s + j.n - 1, j.key, j.kind, j.digest, j.labels,
       j.spec::jsonb, j.trials, j.tail,
       CASE WHEN j.tail > 0 THEN clock_timestamp() + make_interval(secs => j.queue_seconds) END, j.needs, j.stop
FROM unnest(%(ids)s::uuid[], %(keys)s::text[], %(kinds)s::text[], %(digests)s::text[], %(labels)s::jsonb[],
            %(specs)b::text[], %(trials)s::int[], %(tails)s::int[], %(queue_seconds)s::float8[], %(needs)s::int[],
            %(stops)s::text[])
  WITH ORDINALITY AS j(id, key, kind, digest, labels, spec, trials, tail, queue_seconds, needs, stop, n)
"""

_INSERT_NEEDS = """
INSERT INTO job_needs (job_id, needs_job_id, outcome)
SELECT n.job_id, n.needs_job_id, n.outcome
FROM unnest(%(jobs)s::uuid[], %(needed)s::uuid[], %(outcomes)s::text[]) AS n(job_id, needs_job_id, outcome)
  -- Both ends are jobs of this batch, and so of this tenant.
  JOIN jobs j ON j.id = n.job_id AND j.batch_id = %(batch_id)s AND j.tenant_id = %(tenant_id)s
  JOIN jobs m ON m.id = n.needs_job_id AND m.batch_id = j.batch_id
"""

# A trial of a batch with caps waits before their gate (services/gates.py), all others are queued at once.
# In the order of the jobs: `seq`, given on insert, is what first-come-first-served goes by.
_INSERT_TRIALS = """
INSERT INTO trials (id, tenant_id, batch_id, job_id, index, seed, priority, queue_deadline, runtime, cpu_millicores,
                    memory_bytes, gpu, queue, preemptible, node_labels, max_cpu_seconds, cap_labels,
                    state, state_reason, is_paused, paused_at)
SELECT i.id, %(tenant_id)s, %(batch_id)s, j.job_id, g.index, j.seed + g.index, j.priority,
       clock_timestamp() + make_interval(secs => j.queue_seconds), j.runtime, j.cpu, j.memory,
       j.gpu, j.queue, j.preemptible, j.node_labels, j.max_cpu_seconds, j.cap_labels,
       CASE WHEN j.needs_others THEN 'blocked' WHEN %(is_paused)s THEN 'paused'
            WHEN j.cap_labels IS NOT NULL THEN 'blocked' ELSE 'queued' END,
       CASE WHEN j.needs_others THEN 'needs' WHEN %(is_paused)s THEN NULL
            WHEN j.cap_labels IS NOT NULL THEN 'concurrency' END,
       %(is_paused)s, CASE WHEN %(is_paused)s AND NOT j.needs_others THEN clock_timestamp() END
FROM unnest(%(jobs)s::uuid[], %(counts)s::int[], %(firsts)s::int[], %(seeds)s::bigint[], %(needs)s::bool[],
            %(priorities)s::smallint[], %(queue_seconds)s::float8[], %(runtimes)s::text[], %(cpus)s::int[],
            %(memories)s::bigint[], %(gpus)s::int[], %(queues)s::text[], %(preemptibles)s::bool[],
            %(node_labels)s::jsonb[], %(max_cpu_seconds)s::float8[], %(cap_labels)s::jsonb[])
       AS j(job_id, count, first, seed, needs_others, priority, queue_seconds, runtime, cpu, memory, gpu, queue,
            preemptible, node_labels, max_cpu_seconds, cap_labels)
  CROSS JOIN LATERAL generate_series(0, j.count - 1) AS g(index)
  JOIN unnest(%(ids)s::uuid[]) WITH ORDINALITY AS i(id, n) ON i.n = j.first + g.index + 1
ORDER BY i.n
"""

# Which trials there are, or which of them count, then depended on their outcomes.
_IS_BIASED = """
SELECT b.stopped_at IS NOT NULL
  OR EXISTS (SELECT 1 FROM jobs j WHERE j.batch_id = b.id AND j.stop <> 'never' AND j.trial_count > 1)
  OR EXISTS (SELECT 1 FROM trials t WHERE t.batch_id = b.id AND t.superseded_by IS NOT NULL
               AND t.outcome IN ('passed', 'failed')) AS is_biased
FROM batches b WHERE b.id = %(id)s AND b.tenant_id = %(tenant_id)s
"""

_UNMADE = """
SELECT key, tail_count FROM jobs WHERE batch_id = %(id)s AND tenant_id = %(tenant_id)s AND tail_count > 0
"""

_SET_TRACEPARENT = """
UPDATE batches SET traceparent = %(traceparent)s WHERE id = %(id)s AND tenant_id = %(tenant_id)s
"""

_COLUMNS = """
b.id, b.name, b.labels, b.priority, b.max_running, b.max_per_label, b.state, b.implicit, b.job_count, b.trial_count,
b.is_open, b.defaults, b.stop_when, b.stop_reason, b.stopped_at, b.paused_at, b.cancel_requested_at,
b.created_at, b.finished_at
"""

# One that is being archived is as gone as one that is: a part of its rows may have gone already.
_FIND = f"""
SELECT {_COLUMNS} FROM batches b
WHERE b.id = %(id)s AND b.tenant_id = %(tenant_id)s AND b.archiving_at IS NULL
"""

_LIST = f"""
SELECT {_COLUMNS} FROM batches b
WHERE b.tenant_id = %(tenant_id)s AND b.archiving_at IS NULL AND NOT b.is_session
  AND (%(before)s::uuid IS NULL OR b.id < %(before)s)
ORDER BY b.id DESC LIMIT %(limit)s
"""

# One statement, and so one snapshot: finished trials are in the counters or still in the inbox, never in both; open
# ones have a row or belong to a tail.
_COUNTS = f"""
SELECT t.batch_id, t.state, NULL AS outcome, count(*)::int AS n FROM trials t
WHERE t.batch_id = ANY(%(ids)s) AND t.tenant_id = %(tenant_id)s AND t.state <> 'finished'
GROUP BY t.batch_id, t.state
UNION ALL
SELECT p.batch_id, 'finished', o.outcome, o.n FROM batch_progress p
  JOIN batches b ON b.id = p.batch_id AND b.tenant_id = %(tenant_id)s
  CROSS JOIN LATERAL (VALUES {BY_OUTCOME}) AS o(outcome, n)
WHERE p.batch_id = ANY(%(ids)s) AND o.n > 0
UNION ALL
SELECT i.batch_id, 'finished', i.outcome, count(*)::int FROM batch_inbox i
  JOIN batches b ON b.id = i.batch_id AND b.tenant_id = %(tenant_id)s
WHERE i.batch_id = ANY(%(ids)s) AND i.is_counted AND i.trial_id IS NOT NULL GROUP BY i.batch_id, i.outcome
UNION ALL
SELECT j.batch_id, {TAIL_STATE}, NULL, sum(j.tail_count)::int FROM jobs j JOIN batches b ON b.id = j.batch_id
WHERE j.batch_id = ANY(%(ids)s) AND j.tenant_id = %(tenant_id)s AND j.tail_count > 0 GROUP BY 1, 2
"""


@dataclass(frozen=True, slots=True)
class NewBatchRow:
    """A batch to insert. defaults: kept for appended jobs, None unless it is open."""

    id: UUID
    name: str | None
    labels: Mapping[str, str]
    priority: int
    implicit: bool
    max_running: int | None
    max_per_label: Mapping[str, int]
    is_open: bool
    defaults: Mapping[str, Any] | None
    stop_when: Mapping[str, int] | None


@dataclass(frozen=True, slots=True)
class NewJobRow:
    """A job to insert. spec: JSON text. tail_count: how many of its trials get their rows later."""

    id: UUID
    key: str
    kind: str
    digest: str
    labels: Mapping[str, str]
    spec: str
    trial_count: int
    tail_count: int
    queue_seconds: float
    needs: int
    stop: str


@dataclass(frozen=True, slots=True)
class NewNeed:
    """An edge to insert between two jobs of one batch."""

    job_id: UUID
    needs_job_id: UUID
    outcome: str


@dataclass(frozen=True, slots=True)
class NewTrials:
    """The first trials of one job. first: place of its first trial in the list of all trial ids. seed: of sample 0.

    cap_labels: None unless the batch has caps; else those of the job's labels that they look at.
    """

    job_id: UUID
    count: int
    first: int
    seed: int | None
    needs_others: bool
    priority: int
    queue_seconds: float
    runtime: str
    cpu_millicores: int
    memory_bytes: int
    gpu: int
    queue: str
    preemptible: bool
    node_labels: Mapping[str, str]
    max_cpu_seconds: float
    cap_labels: Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One row of `batches`."""

    id: UUID
    name: str | None
    labels: dict[str, str]
    priority: int
    max_running: int | None
    max_per_label: dict[str, int]
    state: str
    implicit: bool
    job_count: int
    trial_count: int
    is_open: bool
    defaults: dict[str, Any] | None
    stop_when: dict[str, int] | None
    stop_reason: str | None
    stopped_at: datetime | None
    paused_at: datetime | None
    cancel_requested_at: datetime | None
    created_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class LockedBatch:
    """What a verb has to know of the batch whose row it holds."""

    id: UUID
    is_open: bool
    is_paused: bool
    job_count: int
    trial_count: int
    state: str
    is_cancelled: bool
    is_stopped: bool
    max_running: int | None
    max_per_label: dict[str, int]


class BatchRepository(TenantSqlRepository):
    """Batches of one tenant."""

    def insert(self, batch: NewBatchRow, *, jobs: int, trials: int) -> None:
        """Insert the batch alone. jobs, trials: how many it begins with."""
        self._mine_count(
            _INSERT_BATCH,
            {
                "id": batch.id,
                "name": batch.name,
                "labels": Jsonb(batch.labels),
                "priority": batch.priority,
                "implicit": batch.implicit,
                "max_running": batch.max_running,
                "max_per_label": Jsonb(batch.max_per_label),
                "is_open": batch.is_open,
                "defaults": None if batch.defaults is None else Jsonb(batch.defaults),
                "stop_when": None if batch.stop_when is None else Jsonb(batch.stop_when),
                "jobs": jobs,
                "trials": trials,
            },
        )

    def set_traceparent(self, batch_id: UUID, traceparent: str) -> None:
        """Keep the trace context of the request, for the spans of the attempts."""
        self._mine_count(_SET_TRACEPARENT, {"id": batch_id, "traceparent": traceparent})

    def lock(self, batch_id: UUID) -> LockedBatch | None:
        """Take the lock under which a batch is changed, until the end of the transaction. None: no such batch."""
        row = self._mine_or_none(_LOCK, {"id": batch_id})
        return None if row is None else LockedBatch(**row)

    def grow(self, batch_id: UUID, *, jobs: int, trials: int) -> None:
        """Count what is appended. Needs the lock."""
        self._mine_count(_GROW, {"id": batch_id, "jobs": jobs, "trials": trials})

    def jobs_by_key(self, batch_id: UUID, keys: Sequence[str]) -> dict[str, UUID]:
        """Which of these keys the batch has, and whose they are."""
        rows = self._mine(_TAKEN_KEYS, {"batch_id": batch_id, "keys": list(keys)})
        return {row["key"]: row["id"] for row in rows}

    def find(self, batch_id: UUID) -> BatchRow | None:
        """Look one up."""
        row = self._mine_or_none(_FIND, {"id": batch_id})
        return None if row is None else BatchRow(**row)

    def is_biased(self, batch_id: UUID) -> bool:
        """Whether estimates from this batch are biased: by a stop rule, or by retries of trials with a verdict."""
        row = self._mine_or_none(_IS_BIASED, {"id": batch_id})
        return row is not None and bool(row["is_biased"])

    def unmade(self, batch_id: UUID) -> dict[str, int]:
        """How many trials of its jobs have no row yet, by key; jobs without such are left out."""
        return {row["key"]: row["tail_count"] for row in self._mine(_UNMADE, {"id": batch_id})}

    def page(self, *, before: UUID | None, limit: int) -> list[BatchRow]:
        """Newest first, older than `before`."""
        return [BatchRow(**row) for row in self._mine(_LIST, {"before": before, "limit": limit})]

    def counts(self, batch_ids: Sequence[UUID]) -> dict[UUID, list[tuple[str, str | None, int]]]:
        """Count trials by (state, outcome) of each batch; a batch of another tenant is simply not there."""
        found: dict[UUID, list[tuple[str, str | None, int]]] = {}
        for row in self._mine(_COUNTS, {"ids": list(batch_ids)}):
            found.setdefault(row["batch_id"], []).append((row["state"], row["outcome"], row["n"]))
        return found

    def insert_jobs(self, batch_id: UUID, jobs: Sequence[NewJobRow], *, first_ordinal: int) -> None:
        """Insert jobs. first_ordinal: place of the first of them in the batch."""
        self._mine_count(
            _INSERT_JOBS,
            {
                "batch_id": batch_id,
                "first_ordinal": first_ordinal,
                "ids": [job.id for job in jobs],
                "keys": [job.key for job in jobs],
                "kinds": [job.kind for job in jobs],
                "digests": [job.digest for job in jobs],
                "labels": [Jsonb(job.labels) for job in jobs],
                "specs": [job.spec for job in jobs],
                "trials": [job.trial_count for job in jobs],
                "tails": [job.tail_count for job in jobs],
                "queue_seconds": [job.queue_seconds for job in jobs],
                "needs": [job.needs for job in jobs],
                "stops": [job.stop for job in jobs],
            },
        )

    def insert_needs(self, batch_id: UUID, needs: Sequence[NewNeed]) -> None:
        """Insert edges; both ends have to be jobs of this batch."""
        self._mine_count(
            _INSERT_NEEDS,
            {
                "batch_id": batch_id,
                "jobs": [need.job_id for need in needs],
                "needed": [need.needs_job_id for need in needs],
                "outcomes": [need.outcome for need in needs],
            },
        )

    def insert_trials(
        self, batch_id: UUID, trials: Sequence[NewTrials], trial_ids: Sequence[UUID], *, is_paused: bool
    ) -> None:
        """Insert first trials. trials: by job, in order; trial_ids: one per trial, ascending."""
        self._mine_count(
            _INSERT_TRIALS,
            {
                "batch_id": batch_id,
                "is_paused": is_paused,
                "ids": list(trial_ids),
                "jobs": [t.job_id for t in trials],
                "counts": [t.count for t in trials],
                "firsts": [t.first for t in trials],
                "seeds": [t.seed for t in trials],
                "needs": [t.needs_others for t in trials],
                "priorities": [t.priority for t in trials],
                "queue_seconds": [t.queue_seconds for t in trials],
                "runtimes": [t.runtime for t in trials],
                "cpus": [t.cpu_millicores for t in trials],
                "memories": [t.memory_bytes for t in trials],
                "gpus": [t.gpu for t in trials],
                "queues": [t.queue for t in trials],
                "preemptibles": [t.preemptible for t in trials],
                "node_labels": [json.dumps(dict(t.node_labels)) for t in trials],
                "max_cpu_seconds": [t.max_cpu_seconds for t in trials],
                "cap_labels": [
                    None if t.cap_labels is None else json.dumps(dict(t.cap_labels)) for t in trials
                ],
            },
        )
