"""Trials that the infrastructure could not bring to a verdict: look at them, run them again, put them away."""

from dataclasses import dataclass, replace
from typing import Literal
from uuid import UUID

from sqlalchemy import Connection

from core.errors import ConflictError, NotFoundError
from repositories.dead_letters import DeadLetterRepository, DeadLetterRow
from services.batches import BatchService, NewBatch, NewJobs
from services.idempotency import RequestIdentity
from services.jobspec import JobSpec, TrialPlan

__all__ = ["DeadLetterService", "DeadLetterState", "Replay", "state_of"]

DeadLetterState = Literal["open", "replayed", "discarded"]


@dataclass(frozen=True, slots=True)
class Replay:
    """The trial that runs a dead one again, with a job and a batch of its own. is_new: made by this very call.

    job_id, batch_id: None once they are archived.
    """

    trial_id: UUID
    job_id: UUID | None
    batch_id: UUID | None
    is_new: bool


class DeadLetterService:
    """Dead letters of one tenant, inside the caller's transaction."""

    def __init__(self, connection: Connection, tenant_id: int, batches: BatchService) -> None:
        """batches: of the same tenant and connection; replays are submitted through it, like any other job."""
        self._letters = DeadLetterRepository(connection, tenant_id)
        self._batches = batches

    def page(self, state: DeadLetterState | None, *, before: int | None, limit: int) -> list[DeadLetterRow]:
        """List them, newest first, older than the one with the number `before`. state None: all."""
        return self._letters.page(state, before=before, limit=limit)

    def get(self, trial_id: UUID) -> DeadLetterRow:
        """Look one up by its trial. Raises NotFoundError."""
        row = self._letters.find(trial_id)
        if row is None:
            raise NotFoundError("dead letter of trial", trial_id)
        return row

    def replay(
        self, trial_id: UUID, *, force: bool = False, identity: RequestIdentity | None = None
    ) -> Replay:
        """Submit the dead trial's job again, for this one sample, as a lone job; the dead trial stays as it is.

        A dead letter is replayed once: another call gives the same replay, unless force asks for one more. identity:
        makes calls with force the same, too. Raises NotFoundError, ConflictError if it was discarded (and not force)
        or its job is archived, and what a submission raises: QuotaExceededError, InvalidFieldsError for inputs that
        are gone, IdempotencyConflictError.
        """
        row = self._locked(trial_id)
        if row.replayed_as is not None and not force:
            return self._replay(row.replayed_as, is_new=False)
        if row.discarded_at is not None and not force:
            raise ConflictError("this dead letter was discarded: replay it with force")
        spec = self._letters.spec_of(trial_id)
        if spec is None:
            raise ConflictError("the job of this dead letter is archived: submit it again yourself")
        created = self._batches.create(_as_lone_job(JobSpec.from_json(spec)), identity)
        replayed_as = self._letters.link(trial_id, batch_id=created.batch_id)
        self._letters.mark_replayed(trial_id, replayed_as)
        return self._replay(replayed_as, is_new=not created.replayed)

    def discard(self, trial_id: UUID) -> DeadLetterRow:
        """Put it away; again is no error. Raises NotFoundError, ConflictError if it was replayed."""
        row = self._locked(trial_id)
        if row.replayed_as is not None:
            raise ConflictError("this dead letter was replayed: there is nothing left to discard")
        self._letters.discard(trial_id)
        return self.get(trial_id)

    def _replay(self, trial_id: UUID, *, is_new: bool) -> Replay:
        job_id, batch_id = self._letters.place_of(trial_id) or (None, None)
        return Replay(trial_id, job_id, batch_id, is_new=is_new)

    def _locked(self, trial_id: UUID) -> DeadLetterRow:
        row = self._letters.lock(trial_id)
        if row is None:
            raise NotFoundError("dead letter of trial", trial_id)
        return row


def state_of(row: DeadLetterRow) -> DeadLetterState:
    """Say what was done about it. `open`: nothing so far."""
    if row.replayed_at is not None:
        return "replayed"
    return "open" if row.discarded_at is None else "discarded"


def _as_lone_job(spec: JobSpec) -> NewBatch:
    # What it needed has ended, or it would not have run.
    lone = replace(spec, trials=TrialPlan(count=1, seed=spec.trials.seed), needs=())
    jobs = NewJobs((lone,), ("",))
    return NewBatch(name=None, labels=spec.labels, priority=spec.priority, implicit=True, jobs=jobs)
