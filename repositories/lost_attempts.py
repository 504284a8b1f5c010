"""SQL of attempts that nobody runs any more: lost with their session, or orphaned within a living one."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from models.states import LIVE_ATTEMPT_STATES, sql_list
from repositories.base import SqlRepository

__all__ = ["LostAttempt", "LostAttemptRepository"]

_LIVE = f"state IN ({sql_list(LIVE_ATTEMPT_STATES)})"

_REMOVED_AND_LOST = """, removed AS (
  UPDATE sandboxes b SET state = 'removed', removed_at = clock_timestamp(), end_reason = 'node_lost'
  FROM lost l WHERE b.trial_id = l.trial_id AND b.fence = l.fence AND b.state <> 'removed'
)
SELECT t.id AS trial_id, t.fence, t.desired, t.infra_losses, j.spec -> 'retry' AS retry
FROM lost l JOIN trials t ON t.id = l.trial_id AND t.fence = l.fence JOIN jobs j ON j.id = t.job_id
WHERE t.state IN ('running', 'cancelling')
"""

_LOSE_WITH_SESSION = f"""
WITH lost AS (
  UPDATE attempts a
  SET state = 'lost', finished_at = clock_timestamp(), outcome = 'error', failure = %(failure)s::jsonb
  FROM worker_sessions s
  WHERE a.session_id = s.id AND s.ended_at IS NOT NULL AND a.{_LIVE}
  RETURNING a.trial_id, a.fence
){_REMOVED_AND_LOST}"""

# The session lives on, so the reaper would never look at this attempt.
_LOSE_ORPHAN = f"""
WITH lost AS (
  UPDATE attempts SET state = 'lost', finished_at = clock_timestamp(), outcome = 'error', failure = %(failure)s::jsonb
  WHERE trial_id = %(trial_id)s AND fence = %(fence)s AND session_id = %(session_id)s AND {_LIVE}
  RETURNING trial_id, fence
){_REMOVED_AND_LOST}"""

_REQUEUE = """
UPDATE trials SET state = 'queued', state_reason = %(reason)s, infra_losses = infra_losses + 1,
                  queued_at = clock_timestamp()
WHERE id = %(trial_id)s AND fence = %(fence)s AND state = 'running'
"""

_FINISH = """
UPDATE trials SET state = 'finished', state_reason = %(reason)s, outcome = %(outcome)s, failure = %(failure)s::jsonb,
                  infra_losses = infra_losses + 1, finished_at = clock_timestamp()
WHERE id = %(trial_id)s AND fence = %(fence)s AND state IN ('running', 'cancelling')
"""


@dataclass(frozen=True, slots=True)
class LostAttempt:
    """A trial whose attempt was lost, and what decides on its next try. retry: the job's budget, as stored."""

    trial_id: UUID
    fence: int
    desired: str
    infra_losses: int
    retry: dict[str, Any]


class LostAttemptRepository(SqlRepository):
    """Marks attempts lost and moves their trials on. Failures are JSON texts."""

    def lose_with_session(self, failure: str) -> list[LostAttempt]:
        """Mark the live attempts of ended sessions."""
        return [LostAttempt(**row) for row in self._rows(_LOSE_WITH_SESSION, {"failure": failure})]

    def lose_orphan(
        self, trial_id: UUID, fence: int, *, session_id: UUID, failure: str
    ) -> LostAttempt | None:
        """Mark one attempt that this session holds but does not run; None if it has ended meanwhile."""
        parameters = {"trial_id": trial_id, "fence": fence, "session_id": session_id, "failure": failure}
        row = self._row(_LOSE_ORPHAN, parameters)
        return None if row is None else LostAttempt(**row)

    def requeue(self, lost: LostAttempt, *, reason: str) -> None:
        """Give the trial its next try."""
        self._count(_REQUEUE, {"trial_id": lost.trial_id, "fence": lost.fence, "reason": reason})

    def finish(self, lost: LostAttempt, *, outcome: str, reason: str, failure: str) -> None:
        """End the trial."""
        parameters = {"trial_id": lost.trial_id, "fence": lost.fence}
        self._count(_FINISH, {**parameters, "outcome": outcome, "reason": reason, "failure": failure})
