"""SQL that ends trials before their time: at once where nothing runs, by a wish to the worker where something does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from models.states import LIVE_ATTEMPT_STATES, sql_list
from repositories.base import SqlRepository

__all__ = ["EarlyEnd", "MetTrial", "TrialEndingRepository"]

_WAITING = "state IN ('blocked', 'paused', 'queued', 'retry_wait')"

# Locked by id, as the dispatcher does, so that the two wait for each other instead of deadlocking.
# One statement, so that a trial that goes from waiting to running or back at this moment is met in either state: the
# row is locked, looked at again, and the CASE decides by what is true then.
_END = f"""
WITH locked AS MATERIALIZED (
  SELECT t.id FROM trials t WHERE {{which}} AND t.state <> 'finished' ORDER BY t.id FOR UPDATE
), hit AS (
  UPDATE trials t SET
    desired = 'cancel',
    cancel_mode = CASE WHEN cancel_mode = 'force' THEN cancel_mode ELSE %(mode)s END,
    cancel_reason = coalesce(cancel_reason, %(reason)s),
    cancel_requested_at = coalesce(cancel_requested_at, clock_timestamp()),
    state = CASE WHEN {_WAITING} THEN 'finished' ELSE state END,
    state_reason = CASE WHEN {_WAITING} THEN %(reason)s ELSE state_reason END,
    outcome = CASE WHEN {_WAITING} THEN %(outcome)s ELSE outcome END,
    failure = CASE WHEN {_WAITING} THEN %(failure)s ELSE failure END,
    finished_at = CASE WHEN {_WAITING} THEN clock_timestamp() ELSE finished_at END
  FROM locked l WHERE t.id = l.id AND t.state <> 'finished'
  RETURNING t.id, t.state = 'finished' AS is_finished
)
SELECT h.id AS trial_id, h.is_finished, a.node_id FROM hit h
LEFT JOIN attempts a ON a.trial_id = h.id AND a.state IN ({sql_list(LIVE_ATTEMPT_STATES)})
"""

_END_TRIALS = _END.format(which="t.id = ANY(%(ids)s)")
_END_JOBS = _END.format(which="t.job_id = ANY(%(ids)s)")
_END_BATCHES = _END.format(which="t.batch_id = ANY(%(ids)s)")
# Only what still waits for its needs: trials that were let go before one of these was tried again go on.
_SKIP_BLOCKED = """
UPDATE trials SET state = 'finished', state_reason = %(reason)s, outcome = %(outcome)s, failure = %(failure)s,
                  finished_at = clock_timestamp()
WHERE id IN (SELECT id FROM trials WHERE job_id = ANY(%(ids)s) AND state = 'blocked' AND state_reason = 'needs'
             ORDER BY id FOR UPDATE)
"""

_END_TAIL = """
UPDATE jobs j SET tail_outcome = %(outcome)s, tail_reason = %(reason)s
WHERE {which} AND j.tail_count > 0 AND j.tail_outcome IS NULL
RETURNING j.tail_count
"""

_END_TAIL_OF_JOBS = _END_TAIL.format(which="j.id = ANY(%(ids)s)")
_END_TAIL_OF_BATCHES = _END_TAIL.format(which="j.batch_id = ANY(%(ids)s)")

# What is gracefully ended and still runs long after its grace is killed: the grace is a limit, not a hope.
_FORCE_OVERDUE = f"""
WITH overdue AS MATERIALIZED (
  SELECT t.id FROM trials t JOIN jobs j ON j.id = t.job_id
  WHERE t.desired = 'cancel' AND t.state IN ('running', 'cancelling') AND t.cancel_mode = 'graceful'
    AND t.cancel_requested_at < clock_timestamp() - make_interval(secs => %(slack)s)
    AND t.cancel_requested_at < clock_timestamp()
        - make_interval(secs => (j.spec -> 'timeouts' ->> 'grace')::float8 + %(slack)s)
  ORDER BY t.id LIMIT 1000 FOR UPDATE OF t SKIP LOCKED
), forced AS (
  UPDATE trials t SET cancel_mode = 'force' FROM overdue o WHERE t.id = o.id RETURNING t.id
)
SELECT f.id AS trial_id, false AS is_finished, a.node_id FROM forced f
LEFT JOIN attempts a ON a.trial_id = f.id AND a.state IN ({sql_list(LIVE_ATTEMPT_STATES)})
"""


@dataclass(frozen=True, slots=True)
class EarlyEnd:
    """What waiting trials end as. reason: also told of those that run. failure: as stored."""

    outcome: str
    reason: str
    failure: Mapping[str, Any]
    mode: str = "graceful"


@dataclass(frozen=True, slots=True)
class MetTrial:
    """A trial that was met unfinished: finished at once, or still running on a node."""

    trial_id: UUID
    is_finished: bool
    node_id: UUID | None


class TrialEndingRepository(SqlRepository):
    """Ends trials of any tenant: the caller has checked whose they are.

    Whoever ends those of jobs or batches holds the lock of the batches, so that no trial is made meanwhile.
    """

    def end_trials(self, trial_ids: Sequence[UUID], end: EarlyEnd) -> list[MetTrial]:
        """End these; gives those that were not finished."""
        return self._end(_END_TRIALS, trial_ids, end)

    def end_jobs(self, job_ids: Sequence[UUID], end: EarlyEnd) -> tuple[list[MetTrial], int]:
        """End all trials of these jobs; gives those that were not finished, and how many have no row yet."""
        return self._end(_END_JOBS, job_ids, end), self._end_tail(_END_TAIL_OF_JOBS, job_ids, end)

    def end_batches(self, batch_ids: Sequence[UUID], end: EarlyEnd) -> tuple[list[MetTrial], int]:
        """End all trials of these batches; gives those that were not finished, and how many have no row yet."""
        return self._end(_END_BATCHES, batch_ids, end), self._end_tail(_END_TAIL_OF_BATCHES, batch_ids, end)

    def skip_blocked(self, job_ids: Sequence[UUID], end: EarlyEnd) -> None:
        """End those trials of these jobs that wait for needs. Under the dispatch lock."""
        self._count(_SKIP_BLOCKED, {"ids": list(job_ids), **_parameters(end)})
        self._end_tail(_END_TAIL_OF_JOBS, job_ids, end)

    def force_overdue(self, *, slack_seconds: float) -> list[MetTrial]:
        """Turn graceful ends into forced ones that are past their grace by so much. Under the dispatch lock."""
        return [MetTrial(**row) for row in self._rows(_FORCE_OVERDUE, {"slack": slack_seconds})]

    def _end(self, sql: str, ids: Sequence[UUID], end: EarlyEnd) -> list[MetTrial]:
        parameters = {"ids": list(ids), "mode": end.mode, **_parameters(end)}
        return [MetTrial(**row) for row in self._rows(sql, parameters)]

    def _end_tail(self, sql: str, ids: Sequence[UUID], end: EarlyEnd) -> int:
        rows = self._rows(sql, {"ids": list(ids), "outcome": end.outcome, "reason": end.reason})
        return sum(row["tail_count"] for row in rows)


def _parameters(end: EarlyEnd) -> dict[str, Any]:
    return {"outcome": end.outcome, "reason": end.reason, "failure": Jsonb(end.failure)}
