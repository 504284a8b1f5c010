"""SQL of batches: insert with all jobs and trials, look, list, cancel."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from models.states import LIVE_ATTEMPT_STATES, WAITING_TRIAL_STATES, sql_list
from repositories.tenant_base import TenantSqlRepository

__all__ = ["BatchRepository", "BatchRow", "CancelledTrial", "NewJobRow", "NewTrials"]

_WAITING = f"state IN ({sql_list(WAITING_TRIAL_STATES)})"

_INSERT_BATCH = """
INSERT INTO batches (id, tenant_id, name, labels, priority, implicit, max_running, max_per_label, job_count,
                     trial_count)
VALUES (%(id)s, %(tenant_id)s, %(name)s, %(labels)s, %(priority)s, %(implicit)s, %(max_running)s, %(max_per_label)s,
        %(jobs)s, %(trials)s)
"""

# %()b sends the specs in binary: as text, each quote in them would be escaped twice, which took four times as long.
_INSERT_JOBS = """
INSERT INTO jobs (id, tenant_id, batch_id, ordinal, key, kind, digest, labels, spec, trial_count)
SELECT j.id, %(tenant_id)s, %(batch_id)s, j.n - 1, j.key, j.kind, j.digest, j.labels, j.spec::jsonb, j.trials
FROM unnest(%(ids)s::uuid[], %(keys)s::text[], %(kinds)s::text[], %(digests)s::text[], %(labels)s::jsonb[],
            %(specs)b::text[], %(trials)s::int[])
  WITH ORDINALITY AS j(id, key, kind, digest, labels, spec, trials, n)
"""

# A trial of a batch with caps waits before their gate (services/gates.py), all others are queued at once.
# In the order of the jobs: `seq`, given on insert, is what first-come-first-served goes by.
_INSERT_TRIALS = """
INSERT INTO trials (id, tenant_id, batch_id, job_id, index, seed, priority, queue_deadline, runtime, cpu_millicores,
                    memory_bytes, gpu, queue, preemptible, node_labels, max_cpu_seconds, cap_labels,
                    state, state_reason)
SELECT i.id, %(tenant_id)s, %(batch_id)s, j.job_id, g.index, j.seed + g.index, j.priority,
       clock_timestamp() + make_interval(secs => j.queue_seconds), j.runtime, j.cpu, j.memory,
       j.gpu, j.queue, j.preemptible, j.node_labels, j.max_cpu_seconds, j.cap_labels,
       CASE WHEN j.cap_labels IS NULL THEN 'queued' ELSE 'blocked' END,
       CASE WHEN j.cap_labels IS NOT NULL THEN 'concurrency' END
FROM unnest(%(jobs)s::uuid[], %(counts)s::int[], %(firsts)s::int[], %(seeds)s::bigint[], %(priorities)s::smallint[],
            %(queue_seconds)s::float8[], %(runtimes)s::text[], %(cpus)s::int[], %(memories)s::bigint[], %(gpus)s::int[],
            %(queues)s::text[], %(preemptibles)s::bool[], %(node_labels)s::jsonb[], %(max_cpu_seconds)s::float8[],
            %(cap_labels)s::jsonb[])
       AS j(job_id, count, first, seed, priority, queue_seconds, runtime, cpu, memory, gpu, queue, preemptible,
            node_labels, max_cpu_seconds, cap_labels)
  CROSS JOIN LATERAL generate_series(0, j.count - 1) AS g(index)
  JOIN unnest(%(ids)s::uuid[]) WITH ORDINALITY AS i(id, n) ON i.n = j.first + g.index + 1
ORDER BY i.n
"""

_SET_TRACEPARENT = """
UPDATE batches SET traceparent = %(traceparent)s WHERE id = %(id)s AND tenant_id = %(tenant_id)s
"""

_COLUMNS = """
b.id, b.name, b.labels, b.priority, b.max_running, b.max_per_label, b.state, b.implicit, b.job_count, b.trial_count,
b.cancel_requested_at, b.created_at, b.finished_at
"""

_FIND = f"SELECT {_COLUMNS} FROM batches b WHERE b.id = %(id)s AND b.tenant_id = %(tenant_id)s"

_LIST = f"""
SELECT {_COLUMNS} FROM batches b
WHERE b.tenant_id = %(tenant_id)s AND (%(before)s::uuid IS NULL OR b.id < %(before)s)
ORDER BY b.id DESC LIMIT %(limit)s
"""

_COUNTS = """
SELECT batch_id, state, outcome, count(*) AS n FROM trials
WHERE batch_id = ANY(%(ids)s) AND tenant_id = %(tenant_id)s GROUP BY batch_id, state, outcome
"""

_MARK_CANCELLED = """
UPDATE batches SET cancel_requested_at = coalesce(cancel_requested_at, clock_timestamp())
WHERE id = %(id)s AND tenant_id = %(tenant_id)s AND state = 'running'
"""

# Locked by id, as the dispatcher does, so that the two wait for each other instead of deadlocking.
# One statement, so that a trial that goes from waiting to running or back at this moment is met in either state: the
# row is locked, looked at again, and the CASE decides by what is true then.
_CANCEL = f"""
WITH locked AS MATERIALIZED (
  SELECT t.id FROM trials t WHERE t.tenant_id = %(tenant_id)s AND {{which}} AND t.state <> 'finished'
  ORDER BY t.id FOR UPDATE
), hit AS (
  UPDATE trials t SET
    desired = 'cancel',
    cancel_mode = CASE WHEN cancel_mode = 'force' THEN cancel_mode ELSE %(mode)s END,
    state = CASE WHEN {_WAITING} THEN 'finished' ELSE state END,
    state_reason = CASE WHEN {_WAITING} THEN 'cancelled' ELSE state_reason END,
    outcome = CASE WHEN {_WAITING} THEN 'cancelled' ELSE outcome END,
    failure = CASE WHEN {_WAITING} THEN %(failure)s ELSE failure END,
    finished_at = CASE WHEN {_WAITING} THEN clock_timestamp() ELSE finished_at END
  FROM locked l WHERE t.id = l.id AND t.state <> 'finished'
  RETURNING t.id, t.state = 'finished' AS is_finished
)
SELECT h.id AS trial_id, h.is_finished, a.node_id FROM hit h
LEFT JOIN attempts a ON a.trial_id = h.id AND a.state IN ({sql_list(LIVE_ATTEMPT_STATES)})
"""

_CANCEL_BATCH = _CANCEL.format(which="t.batch_id = %(id)s")
_CANCEL_TRIAL = _CANCEL.format(which="t.id = %(id)s")


@dataclass(frozen=True, slots=True)
class NewJobRow:
    """A job to insert. spec: JSON text."""

    id: UUID
    key: str
    kind: str
    digest: str
    labels: Mapping[str, str]
    spec: str
    trial_count: int


@dataclass(frozen=True, slots=True)
class NewTrials:
    """The trials of one job. first: place of its first trial in the list of all trial ids. seed: of sample 0.

    cap_labels: None unless the batch has caps; else those of the job's labels that they look at.
    """

    job_id: UUID
    count: int
    first: int
    seed: int | None
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
    cancel_requested_at: datetime | None
    created_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class CancelledTrial:
    """A trial a cancel has met: finished at once, or still running on a node."""

    trial_id: UUID
    is_finished: bool
    node_id: UUID | None


class BatchRepository(TenantSqlRepository):
    """Batches of one tenant."""

    def insert(
        self,
        batch_id: UUID,
        *,
        name: str | None,
        labels: Mapping[str, str],
        priority: int,
        implicit: bool,
        max_running: int | None,
        max_per_label: Mapping[str, int],
        jobs: Sequence[NewJobRow],
        trials: Sequence[NewTrials],
        trial_ids: Sequence[UUID],
    ) -> None:
        """Insert the batch with all its rows. jobs and trials: same order; trial_ids: one per trial, ascending."""
        self._mine_count(
            _INSERT_BATCH,
            {
                "id": batch_id,
                "name": name,
                "labels": Jsonb(labels),
                "priority": priority,
                "implicit": implicit,
                "max_running": max_running,
                "max_per_label": Jsonb(max_per_label),
                "jobs": len(jobs),
                "trials": len(trial_ids),
            },
        )
        self._insert_jobs(batch_id, jobs)
        self._insert_trials(batch_id, trials, trial_ids)

    def set_traceparent(self, batch_id: UUID, traceparent: str) -> None:
        """Keep the trace context of the request, for the spans of the attempts."""
        self._mine_count(_SET_TRACEPARENT, {"id": batch_id, "traceparent": traceparent})

    def find(self, batch_id: UUID) -> BatchRow | None:
        """Look one up."""
        row = self._mine_or_none(_FIND, {"id": batch_id})
        return None if row is None else BatchRow(**row)

    def page(self, *, before: UUID | None, limit: int) -> list[BatchRow]:
        """Newest first, older than `before`."""
        return [BatchRow(**row) for row in self._mine(_LIST, {"before": before, "limit": limit})]

    def counts(self, batch_ids: Sequence[UUID]) -> dict[UUID, list[tuple[str, str | None, int]]]:
        """Count trials by (state, outcome) of each batch; a batch of another tenant is simply not there."""
        found: dict[UUID, list[tuple[str, str | None, int]]] = {}
        for row in self._mine(_COUNTS, {"ids": list(batch_ids)}):
            found.setdefault(row["batch_id"], []).append((row["state"], row["outcome"], row["n"]))
        return found

    def cancel(self, batch_id: UUID, *, mode: str, failure: Mapping[str, Any]) -> list[CancelledTrial]:
        """Cancel all unfinished trials; gives those it met."""
        self._mine_count(_MARK_CANCELLED, {"id": batch_id})
        return self._cancel(_CANCEL_BATCH, batch_id, mode, failure)

    def cancel_trial(self, trial_id: UUID, *, mode: str, failure: Mapping[str, Any]) -> list[CancelledTrial]:
        """Cancel one trial; empty if it is finished or not this tenant's."""
        return self._cancel(_CANCEL_TRIAL, trial_id, mode, failure)

    def _cancel(self, sql: str, key: UUID, mode: str, failure: Mapping[str, Any]) -> list[CancelledTrial]:
        rows = self._mine(sql, {"id": key, "mode": mode, "failure": Jsonb(failure)})
        return [CancelledTrial(**row) for row in rows]

    def _insert_jobs(self, batch_id: UUID, jobs: Sequence[NewJobRow]) -> None:
        self._mine_count(
            _INSERT_JOBS,
            {
                "batch_id": batch_id,
                "ids": [job.id for job in jobs],
                "keys": [job.key for job in jobs],
                "kinds": [job.kind for job in jobs],
                "digests": [job.digest for job in jobs],
                "labels": [Jsonb(job.labels) for job in jobs],
                "specs": [job.spec for job in jobs],
                "trials": [job.trial_count for job in jobs],
            },
        )

    def _insert_trials(self, batch_id: UUID, trials: Sequence[NewTrials], trial_ids: Sequence[UUID]) -> None:
        self._mine_count(
            _INSERT_TRIALS,
            {
                "batch_id": batch_id,
                "ids": list(trial_ids),
                "jobs": [t.job_id for t in trials],
                "counts": [t.count for t in trials],
                "firsts": [t.first for t in trials],
                "seeds": [t.seed for t in trials],
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
