"""From what services give to what the wire shows."""

from collections.abc import Sequence

from api.schemas.batches import (
    BatchView,
    CancelView,
    CountsView,
    JobDetail,
    JobView,
    RegradeView,
    SubmittedBatchView,
    SubmittedJobView,
)
from api.schemas.convert import to_wire, verdict_to_wire
from api.schemas.dead_letters import DeadLetterView
from api.schemas.logs import BlobView
from api.schemas.trials import (
    ArtifactView,
    AttemptView,
    FailureView,
    GradeView,
    LogView,
    StepView,
    TestSetView,
    TestsView,
    TrialDetailView,
    TrialView,
)
from core.blobstore import StoredBlob
from repositories.artifacts import ArtifactRow
from repositories.dead_letters import DeadLetterRow
from repositories.regrades import GradeRow
from repositories.trials_read import AttemptRow, TrialRow
from services.batch_verbs import Cancellation
from services.batches import BatchSummary, JobSummary, TrialCounts
from services.dead_letters import state_of
from services.jobspec import JobSpec, verdict_from_json
from services.problems import Problem
from services.regrades import RegradeAnswer
from services.trials import TrialDetails

__all__ = [
    "to_artifact_view",
    "to_attempt_view",
    "to_batch_view",
    "to_blob_view",
    "to_cancel_view",
    "to_dead_letter_view",
    "to_job_detail",
    "to_job_view",
    "to_regrade_view",
    "to_submitted_batch",
    "to_submitted_job",
    "to_trial_detail",
    "to_trial_view",
]


def to_batch_view(summary: BatchSummary) -> BatchView:
    """Show a batch."""
    row = summary.row
    return BatchView.model_validate(
        {
            "id": row.id,
            "name": row.name,
            "labels": row.labels,
            "priority": row.priority,
            "concurrency": {"max": row.max_running, "per_label": row.max_per_label},
            "state": row.state,
            "implicit": row.implicit,
            "open": row.is_open,
            "paused": row.paused_at is not None,
            "cancel_requested": row.cancel_requested_at is not None,
            "stopped": row.stop_reason,
            "jobs": row.job_count,
            "trials": _counts(summary.counts),
            "created_at": row.created_at,
            "finished_at": row.finished_at,
        }
    )


def to_submitted_batch(summary: BatchSummary, warnings: Sequence[Problem]) -> SubmittedBatchView:
    """Show a batch to which jobs were just submitted."""
    view = to_batch_view(summary).model_dump()
    return SubmittedBatchView.model_validate({**view, "warnings": _warnings(warnings)})


def to_submitted_job(summary: JobSummary, warnings: Sequence[Problem]) -> SubmittedJobView:
    """Show a job that was just submitted."""
    view = to_job_detail(summary).model_dump()
    return SubmittedJobView.model_validate({**view, "warnings": _warnings(warnings)})


def _warnings(problems: Sequence[Problem]) -> list[dict[str, str]]:
    return [{"field": problem.field, "message": problem.message} for problem in problems]


def to_job_view(summary: JobSummary) -> JobView:
    """Show a job without its spec."""
    return JobView.model_validate(_job_fields(summary))


def to_job_detail(summary: JobSummary) -> JobDetail:
    """Show a job with its spec."""
    spec = JobSpec.from_json(summary.row.spec or {})
    return JobDetail.model_validate({**_job_fields(summary), "spec": to_wire(spec)})


def to_cancel_view(done: Cancellation) -> CancelView:
    """Show what a cancel did."""
    return CancelView(cancelled=done.cancelled, cancelling=done.cancelling)


def to_regrade_view(answer: RegradeAnswer) -> RegradeView:
    """Show what a regrade will do."""
    return RegradeView(regrading=answer.regrading, not_gradable=answer.not_gradable)


def to_trial_view(row: TrialRow) -> TrialView:
    """Show a trial."""
    return TrialView.model_validate(_trial_fields(row))


def to_trial_detail(details: TrialDetails) -> TrialDetailView:
    """Show a trial with its attempts."""
    attempts = [to_attempt_view(attempt) for attempt in details.attempts]
    grades = [_to_grade_view(row) for row in details.grades]
    return TrialDetailView.model_validate(
        {**_trial_fields(details.row), "attempts": attempts, "grades": grades}
    )


def to_attempt_view(row: AttemptRow) -> AttemptView:
    """Show an attempt."""
    return AttemptView.model_validate(
        {
            "id": row.id,
            "trial_id": row.trial_id,
            "number": row.number,
            "state": row.state,
            "phase": row.phase,
            "node": row.node_name,
            "outcome": row.outcome,
            "failure": _failure(row.failure),
            "steps": [StepView.model_validate(step) for step in row.steps or []],
            "tests": _tests(row.grade),
            "usage": row.usage,
            "log": LogView(
                bytes=row.log_bytes, truncated_bytes=row.log_truncated_bytes, closed=row.log_closed
            ),
            "created_at": row.created_at,
            "claimed_at": row.claimed_at,
            "started_at": row.started_at,
            "finished_at": row.finished_at,
        }
    )


def to_artifact_view(row: ArtifactRow) -> ArtifactView:
    """Show an artifact."""
    return ArtifactView(
        path=row.path, digest=row.digest, size_bytes=row.size_bytes, created_at=row.created_at
    )


def to_dead_letter_view(row: DeadLetterRow) -> DeadLetterView:
    """Show a dead letter."""
    return DeadLetterView(
        trial_id=row.trial_id,
        batch_id=row.batch_id,
        job_id=row.job_id,
        job_key=row.job_key,
        state=state_of(row),
        code=row.code,
        failure=FailureView.model_validate(row.failure),
        attempts=row.attempts,
        nodes_lost=row.nodes_lost,
        created_at=row.created_at,
        replayed_as=row.replayed_as,
        replayed_at=row.replayed_at,
        discarded_at=row.discarded_at,
    )


def to_blob_view(blob: StoredBlob) -> BlobView:
    """Show a blob."""
    return BlobView(digest=blob.digest, size_bytes=blob.size_bytes)


def _counts(counts: TrialCounts) -> CountsView:
    return CountsView(
        total=counts.total,
        by_state={state.value: n for state, n in counts.by_state.items()},
        by_outcome={outcome.value: n for outcome, n in counts.by_outcome.items()},
    )


def _job_fields(summary: JobSummary) -> dict[str, object]:
    row = summary.row
    return {
        "id": row.id,
        "batch_id": row.batch_id,
        "key": row.key,
        "kind": row.kind,
        "digest": row.digest,
        "labels": row.labels,
        "paused": row.is_paused,
        "trials": _counts(summary.counts),
        "created_at": row.created_at,
    }


def _trial_fields(row: TrialRow) -> dict[str, object]:
    return {
        "id": row.id,
        "batch_id": row.batch_id,
        "job_id": row.job_id,
        "job_key": row.job_key,
        "index": row.index,
        "seed": row.seed,
        "state": row.state,
        "state_reason": row.state_reason,
        "outcome": row.outcome,
        "failure": _failure(row.failure),
        "rewards": row.rewards,
        "priority": row.priority,
        "runtime": row.runtime,
        "paused": row.is_paused,
        "cancel_requested": row.desired == "cancel",
        "cancel_reason": row.cancel_reason,
        "retry_of": row.retry_of,
        "superseded_by": row.superseded_by,
        "grade_no": row.grade_no,
        "attempts_used": row.attempts_used,
        "infra_losses": row.infra_losses,
        "task_retries": row.task_retries,
        "replay_of": row.replay_of,
        "created_at": row.created_at,
        "started_at": row.started_at,
        "finished_at": row.finished_at,
    }


def _to_grade_view(row: GradeRow) -> GradeView:
    return GradeView.model_validate(
        {
            "number": row.number,
            "old_outcome": row.old_outcome,
            "outcome": row.outcome,
            "failure": _failure(row.failure),
            "tests": _tests(row.grade),
            "verdict": None if row.verdict is None else verdict_to_wire(verdict_from_json(row.verdict)),
            "requested_at": row.requested_at,
            "graded_at": row.graded_at,
        }
    )


def _failure(value: dict[str, object] | None) -> FailureView | None:
    return None if value is None else FailureView.model_validate(value)


def _tests(grade: dict[str, object] | None) -> TestsView | None:
    if grade is None:
        return None

    def named(name: str) -> TestSetView | None:
        value = grade.get(name)
        return None if value is None else TestSetView.model_validate(value)

    counts = grade.get("test_counts") or {}
    return TestsView.model_validate(
        {
            "counts": counts,
            "fail_to_pass": named("fail_to_pass"),
            "pass_to_pass": named("pass_to_pass"),
        }
    )
