"""What becomes of a trial whose attempt nobody runs any more. One rule for the reaper and for the worker."""

from uuid import UUID

from sqlalchemy import Connection

from core.errors import FailureClass
from core.jsonb import to_jsonb
from models.states import Outcome
from repositories.lost_attempts import LostAttempt, LostAttemptRepository
from services.outcomes import CANCELLED, Failure

__all__ = ["give_back_orphan", "reap_ended_sessions"]

_NODE_LOST = Failure(
    FailureClass.INFRA, "node_lost", "the worker that ran this attempt went away", retryable=True
)
_ORPHANED = Failure(
    FailureClass.INFRA, "orphaned", "the worker held this attempt but did not run it", retryable=True
)


def reap_ended_sessions(connection: Connection) -> int:
    """Move on the trials of all ended sessions; gives how many attempts were lost."""
    repository = LostAttemptRepository(connection)
    lost = repository.lose_with_session(to_jsonb(_NODE_LOST.to_json()))
    for attempt in lost:
        _move_on(repository, attempt, _NODE_LOST)
    return len(lost)


def give_back_orphan(connection: Connection, trial_id: UUID, fence: int, *, session_id: UUID) -> bool:
    """Move on a trial that a living session holds without running it. False: it has ended meanwhile."""
    repository = LostAttemptRepository(connection)
    failure = to_jsonb(_ORPHANED.to_json())
    lost = repository.lose_orphan(trial_id, fence, session_id=session_id, failure=failure)
    if lost is None:
        return False
    _move_on(repository, lost, _ORPHANED)
    return True


def _move_on(repository: LostAttemptRepository, lost: LostAttempt, failure: Failure) -> None:
    """Cancel, queue again, or end: at once and at the head, since a loss is not the trial's fault."""
    if lost.desired == "cancel":
        ending, outcome = CANCELLED, Outcome.CANCELLED
    elif lost.infra_losses < lost.retry["infra_max"]:
        repository.requeue(lost, reason=failure.code)
        return
    else:
        ending, outcome = failure, Outcome.ERROR
    repository.finish(lost, outcome=outcome.value, reason=ending.code, failure=to_jsonb(ending.to_json()))
