"""Grades finished trials again from what is stored of them: outside any sandbox, with another verdict or the same."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from pydantic_core import to_jsonable_python
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from core.blobstore import BlobStore
from core.errors import FailureClass
from core.ids import new_id
from core.logging import get_logger
from repositories.batch_progress import BatchProgressRepository
from repositories.batch_verbs import Target
from repositories.batches import BatchRepository
from repositories.jobs import JobRepository
from repositories.log_chunks import LogChunkRepository
from repositories.regrades import GradeEnd, PendingGrade, RegradeRepository, RegradeWorkRepository
from services.history import missing_batch
from services.jobspec import JobSpec, StepRole, Verdict, verdict_from_json
from services.outcomes import Failure, Grade, StepResult
from services.problems import InvalidFieldsError, Problem
from services.verdicts import grade

__all__ = ["NewRegrade", "RegradeAnswer", "RegradeService", "Regrader"]

log = get_logger(__name__)

_SUPERSEDED = Failure(
    FailureClass.CANCELLED, "cancelled", "a retry took the trial's place before it was graded again"
)
_MAX_FILE_BYTES = 64 << 20
"""A file of results is smaller; what is larger was collected for another purpose."""

_HOLD_SECONDS = 120.0
_MOST_TRIES = 5
"""A stored result that is not graded within its time so often will never be."""

_TOO_SLOW = Failure(
    FailureClass.INFRA,
    "regrade_timeout",
    f"the stored result was not graded within {_HOLD_SECONDS:g} s, {_MOST_TRIES} times; ask for a simpler verdict",
)


@dataclass(frozen=True, slots=True)
class NewRegrade:
    """verdict: None for each job's own. check: says what is wrong with it for a job."""

    verdict: Verdict | None
    check: Callable[[JobSpec], Sequence[Problem]]


@dataclass(frozen=True, slots=True)
class RegradeAnswer:
    """regrading: trials that will be graded. not_gradable: finished ones of which nothing is stored for that."""

    regrading: int
    not_gradable: int


class RegradeService:
    """Wishes of one tenant, inside the caller's transaction."""

    def __init__(self, connection: Connection, tenant_id: int) -> None:
        """Bind to one tenant. connection: the caller begins and commits."""
        self._connection = connection
        self._tenant_id = tenant_id
        self._batches = BatchRepository(connection, tenant_id)
        self._jobs = JobRepository(connection, tenant_id)
        self._regrades = RegradeRepository(connection, tenant_id)

    def request(self, target: Target, wish: NewRegrade) -> RegradeAnswer:
        """Ask for new grades; workers give them soon.

        Raises NotFoundError, and InvalidFieldsError for a verdict that does not suit one of the jobs.
        """
        if self._batches.lock(target.batch_id) is None:
            raise missing_batch(self._connection, self._tenant_id, target.batch_id)
        finished = self._regrades.finished(target)
        gradable = [(trial_id, job_id) for trial_id, job_id, is_gradable in finished if is_gradable]
        self._check({job_id for _, job_id in gradable}, wish)
        if gradable:
            verdict = None if wish.verdict is None else to_jsonable_python(wish.verdict)
            self._regrades.request(new_id(), target.batch_id, [trial_id for trial_id, _ in gradable], verdict)
        return RegradeAnswer(len(gradable), len(finished) - len(gradable))

    def _check(self, job_ids: set[UUID], wish: NewRegrade) -> None:
        if wish.verdict is None:
            return
        problems: list[Problem] = []
        for value in self._jobs.specs(sorted(job_ids)).values():
            spec = JobSpec.from_json(value)
            found = [Problem(p.field, f"job {spec.key!r}: {p.message}") for p in wish.check(spec)]
            problems += found
        if problems:
            raise InvalidFieldsError(problems)


class Regrader:
    """Gives new grades; any number of workers at once."""

    def __init__(self, engine: Engine, blobs: BlobStore) -> None:
        """engine: its connections write events as the worker. blobs: where artifacts lie."""
        self._engine = engine
        self._blobs = blobs

    def regrade_one(self) -> bool:
        """Give one trial its next grade. False: nobody asked for any.

        No transaction is held while it is graded. Whoever takes too long, or dies, has used up one of a few tries.
        """
        with self._engine.begin() as connection:
            repository = RegradeWorkRepository(connection)
            pending = repository.claim(hold_seconds=_HOLD_SECONDS)
            if pending is None:
                return False
            if pending.tries > _MOST_TRIES:
                log.error("regrade_given_up", trial_id=str(pending.trial_id), tries=_MOST_TRIES)
                repository.note_failure(pending, _TOO_SLOW.to_json())
                return True
        try:
            end = _to_end(self._compute(pending))
        except SQLAlchemyError:
            raise
        except Exception as error:
            # The trial keeps what it has. The wish is answered all the same: else every worker would stumble over
            # it.
            log.exception("regrade_failed", trial_id=str(pending.trial_id))
            failure = _failed(error)
            self._settle(pending, lambda c: RegradeWorkRepository(c).note_failure(pending, failure))
            return True
        self._settle(pending, lambda connection: _apply(connection, pending, end))
        return True

    def _settle(self, pending: PendingGrade, action: Callable[[Connection], None]) -> None:
        with self._engine.begin() as connection:
            repository = RegradeWorkRepository(connection)
            # In the order of the verbs: the batch before what belongs to it.
            repository.lock_batch(pending.batch_id)
            if repository.lock(pending):
                action(connection)
            else:
                log.warning("regrade_too_late", trial_id=str(pending.trial_id), tries=pending.tries)

    def _compute(self, pending: PendingGrade) -> Grade:
        spec = JobSpec.from_json(pending.spec)
        if pending.verdict is not None:
            spec = replace(spec, verdict=verdict_from_json(pending.verdict))

        def read_log(step: str) -> bytes:
            with self._engine.begin() as connection:
                return LogChunkRepository(connection).read_step(pending.trial_id, pending.fence, step)

        def read_artifact(path: str) -> bytes | None:
            with self._engine.begin() as connection:
                digest = RegradeWorkRepository(connection).artifact(pending, path)
            if digest is None:
                return None
            with self._blobs.open(digest) as file:
                return file.read(_MAX_FILE_BYTES)

        return grade(spec, [_to_step(step) for step in pending.steps], read_log, read_artifact)


def _apply(connection: Connection, pending: PendingGrade, end: GradeEnd) -> None:
    """Give the grade, count it, and tell of it. Needs the locks of the batch and of the wish."""
    repository = RegradeWorkRepository(connection)
    applied = repository.apply(pending, end)
    if applied is None:
        repository.note_failure(pending, _SUPERSEDED.to_json())
        return
    number, old_outcome = applied
    if old_outcome != end.outcome:
        repository.move_count(pending, old_outcome=old_outcome, outcome=end.outcome)
    repository.note(pending, end, number=number, old_outcome=old_outcome)
    progress = BatchProgressRepository(connection)
    progress.add_event(
        [pending.batch_id],
        "trial.regraded",
        trial_id=pending.trial_id,
        outcome=end.outcome,
        detail={"grade_no": number, "old_outcome": old_outcome},
    )
    # Jobs may wait for how this one ended.
    progress.recount_unmet([pending.job_id])
    progress.look_at(pending.batch_id, [pending.job_id])
    log.info("trial_regraded", trial_id=str(pending.trial_id), outcome=end.outcome, old=old_outcome)


def _failed(error: Exception) -> dict[str, Any]:
    message = f"the stored result could not be graded: {type(error).__name__}"
    return Failure(FailureClass.INFRA, "regrade_failed", message).to_json()


def _to_step(value: dict[str, object]) -> StepResult:
    return StepResult(**{**value, "role": StepRole(str(value["role"]))})  # type: ignore[arg-type] # as it was written


def _to_end(verdict: Grade) -> GradeEnd:
    failure = verdict.failure
    return GradeEnd(
        outcome=verdict.outcome.value,
        reason=failure.code if failure else verdict.outcome.value,
        failure=failure.to_json() if failure else None,
        rewards=dict(verdict.rewards) or None,
        grade=verdict.to_json(),
    )
