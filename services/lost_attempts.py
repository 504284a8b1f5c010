"""What becomes of a trial whose attempt nobody runs any more. One rule for the reaper and for the worker."""

from random import Random
from uuid import UUID

from sqlalchemy import Connection

from core.errors import FailureClass
from core.jsonb import to_jsonb
from models.states import Outcome
from repositories.lost_attempts import LostAttempt, LostAttemptRepository
from services.jobspec import RetryBudget
from services.outcomes import CANCELLED, Failure
from services.retries import Losses, TriesUsed, decide_loss

__all__ = ["give_back_orphan", "reap_ended_sessions", "take_overdue"]

_NODE_LOST = Failure(
    FailureClass.INFRA, "node_lost", "the worker that ran this attempt went away", retryable=True
)
_ORPHANED = Failure(
    FailureClass.INFRA, "orphaned", "the worker held this attempt but did not run it", retryable=True
)
_NOT_STARTED = Failure(
    FailureClass.INFRA,
    "start_timeout",
    "not running within timeouts.start, and its worker did not end it",
    timed_out=True,
    retryable=True,
)
_NOT_ENDED = Failure(
    # Whether the steps took too long or the worker hangs cannot be told from here: ours, until shown otherwise.
    FailureClass.INFRA,
    "worker_stuck",
    "its time was over, and its worker did not end it",
    timed_out=True,
    retryable=True,
)


def reap_ended_sessions(connection: Connection, *, grace_seconds: float, rng: Random) -> int:
    """Move on the trials of all ended sessions; gives how many attempts were lost.

    grace_seconds: after the old lease, for which the next session of the node is waited for.
    """
    repository = LostAttemptRepository(connection)
    lost = repository.lose_with_session(to_jsonb(_NODE_LOST.to_json()), grace_seconds=grace_seconds)
    for attempt in lost:
        _move_on(repository, attempt, _NODE_LOST, rng=rng)
    return len(lost)


def give_back_orphan(
    connection: Connection, trial_id: UUID, fence: int, *, session_id: UUID, rng: Random
) -> bool:
    """Move on a trial that a living session holds without running it. False: it has ended meanwhile."""
    repository = LostAttemptRepository(connection)
    failure = to_jsonb(_ORPHANED.to_json())
    lost = repository.lose_orphan(trial_id, fence, session_id=session_id, failure=failure)
    if lost is None:
        return False
    _move_on(repository, lost, _ORPHANED, rng=rng)
    return True


def take_overdue(connection: Connection, *, settle_seconds: float, rng: Random) -> int:
    """Take from their workers the attempts whose deadlines have long passed; gives how many.

    settle_seconds: before a trial starts again its worker has so long to hear of it, with a heartbeat, and to kill the
    sandbox; if it hears of nothing its lease is over by then, and it has killed all it ran.
    """
    repository = LostAttemptRepository(connection)
    lost = repository.lose_overdue(
        not_started=to_jsonb(_NOT_STARTED.to_json()), not_ended=to_jsonb(_NOT_ENDED.to_json())
    )
    for attempt in lost:
        failure = _NOT_STARTED if attempt.was_starting else _NOT_ENDED
        _move_on(repository, attempt, failure, settle_seconds=settle_seconds, rng=rng)
    return len(lost)


def _move_on(
    repository: LostAttemptRepository,
    lost: LostAttempt,
    failure: Failure,
    *,
    settle_seconds: float = 0.0,
    rng: Random,
) -> None:
    """Cancel, try again, or end; a loss goes back at once and to the head, since it is not the trial's fault."""
    used = TriesUsed(lost.infra_losses, lost.task_retries, tuple(lost.rule_retries or ()))
    nodes = list(lost.lost_before_on)
    if failure is _NODE_LOST:
        nodes.append(lost.node_id)
    policy = RetryBudget.from_json(lost.retry)
    decision, ending = decide_loss(failure, policy, used, Losses(len(nodes), frozenset(nodes)), rng=rng)
    if lost.desired == "cancel":
        ending, outcome = CANCELLED, Outcome.CANCELLED
    elif decision.retry:
        repository.try_again(
            lost,
            reason=failure.code,
            delay_seconds=max(decision.delay_seconds, settle_seconds),
            infra_losses=decision.used.infra_losses,
            task_retries=decision.used.task_retries,
            rule_retries=decision.used.rules,
        )
        return
    else:
        outcome = Outcome.ERROR
    repository.finish(
        lost,
        outcome=outcome.value,
        reason=ending.code,
        failure=to_jsonb(ending.to_json()),
        infra_losses=decision.used.infra_losses,
    )
