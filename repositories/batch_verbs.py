"""SQL of the verbs on batches, jobs and trials: pause, resume, retry, close. Each under the lock of the batch's row."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from models.states import Outcome
from repositories.tenant_base import TenantSqlRepository
from repositories.trial_columns import COPIED

__all__ = ["WHICH_TRIALS", "BatchVerbRepository", "Scope", "Target"]

Scope = Literal["batch", "job", "trial"]
"""What a verb is about."""

WHICH_TRIALS: dict[Scope, str] = {
    "batch": "t.batch_id = %(id)s",
    "job": "t.batch_id = %(batch_id)s AND t.job_id = %(id)s",
    "trial": "t.id = %(id)s",
}
"""Conditions on `trials t` that find those of a target."""

_WHICH_JOBS: dict[Scope, str] = {"batch": "j.batch_id = %(id)s", "job": "j.id = %(id)s", "trial": "false"}

_MARK_CANCELLED = """
UPDATE batches SET cancel_requested_at = coalesce(cancel_requested_at, clock_timestamp()), is_open = false
WHERE id = %(id)s AND tenant_id = %(tenant_id)s AND state = 'running'
"""

_CLOSE = """
UPDATE batches SET is_open = false WHERE id = %(id)s AND tenant_id = %(tenant_id)s AND is_open
"""

# Only what is queued changes its state: what waits for something else goes to `paused` instead of to the queue when
# that comes, and what runs goes on.
_PAUSE = """
WITH locked AS MATERIALIZED (
  SELECT t.id FROM trials t
  WHERE {which} AND t.tenant_id = %(tenant_id)s AND t.state <> 'finished' ORDER BY t.id FOR UPDATE
)
UPDATE trials t SET is_paused = true, state = CASE WHEN t.state = 'queued' THEN 'paused' ELSE t.state END,
                    state_reason = CASE WHEN t.state = 'queued' THEN NULL ELSE t.state_reason END
FROM locked l WHERE t.id = l.id AND t.state <> 'finished'
RETURNING t.state IN ('running', 'cancelling') AS is_running
"""

_RESUME = """
WITH locked AS MATERIALIZED (
  SELECT t.id FROM trials t
  WHERE {which} AND t.tenant_id = %(tenant_id)s AND t.state <> 'finished' AND t.is_paused ORDER BY t.id FOR UPDATE
)
UPDATE trials t SET
  is_paused = false,
  queued_at = CASE WHEN t.state = 'paused' THEN clock_timestamp() ELSE t.queued_at END,
  state_reason = CASE WHEN t.state = 'paused' AND t.cap_labels IS NOT NULL THEN 'concurrency'
                      WHEN t.state = 'paused' THEN NULL ELSE t.state_reason END,
  state = CASE WHEN t.state = 'paused' AND t.cap_labels IS NOT NULL THEN 'blocked'
               WHEN t.state = 'paused' THEN 'queued' ELSE t.state END
FROM locked l WHERE t.id = l.id AND t.is_paused
RETURNING t.id
"""

_PAUSE_BATCH = """
UPDATE batches SET paused_at = coalesce(paused_at, clock_timestamp())
WHERE id = %(id)s AND tenant_id = %(tenant_id)s AND state = 'running'
"""

_PAUSE_JOB = """
UPDATE jobs j SET paused_at = clock_timestamp() WHERE {which} AND j.tenant_id = %(tenant_id)s AND j.paused_at IS NULL
"""

# The clock of trials without a row stands still as well: their deadline is put off by the time of the pause.
_RESUME_JOBS = """
UPDATE jobs j SET paused_at = NULL,
  queue_deadline = j.queue_deadline + (clock_timestamp() - least(j.paused_at, b.paused_at))
FROM batches b
WHERE {which} AND b.id = j.batch_id AND j.tenant_id = %(tenant_id)s
  AND (j.paused_at IS NOT NULL OR b.paused_at IS NOT NULL)
  AND (j.tail_count > 0 OR j.paused_at IS NOT NULL)
"""

_RESUME_BATCH = "UPDATE batches SET paused_at = NULL WHERE id = %(id)s AND tenant_id = %(tenant_id)s"

_TAIL = """
SELECT coalesce(sum(j.tail_count), 0)::int AS n FROM jobs j
WHERE {which} AND j.tenant_id = %(tenant_id)s AND j.tail_count > 0 AND j.tail_outcome IS NULL
"""

_RETRYABLE = """
SELECT t.id, t.job_id FROM trials t
WHERE {which} AND t.tenant_id = %(tenant_id)s AND t.state = 'finished' AND t.superseded_by IS NULL
  AND t.outcome = ANY(%(outcomes)s)
ORDER BY t.id FOR UPDATE
"""

_REVIVE_TAIL = """
UPDATE jobs j SET tail_outcome = NULL, tail_reason = NULL
WHERE {which} AND j.tenant_id = %(tenant_id)s AND j.tail_count > 0 AND j.tail_outcome = ANY(%(outcomes)s)
RETURNING j.tail_count
"""

_UNCOUNT = ", ".join(f"{name} = p.{name} - d.{name}" for name in Outcome)
_DROPPED = ", ".join(f"count(*) FILTER (WHERE t.outcome = '{name}') AS {name}" for name in Outcome)

# An end that nobody has counted yet is not to be counted any more; one that was is taken off the counters.
_SUPERSEDE = f"""
WITH pairs AS MATERIALIZED (
  SELECT * FROM unnest(%(old)s::uuid[], %(new)s::uuid[]) AS p(old_id, new_id)
), old AS (
  UPDATE trials t SET superseded_by = p.new_id FROM pairs p WHERE t.id = p.old_id
  RETURNING t.id, t.job_id, t.batch_id, t.outcome
), uncounted AS (
  UPDATE batch_inbox i SET is_counted = false FROM pairs p WHERE i.trial_id = p.old_id RETURNING i.trial_id
), counted AS (
  SELECT * FROM old t WHERE NOT EXISTS (SELECT 1 FROM uncounted u WHERE u.trial_id = t.id)
), of_batch AS (
  SELECT batch_id, {_DROPPED} FROM counted t GROUP BY batch_id
), of_jobs AS (
  SELECT job_id, {_DROPPED} FROM counted t GROUP BY job_id
), batch AS (
  UPDATE batch_progress p SET {_UNCOUNT} FROM of_batch d WHERE p.batch_id = d.batch_id
)
UPDATE job_progress p SET {_UNCOUNT} FROM of_jobs d WHERE p.job_id = d.job_id
"""

_RETRY = f"""
INSERT INTO trials (id, index, seed, retry_of, state, state_reason, is_paused, paused_at, queue_deadline,
                    {", ".join(COPIED)})
SELECT p.new_id, t.index, t.seed, t.id,
  CASE WHEN j.unmet_needs > 0 THEN 'blocked' WHEN h.is_paused THEN 'paused'
       WHEN t.cap_labels IS NOT NULL THEN 'blocked' ELSE 'queued' END,
  CASE WHEN j.unmet_needs > 0 THEN 'needs' WHEN h.is_paused THEN NULL
       WHEN t.cap_labels IS NOT NULL THEN 'concurrency' END,
  h.is_paused, CASE WHEN h.is_paused AND j.unmet_needs = 0 THEN clock_timestamp() END,
  clock_timestamp() + make_interval(secs => h.queue_seconds), {", ".join(f"t.{name}" for name in COPIED)}
FROM unnest(%(old)s::uuid[], %(new)s::uuid[]) WITH ORDINALITY AS p(old_id, new_id, n)
  JOIN trials t ON t.id = p.old_id
  JOIN jobs j ON j.id = t.job_id
  JOIN (SELECT k.id, (k.spec -> 'timeouts' ->> 'queue')::float8 AS queue_seconds,
               k.paused_at IS NOT NULL OR b.paused_at IS NOT NULL AS is_paused
        FROM jobs k JOIN batches b ON b.id = k.batch_id
        WHERE k.id = ANY(%(jobs)s) AND k.tenant_id = %(tenant_id)s OFFSET 0) h ON h.id = j.id
ORDER BY p.n
"""

_REOPEN = """
UPDATE batches SET state = 'running', finished_at = NULL, cancel_requested_at = NULL
WHERE id = %(id)s AND tenant_id = %(tenant_id)s
"""

_NEEDED = """
SELECT DISTINCT needs_job_id FROM job_needs WHERE job_id = ANY(%(jobs)s)
"""


@dataclass(frozen=True, slots=True)
class Target:
    """What a verb is about: the batch, or one job or trial of it."""

    scope: Scope
    id: UUID
    batch_id: UUID


class BatchVerbRepository(TenantSqlRepository):
    """Verbs of one tenant. The caller holds the lock of the target's batch."""

    def mark_cancelled(self, batch_id: UUID) -> None:
        """Note the wish and take no more jobs."""
        self._mine_count(_MARK_CANCELLED, {"id": batch_id})

    def close(self, batch_id: UUID) -> bool:
        """Take no more jobs. False: it took none already."""
        return self._mine_count(_CLOSE, {"id": batch_id}) == 1

    def pause(self, target: Target) -> tuple[int, int]:
        """Hold back what is not finished; gives how many wait and how many run on."""
        if target.scope == "batch":
            self._mine_count(_PAUSE_BATCH, {"id": target.id})
        if target.scope == "job":
            self._mine_count(_PAUSE_JOB.format(which=_WHICH_JOBS["job"]), {"id": target.id})
        rows = self._mine(_PAUSE.format(which=WHICH_TRIALS[target.scope]), _parameters(target))
        running = sum(row["is_running"] for row in rows)
        return len(rows) - running + self._tail(target), running

    def resume(self, target: Target) -> int:
        """Let go what was paused; gives how many trials that are."""
        parameters = _parameters(target)
        tail = 0
        if self._mine_count(_RESUME_JOBS.format(which=_WHICH_JOBS[target.scope]), parameters):
            tail = self._tail(target)
        if target.scope == "batch":
            self._mine_count(_RESUME_BATCH, {"id": target.id})
        return len(self._mine(_RESUME.format(which=WHICH_TRIALS[target.scope]), parameters)) + tail

    def retryable(self, target: Target, outcomes: Sequence[str]) -> list[tuple[UUID, UUID]]:
        """Lock finished trials with one of these outcomes that count; gives (trial, job) by id."""
        parameters = {**_parameters(target), "outcomes": list(outcomes)}
        rows = self._mine(_RETRYABLE.format(which=WHICH_TRIALS[target.scope]), parameters)
        return [(row["id"], row["job_id"]) for row in rows]

    def revive_tail(self, target: Target, outcomes: Sequence[str]) -> int:
        """Let trials run that were ended before they had a row; gives how many."""
        parameters = {**_parameters(target), "outcomes": list(outcomes)}
        rows = self._mine(_REVIVE_TAIL.format(which=_WHICH_JOBS[target.scope]), parameters)
        return sum(row["tail_count"] for row in rows)

    def supersede(self, old: Sequence[UUID], new: Sequence[UUID]) -> None:
        """Let others count in the place of these trials; they are made by `make_retries`, next."""
        self._count(_SUPERSEDE, {"old": list(old), "new": list(new)})

    def make_retries(self, old: Sequence[UUID], new: Sequence[UUID], job_ids: Sequence[UUID]) -> None:
        """Make the trials that take the place of these. job_ids: those of their jobs."""
        self._mine_count(_RETRY, {"old": list(old), "new": list(new), "jobs": list(job_ids)})

    def reopen(self, batch_id: UUID) -> None:
        """Let a batch run that may have been finished or cancelled. It stays closed."""
        self._mine_count(_REOPEN, {"id": batch_id})

    def needed_by(self, job_ids: Sequence[UUID]) -> list[UUID]:
        """Which jobs these need."""
        return [row["needs_job_id"] for row in self._rows(_NEEDED, {"jobs": list(job_ids)})]

    def _tail(self, target: Target) -> int:
        which = _WHICH_JOBS[target.scope]
        return int(self._mine(_TAIL.format(which=which), _parameters(target))[0]["n"])


def _parameters(target: Target) -> dict[str, UUID]:
    return {"id": target.id, "batch_id": target.batch_id}
