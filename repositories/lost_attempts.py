"""SQL of attempts that nobody runs any more: lost with their session, orphaned within a living one, overdue."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from models.states import LIVE_ATTEMPT_STATES, sql_list
from repositories.base import SqlRepository

__all__ = ["LostAttempt", "LostAttemptRepository"]

_LIVE = f"state IN ({sql_list(LIVE_ATTEMPT_STATES)})"

# Earlier losses are counted from the attempts themselves; the present one is not among them, since a statement does
# not see its own changes.
# A live sandbox that has run is not made anew: nobody can give it back what was in it.
_REMOVED_AND_LOST = """, removed AS (
  UPDATE sandboxes b SET state = 'removed', removed_at = clock_timestamp(), end_reason = 'node_lost'
  FROM lost l WHERE b.trial_id = l.trial_id AND b.fence = l.fence AND b.state <> 'removed'
)
SELECT t.id AS trial_id, t.fence, l.node_id, t.desired, t.infra_losses, t.task_retries, t.rule_retries,
       CASE WHEN j.kind = 'session' AND NOT l.was_starting THEN jsonb_set(j.spec -> 'retry', '{infra_max}', '0')
            ELSE j.spec -> 'retry' END AS retry, l.was_starting,
       ARRAY(SELECT p.node_id FROM attempts p WHERE p.trial_id = l.trial_id AND p.fence < l.fence
             AND p.state = 'lost' AND p.failure ->> 'code' = 'node_lost') AS lost_before_on
FROM lost l JOIN trials t ON t.id = l.trial_id AND t.fence = l.fence JOIN jobs j ON j.id = t.job_id
WHERE t.state IN ('running', 'cancelling')
ORDER BY t.id
"""

_LOSE_WITH_SESSION = f"""
WITH lost AS (
  UPDATE attempts a
  SET state = 'lost', finished_at = clock_timestamp(), outcome = 'error', failure = %(failure)s::jsonb
  FROM worker_sessions s
  WHERE a.session_id = s.id AND s.ended_at IS NOT NULL AND a.{_LIVE}
    AND (s.adoptable_until IS NULL OR s.adoptable_until + make_interval(secs => %(grace)s) < clock_timestamp())
  RETURNING a.trial_id, a.fence, a.node_id, a.started_at IS NULL AS was_starting
){_REMOVED_AND_LOST}"""

# The session lives on, so the reaper would never look at this attempt.
_LOSE_ORPHAN = f"""
WITH lost AS (
  UPDATE attempts SET state = 'lost', finished_at = clock_timestamp(), outcome = 'error', failure = %(failure)s::jsonb
  WHERE trial_id = %(trial_id)s AND fence = %(fence)s AND session_id = %(session_id)s AND {_LIVE}
  RETURNING trial_id, fence, node_id, started_at IS NULL AS was_starting
){_REMOVED_AND_LOST}"""

# Of living sessions, too: their worker had all its time, and has not written an end. An attempt that is only
# dispatched is not here, it is recalled.
_LOSE_OVERDUE = f"""
WITH due AS MATERIALIZED (
  SELECT trial_id, fence, state FROM attempts
  WHERE {_LIVE} AND state <> 'dispatched' AND overdue_at < clock_timestamp()
  ORDER BY trial_id LIMIT 1000 FOR UPDATE SKIP LOCKED
), lost AS (
  UPDATE attempts a
  SET state = 'lost', finished_at = clock_timestamp(), outcome = 'error',
      failure = CASE WHEN d.state = 'starting' THEN %(not_started)s::jsonb ELSE %(not_ended)s::jsonb END
  FROM due d WHERE a.trial_id = d.trial_id AND a.fence = d.fence
  RETURNING a.trial_id, a.fence, a.node_id, d.state = 'starting' AS was_starting
){_REMOVED_AND_LOST}"""

# A live sandbox has so long again to find a node: the loss has used up the time it had.
_TRY_AGAIN = """
UPDATE trials SET
  state = CASE WHEN %(delay)s::float8 > 0 THEN 'retry_wait' WHEN is_paused THEN 'paused' ELSE 'queued' END,
  state_reason = %(reason)s,
  run_at = CASE WHEN %(delay)s::float8 > 0 THEN clock_timestamp() + make_interval(secs => %(delay)s) END,
  queued_at = clock_timestamp(),
  queue_deadline = CASE WHEN slots = 0 THEN clock_timestamp() + (queue_deadline - queued_at) ELSE queue_deadline END,
  infra_losses = %(infra_losses)s, task_retries = %(task_retries)s,
  rule_retries = %(rule_retries)s::int[]
WHERE id = %(trial_id)s AND fence = %(fence)s AND state = 'running'
"""

_FINISH = """
UPDATE trials SET state = 'finished', state_reason = %(reason)s, outcome = %(outcome)s, failure = %(failure)s::jsonb,
                  infra_losses = %(infra_losses)s, finished_at = clock_timestamp()
WHERE id = %(trial_id)s AND fence = %(fence)s AND state IN ('running', 'cancelling')
"""


@dataclass(frozen=True, slots=True)
class LostAttempt:
    """A trial whose attempt was lost, and what decides on its next try.

    retry: the job's policy, as stored. infra_losses, task_retries, rule_retries: used before this loss. lost_before_on:
    the nodes that were lost under it earlier, one entry a loss. was_starting: it was not running yet.
    """

    trial_id: UUID
    fence: int
    node_id: UUID
    desired: str
    infra_losses: int
    task_retries: int
    rule_retries: list[int] | None
    retry: dict[str, Any]
    was_starting: bool
    lost_before_on: list[UUID]


class LostAttemptRepository(SqlRepository):
    """Marks attempts lost and moves their trials on. Failures are JSON texts."""

    def lose_with_session(self, failure: str, *, grace_seconds: float) -> list[LostAttempt]:
        """Mark the live attempts of ended sessions.

        Those that the next session of the node may adopt are left to it for so long after the old lease.
        """
        parameters = {"failure": failure, "grace": grace_seconds}
        return [LostAttempt(**row) for row in self._rows(_LOSE_WITH_SESSION, parameters)]

    def lose_orphan(
        self, trial_id: UUID, fence: int, *, session_id: UUID, failure: str
    ) -> LostAttempt | None:
        """Mark one attempt that this session holds but does not run; None if it has ended meanwhile."""
        parameters = {"trial_id": trial_id, "fence": fence, "session_id": session_id, "failure": failure}
        row = self._row(_LOSE_ORPHAN, parameters)
        return None if row is None else LostAttempt(**row)

    def lose_overdue(self, *, not_started: str, not_ended: str) -> list[LostAttempt]:
        """Mark attempts whose worker let all deadlines pass. Failures: of those not running yet, and of others."""
        parameters = {"not_started": not_started, "not_ended": not_ended}
        return [LostAttempt(**row) for row in self._rows(_LOSE_OVERDUE, parameters)]

    def try_again(
        self,
        lost: LostAttempt,
        *,
        reason: str,
        delay_seconds: float,
        infra_losses: int,
        task_retries: int,
        rule_retries: Sequence[int],
    ) -> None:
        """Give the trial its next try, at once or after a delay. The rest: what it has used now."""
        self._count(
            _TRY_AGAIN,
            {
                "trial_id": lost.trial_id,
                "fence": lost.fence,
                "reason": reason,
                "delay": delay_seconds,
                "infra_losses": infra_losses,
                "task_retries": task_retries,
                "rule_retries": list(rule_retries),
            },
        )

    def finish(
        self, lost: LostAttempt, *, outcome: str, reason: str, failure: str, infra_losses: int
    ) -> None:
        """End the trial."""
        self._count(
            _FINISH,
            {
                "trial_id": lost.trial_id,
                "fence": lost.fence,
                "outcome": outcome,
                "reason": reason,
                "failure": failure,
                "infra_losses": infra_losses,
            },
        )
