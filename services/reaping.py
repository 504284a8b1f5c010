"""Ends what nobody owns any more: lapsed sessions, lost attempts, trials past their deadline, done batches."""

import json
from typing import Any

from sqlalchemy import Engine

from core.errors import FailureClass
from core.logging import get_logger
from models.states import Outcome
from repositories.dispatch import DispatchRepository, LostAttempt

__all__ = ["Reaper"]

log = get_logger(__name__)


def _failure(failure_class: FailureClass, code: str, message: str) -> str:
    return json.dumps({"class": failure_class, "code": code, "message": message, "retryable": False})


_NODE_LOST = _failure(FailureClass.INFRA, "node_lost", "the worker that ran this attempt went away")
_CANCELLED = _failure(FailureClass.CANCELLED, "cancelled", "cancelled on request")
_QUEUE_TIMEOUT = _failure(FailureClass.QUOTA, "queue_timeout", "not started within timeouts.queue")
_TOTAL_TIMEOUT = _failure(FailureClass.TASK, "total_timeout", "not finished within timeouts.total")


class Reaper:
    """Moves on what its owner cannot. Only the database's clock is asked."""

    def __init__(self, engine: Engine, *, lease_grace_seconds: float) -> None:
        """lease_grace_seconds: how long after its lapse a session is still left alone."""
        self._engine = engine
        self._grace = lease_grace_seconds

    def reap(self, *, lapsed_sessions: bool = True) -> int:
        """Requeue or end the trials of dead sessions; gives how many attempts were lost.

        lapsed_sessions False: only sessions that were ended on purpose count. The scheduler asks for that during
        the first lease time after it took over: workers that could not renew in a database outage are not dead.
        """
        with self._engine.begin() as connection:
            repository = DispatchRepository(connection)
            repository.lock()
            if lapsed_sessions:
                ended = repository.end_lapsed_sessions(grace_seconds=self._grace)
                if ended:
                    log.warning("sessions_lapsed", count=ended)
            lost = repository.lose_attempts(_NODE_LOST)
            for attempt in lost:
                _move_on(repository, attempt)
        if lost:
            log.warning("attempts_lost", count=len(lost))
        return len(lost)

    def sweep(self) -> None:
        """Promote what is due, expire and cancel what waits, close finished batches."""
        with self._engine.begin() as connection:
            repository = DispatchRepository(connection)
            repository.lock()
            repository.promote_due()
            repository.expire(queue_failure=_QUEUE_TIMEOUT, total_failure=_TOTAL_TIMEOUT)
            repository.cancel_waiting(_CANCELLED)
            repository.finish_batches()


def _move_on(repository: DispatchRepository, lost: LostAttempt) -> None:
    retry: dict[str, Any] = lost.retry
    if lost.desired == "cancel":
        outcome, reason, failure = Outcome.CANCELLED, "cancelled", _CANCELLED
    elif lost.infra_losses < retry["infra_max"]:
        # At once and at the head of the queue: waiting would punish the trial for the loss of a node.
        repository.requeue_lost(lost)
        return
    else:
        outcome, reason, failure = Outcome.ERROR, "node_lost", _NODE_LOST
    repository.finish_lost(lost, outcome=outcome, reason=reason, failure=failure)
