"""Grades finished trials again from what is stored of them: outside any sandbox, with another verdict or the same."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from pydantic_core import to_jsonable_python
from sqlalchemy import Connection, Engine

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
        """Give one trial its next grade. False: nobody asked for any."""
        with self._engine.begin() as connection:
            repository = RegradeWorkRepository(connection)
            pending = repository.claim()
            if pending is None:
                return False
            try:
                end = _to_end(self._compute(connection, pending))
            except Exception as error:
                # The trial keeps what it has. The wish is answered all the same: else every worker would stumble over
                # it for ever.
                log.exception("regrade_failed", trial_id=str(pending.trial_id))
                repository.note_failure(pending, _failed(error))
                return True
            repository.lock_batch(pending.batch_id)
            applied = repository.apply(pending, end)
            if applied is None:
                repository.note_failure(pending, _SUPERSEDED.to_json())
                return True
            number, old_outcome = applied
            if old_outcome != end.outcome:
                repository.move_count(pending, old_outcome=old_outcome, outcome=end.outcome)
            repository.note(pending, end, number=number, old_outcome=old_outcome)
            progress = BatchProgressRepository(connection)
            detail = {"grade_no": number, "old_outcome": old_outcome}
            progress.add_event(
                [pending.batch_id],
                "trial.regraded",
                trial_id=pending.trial_id,
                outcome=end.outcome,
                detail=detail,
            )
            # Jobs may wait for how this one ended.
            progress.recount_unmet([pending.job_id])
            progress.look_at(pending.batch_id, [pending.job_id])
        log.info("trial_regraded", trial_id=str(pending.trial_id), outcome=end.outcome, old=old_outcome)
        return True

    def _compute(self, connection: Connection, pending: PendingGrade) -> Grade:
        spec = JobSpec.from_json(pending.spec)
        if pending.verdict is not None:
            spec = replace(spec, verdict=verdict_from_json(pending.verdict))
        logs, files = LogChunkRepository(connection), RegradeWorkRepository(connection)

        def read_artifact(path: str) -> bytes | None:
            digest = files.artifact(pending, path)
            if digest is None:
                return None
            with self._blobs.open(digest) as file:
                return file.read(_MAX_FILE_BYTES)

        return grade(
            spec,
            [_to_step(step) for step in pending.steps],
            lambda step: logs.read_step(pending.trial_id, pending.fence, step),
            read_artifact,
        )


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
