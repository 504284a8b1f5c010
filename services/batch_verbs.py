"""What is done to batches, jobs and trials that were accepted: cancel, pause, resume, retry, close.

Every verb holds the lock of its batch's row, as the scheduler does when it counts ends, resolves needs and makes
trials: so each meets all trials there are, and none is made or counted behind its back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection

from core.errors import ConflictError, NotFoundError
from core.ids import new_id
from models.states import BatchState
from repositories.batch_progress import BatchProgressRepository
from repositories.batch_verbs import BatchVerbRepository, Target
from repositories.batches import BatchRepository, LockedBatch
from repositories.jobs import JobRepository
from repositories.trial_ending import EarlyEnd, MetTrial, TrialEndingRepository
from repositories.trials_read import TrialReadRepository
from services.early_ends import cancel_end
from services.history import missing_batch, missing_trial
from services.queue_room import QueueRoom

__all__ = ["BatchVerbService", "Cancellation", "Pause"]


@dataclass(frozen=True, slots=True)
class Cancellation:
    """What a cancel met. nodes: where trials still run that were told to stop."""

    cancelled: int
    cancelling: int
    nodes: Mapping[UUID, list[UUID]]


@dataclass(frozen=True, slots=True)
class Pause:
    """paused: trials that will not start. running: those that run on."""

    paused: int
    running: int


class BatchVerbService:
    """Verbs of one tenant, inside the caller's transaction. All raise NotFoundError for what is not the tenant's."""

    def __init__(self, connection: Connection, tenant_id: int) -> None:
        """Bind to one tenant. connection: the caller begins and commits."""
        self._connection = connection
        self._tenant_id = tenant_id
        self._batches = BatchRepository(connection, tenant_id)
        self._jobs = JobRepository(connection, tenant_id)
        self._trials = TrialReadRepository(connection, tenant_id)
        self._verbs = BatchVerbRepository(connection, tenant_id)
        self._ending = TrialEndingRepository(connection)
        self._progress = BatchProgressRepository(connection)
        self._room = QueueRoom(connection, tenant_id)

    def batch(self, batch_id: UUID) -> Target:
        """Aim at a batch."""
        return Target("batch", batch_id, batch_id)

    def job(self, job_id: UUID) -> Target:
        """Aim at a job."""
        row = self._jobs.find(job_id)
        if row is None:
            raise NotFoundError("job", job_id)
        return Target("job", job_id, row.batch_id)

    def trial(self, trial_id: UUID) -> Target:
        """Aim at a trial."""
        row = self._trials.find(trial_id)
        if row is None:
            raise missing_trial(self._connection, self._tenant_id, trial_id)
        return Target("trial", trial_id, row.batch_id)

    def cancel(self, target: Target, *, mode: str) -> Cancellation:
        """Cancel what is not finished; again is no error. mode: graceful or force. A batch takes no more jobs then."""
        self._lock(target)
        end = cancel_end(mode)
        if target.scope == "batch":
            self._verbs.mark_cancelled(target.id)
            self._progress.look_at(target.id)
        met, tail = self._end(target, end)
        return _to_cancellation(met, tail)

    def pause(self, target: Target) -> Pause:
        """Let nothing of it start until it is resumed. What runs goes on; clocks of what waits stand still."""
        self._lock(target)
        return Pause(*self._verbs.pause(target))

    def resume(self, target: Target) -> int:
        """Undo every pause in it; gives how many trials that lets go. Nothing that has ended is run again."""
        self._lock(target)
        return self._verbs.resume(target)

    def close(self, batch_id: UUID) -> None:
        """Take no more jobs: an open batch then ends with its last trial. Again is no error."""
        target = self.batch(batch_id)
        self._lock(target)
        if self._verbs.close(batch_id):
            self._progress.look_at(batch_id)

    def retry(self, target: Target, outcomes: Sequence[str]) -> int:
        """Run finished trials with these outcomes again; gives how many.

        Each gets a new trial that counts in its place: same job, index and seed, its budgets unused. A batch that was
        finished runs again. Raises QuotaExceededError.
        """
        batch = self._lock(target)
        found = self._verbs.retryable(target, outcomes)
        revived = self._verbs.revive_tail(target, outcomes)
        if target.scope == "trial" and not found:
            raise ConflictError(
                "the trial is not finished, was retried before, or its outcome is not one of `outcomes`"
            )
        if not found and not revived:
            return 0
        self._room.refuse_early(len(found))
        if batch.state == BatchState.FINISHED:
            self._progress.add_event([batch.id], "batch.reopened")
        self._verbs.reopen(batch.id)
        self._run_again(batch.id, found)
        self._room.hold(len(found) + revived)
        return len(found) + revived

    def _run_again(self, batch_id: UUID, found: Sequence[tuple[UUID, UUID]]) -> None:
        old = [trial_id for trial_id, _ in found]
        jobs = sorted({job_id for _, job_id in found})
        new = sorted(new_id() for _ in found)
        self._verbs.supersede(old, new)
        # Jobs that have ended have not any more: first what needs them, then what they need.
        self._progress.recount_unmet(jobs)
        self._verbs.make_retries(old, new, jobs)
        needed = self._verbs.needed_by(jobs)
        if needed:
            self._progress.look_at(batch_id, needed)

    def _lock(self, target: Target) -> LockedBatch:
        batch = self._batches.lock(target.batch_id)
        if batch is None:
            raise missing_batch(self._connection, self._tenant_id, target.batch_id)
        return batch

    def _end(self, target: Target, end: EarlyEnd) -> tuple[list[MetTrial], int]:
        match target.scope:
            case "batch":
                return self._ending.end_batches([target.id], end)
            case "job":
                return self._ending.end_jobs([target.id], end)
            case "trial":
                return self._ending.end_trials([target.id], end), 0


def _to_cancellation(met: Sequence[MetTrial], tail: int) -> Cancellation:
    nodes: dict[UUID, list[UUID]] = {}
    for trial in met:
        if trial.node_id is not None:
            nodes.setdefault(trial.node_id, []).append(trial.trial_id)
    finished = sum(trial.is_finished for trial in met)
    return Cancellation(cancelled=finished + tail, cancelling=len(met) - finished, nodes=nodes)
