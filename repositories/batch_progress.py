"""SQL of a batch's progress: ends of trials are taken from the inbox, counted, numbered and acted upon.

A batch is worked on under a lock of its row, which the verbs of the API take as well: counters, edges and rules are
then looked at by one at a time. Which statements may change trials, and so need the dispatch lock, is said at each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from models.states import Outcome
from repositories.base import SqlRepository

__all__ = ["PAGE", "BatchProgressRepository", "BatchRule", "EndedJob", "NeedChange", "StoppedJob"]

PAGE = 2000
"""Most entries taken at a time: some ten milliseconds of work, in which a verb on the same batch waits."""

_OUTCOMES = tuple(outcome.value for outcome in Outcome)
_SUM = " + ".join(f"p.{name}" for name in _OUTCOMES)
_ADD = ", ".join(f"{name} = p.{name} + excluded.{name}" for name in _OUTCOMES)
_NAMES = ", ".join(_OUTCOMES)
_COUNT = ", ".join(
    f"count(*) FILTER (WHERE is_counted AND outcome = '{name}') AS {name}" for name in _OUTCOMES
)

_WAITING_ENTRIES = "SELECT n, batch_id FROM batch_inbox ORDER BY n LIMIT %(limit)s"

# Skipped are those that a verb works on now: a cancel of ten thousand trials must not stop the scheduler for a second.
_LOCK_BATCHES = """
SELECT id FROM batches WHERE id = ANY(%(ids)s) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
"""

# Of these entries, the batches in which an end may move other trials.
_RULED = """
WITH entries AS MATERIALIZED (
  SELECT DISTINCT batch_id, job_id FROM batch_inbox WHERE n = ANY(%(ns)s) AND batch_id = ANY(%(ids)s)
)
SELECT id FROM batches WHERE id IN (SELECT batch_id FROM entries) AND stop_when IS NOT NULL
UNION
SELECT e.batch_id FROM entries e JOIN jobs j ON j.id = e.job_id
WHERE j.stop <> 'never' OR EXISTS (SELECT 1 FROM job_needs d WHERE d.needs_job_id = j.id)
"""

_TAKE = f"""
WITH taken AS (
  DELETE FROM batch_inbox WHERE n = ANY(%(ns)s) AND batch_id = ANY(%(ids)s)
  RETURNING n, batch_id, job_id, trial_id, outcome, is_counted
), ends AS (
  SELECT *, row_number() OVER (PARTITION BY batch_id ORDER BY n) AS place FROM taken WHERE trial_id IS NOT NULL
), totals AS (
  SELECT batch_id, {_COUNT}, count(*) AS events FROM ends GROUP BY batch_id
), progress AS (
  INSERT INTO batch_progress AS p (batch_id, {_NAMES}, last_event)
  SELECT batch_id, {_NAMES}, events FROM totals ORDER BY batch_id
  ON CONFLICT (batch_id) DO UPDATE SET {_ADD}, last_event = p.last_event + excluded.last_event
  RETURNING batch_id, last_event
), job_progress AS (
  INSERT INTO job_progress AS p (job_id, {_NAMES})
  SELECT job_id, {_COUNT} FROM ends GROUP BY job_id ORDER BY job_id
  ON CONFLICT (job_id) DO UPDATE SET {_ADD}
), events AS (
  INSERT INTO batch_events (batch_id, n, kind, trial_id, outcome)
  SELECT e.batch_id, p.last_event - t.events + e.place, 'trial.finished', e.trial_id, e.outcome
  FROM ends e JOIN totals t ON t.batch_id = e.batch_id JOIN progress p ON p.batch_id = e.batch_id
)
SELECT DISTINCT batch_id, job_id FROM taken
"""

_FINISH = f"""
UPDATE batches b SET state = 'finished', finished_at = clock_timestamp()
WHERE b.id = ANY(%(ids)s) AND b.state = 'running' AND NOT b.is_open
  AND b.trial_count = coalesce((SELECT {_SUM} FROM batch_progress p WHERE p.batch_id = b.id), 0)
  AND NOT EXISTS (SELECT 1 FROM batch_inbox i WHERE i.batch_id = b.id)
  AND NOT EXISTS (SELECT 1 FROM trials t WHERE t.batch_id = b.id AND t.state <> 'finished')
RETURNING b.id
"""

_ADD_EVENTS = """
WITH numbered AS (
  INSERT INTO batch_progress AS p (batch_id, last_event) SELECT id, 1 FROM unnest(%(ids)s::uuid[]) AS b(id) ORDER BY id
  ON CONFLICT (batch_id) DO UPDATE SET last_event = p.last_event + 1 RETURNING batch_id, last_event
)
INSERT INTO batch_events (batch_id, n, kind, trial_id, outcome, detail)
SELECT batch_id, last_event, %(kind)s, %(trial_id)s, %(outcome)s, %(detail)s FROM numbered
"""

_LOOK_AT = """
INSERT INTO batch_inbox (batch_id, job_id)
SELECT %(batch_id)s, job_id FROM unnest(%(jobs)s::uuid[]) AS j(job_id)
"""

_ENDED_JOBS = f"""
SELECT j.id, j.batch_id FROM jobs j JOIN job_progress p ON p.job_id = j.id
WHERE j.id = ANY(%(jobs)s) AND j.trial_count = {_SUM} ORDER BY j.id
"""

_ENDED = f"j.trial_count = {_SUM}"
_PASSED = "p.passed > 0 AND (j.stop = 'first_pass' OR p.failed + p.error + p.cancelled = 0)"
_MET = f"""({_ENDED} AND CASE n.outcome
    WHEN 'finished' THEN true
    WHEN 'passed' THEN {_PASSED}
    ELSE NOT ({_PASSED}) AND p.failed + p.error > 0 END)"""

# Edges are looked at anew from the counters, so nothing has to be remembered and the same question may be asked twice.
_EDGES = f"""
SELECT n.job_id, count(*) FILTER (WHERE {_MET} IS NOT TRUE) AS unmet,
       bool_or(coalesce({_ENDED}, false) AND NOT coalesce({_MET}, false)) AS is_impossible
FROM job_needs n JOIN jobs j ON j.id = n.needs_job_id LEFT JOIN job_progress p ON p.job_id = j.id
"""

_CHANGED_NEEDS = f"""
WITH dependents AS MATERIALIZED (SELECT DISTINCT job_id FROM job_needs WHERE needs_job_id = ANY(%(jobs)s)),
edges AS ({_EDGES} WHERE n.job_id IN (SELECT job_id FROM dependents) GROUP BY n.job_id)
SELECT e.job_id, e.unmet, e.is_impossible FROM edges e JOIN jobs d ON d.id = e.job_id
WHERE e.unmet <> d.unmet_needs
   OR ((e.is_impossible OR e.unmet = 0) AND EXISTS (
         SELECT 1 FROM trials t WHERE t.batch_id = d.batch_id AND t.job_id = d.id AND t.state = 'blocked'
           AND t.state_reason = 'needs' AND t.desired = 'run'))
   OR (e.is_impossible AND d.tail_count > 0 AND d.tail_outcome IS NULL)
ORDER BY e.job_id LIMIT %(limit)s
"""

_SET_UNMET = """
UPDATE jobs j SET unmet_needs = c.unmet
FROM unnest(%(jobs)s::uuid[], %(unmet)s::int[]) AS c(job_id, unmet) WHERE j.id = c.job_id
"""

_RECOUNT_UNMET = f"""
WITH edges AS ({_EDGES} WHERE n.job_id IN (SELECT job_id FROM job_needs WHERE needs_job_id = ANY(%(jobs)s))
               GROUP BY n.job_id)
UPDATE jobs j SET unmet_needs = e.unmet FROM edges e WHERE j.id = e.job_id AND j.unmet_needs <> e.unmet
"""

_UNBLOCK = """
UPDATE trials SET
  state = CASE WHEN is_paused THEN 'paused' WHEN cap_labels IS NOT NULL THEN 'blocked' ELSE 'queued' END,
  state_reason = CASE WHEN NOT is_paused AND cap_labels IS NOT NULL THEN 'concurrency' END,
  queued_at = clock_timestamp()
WHERE id IN (SELECT id FROM trials WHERE job_id = ANY(%(jobs)s) AND state = 'blocked' AND state_reason = 'needs'
               AND desired = 'run' ORDER BY id FOR UPDATE)
"""

_STOP_JOBS = """
UPDATE jobs j SET stopped_at = clock_timestamp() FROM job_progress p
WHERE j.id = ANY(%(jobs)s) AND p.job_id = j.id AND j.stopped_at IS NULL
  AND ((j.stop = 'first_pass' AND p.passed > 0) OR (j.stop = 'first_fail' AND p.failed > 0))
RETURNING j.id, j.stop
"""

_STOP_BATCHES = """
UPDATE batches b SET stopped_at = clock_timestamp(), is_open = false, stop_reason = (
  SELECT rule.key FROM jsonb_each_text(b.stop_when) AS rule(key, n)
  WHERE (to_jsonb(p) ->> rule.key)::int >= rule.n::int ORDER BY rule.key LIMIT 1)
FROM batch_progress p
WHERE b.id = ANY(%(ids)s) AND p.batch_id = b.id AND b.stop_when IS NOT NULL AND b.stopped_at IS NULL
  AND EXISTS (SELECT 1 FROM jsonb_each_text(b.stop_when) AS rule(key, n)
              WHERE (to_jsonb(p) ->> rule.key)::int >= rule.n::int)
RETURNING b.id, b.stop_reason, (b.stop_when ->> b.stop_reason)::int AS number
"""


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job all of whose trials are finished."""

    id: UUID
    batch_id: UUID


@dataclass(frozen=True, slots=True)
class NeedChange:
    """A job whose edges stand otherwise than when it was last looked at. is_impossible: one can never be met now."""

    job_id: UUID
    unmet: int
    is_impossible: bool


@dataclass(frozen=True, slots=True)
class StoppedJob:
    """A job whose stop rule has just struck. stop: the rule."""

    id: UUID
    stop: str


@dataclass(frozen=True, slots=True)
class BatchRule:
    """A batch whose stop rule has just struck: so many trials ended with this outcome."""

    id: UUID
    stop_reason: str
    number: int


class BatchProgressRepository(SqlRepository):
    """Statements of the scheduler over the batches of all tenants."""

    def waiting_entries(self, limit: int = PAGE) -> list[tuple[int, UUID]]:
        """The oldest entries of the inbox as (n, batch)."""
        return [(row["n"], row["batch_id"]) for row in self._rows(_WAITING_ENTRIES, {"limit": limit})]

    def lock_batches(self, batch_ids: Sequence[UUID]) -> list[UUID]:
        """Lock the rows of those that nobody else works on; gives them."""
        return [row["id"] for row in self._rows(_LOCK_BATCHES, {"ids": list(batch_ids)})]

    def ruled(self, batch_ids: Sequence[UUID], entries: Sequence[int]) -> list[UUID]:
        """Which of these batches have needs or stop rules that one of these entries may set off."""
        parameters = {"ids": list(batch_ids), "ns": list(entries)}
        return [row["id"] for row in self._rows(_RULED, parameters)]

    def take(self, batch_ids: Sequence[UUID], entries: Sequence[int]) -> list[tuple[UUID, UUID | None]]:
        """Count these entries of these batches; gives (batch, job) of all, each once. Needs their locks."""
        rows = self._rows(_TAKE, {"ids": list(batch_ids), "ns": list(entries)})
        return [(row["batch_id"], row["job_id"]) for row in rows]

    def finish(self, batch_ids: Sequence[UUID]) -> list[UUID]:
        """Finish those that take no more jobs and whose trials are all finished and counted."""
        finished = [row["id"] for row in self._rows(_FINISH, {"ids": list(batch_ids)})]
        self.add_event(finished, "batch.finished")
        return finished

    def add_event(
        self,
        batch_ids: Sequence[UUID],
        kind: str,
        *,
        trial_id: UUID | None = None,
        outcome: str | None = None,
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        """Append an event to each of these batches. Needs their locks."""
        if batch_ids:
            parameters = {"ids": list(batch_ids), "kind": kind, "trial_id": trial_id, "outcome": outcome}
            self._count(_ADD_EVENTS, {**parameters, "detail": None if detail is None else Jsonb(detail)})

    def look_at(self, batch_id: UUID, job_ids: Sequence[UUID | None] = (None,)) -> None:
        """Ask for another look at a batch, and at the jobs that need one of these."""
        self._count(_LOOK_AT, {"batch_id": batch_id, "jobs": list(job_ids)})

    def ended(self, job_ids: Sequence[UUID]) -> list[EndedJob]:
        """Which of these jobs have ended."""
        return [EndedJob(**row) for row in self._rows(_ENDED_JOBS, {"jobs": list(job_ids)})]

    def changed_needs(self, job_ids: Sequence[UUID], *, limit: int) -> list[NeedChange]:
        """Jobs that need one of these and have to be told, at most so many."""
        rows = self._rows(_CHANGED_NEEDS, {"jobs": list(job_ids), "limit": limit})
        return [NeedChange(**row) for row in rows]

    def set_unmet(self, changes: Sequence[NeedChange]) -> None:
        """Write how many edges still hold these jobs up."""
        parameters = {"jobs": [c.job_id for c in changes], "unmet": [c.unmet for c in changes]}
        self._count(_SET_UNMET, parameters)

    def recount_unmet(self, job_ids: Sequence[UUID]) -> None:
        """Count the edges of all jobs that need one of these anew, and move no trial."""
        self._count(_RECOUNT_UNMET, {"jobs": list(job_ids)})

    def unblock(self, job_ids: Sequence[UUID]) -> int:
        """Let the trials of these jobs queue. Under the dispatch lock."""
        return self._count(_UNBLOCK, {"jobs": list(job_ids)})

    def stop_jobs(self, job_ids: Sequence[UUID]) -> list[StoppedJob]:
        """Mark those whose stop rule is met, once; their trials are yet to be ended."""
        return [StoppedJob(**row) for row in self._rows(_STOP_JOBS, {"jobs": list(job_ids)})]

    def stop_batches(self, batch_ids: Sequence[UUID]) -> list[BatchRule]:
        """Mark those whose stop rule is met, once; their trials are yet to be ended."""
        return [BatchRule(**row) for row in self._rows(_STOP_BATCHES, {"ids": list(batch_ids)})]
