"""The report of a stored batch."""

from uuid import UUID

from sqlalchemy import Connection

from repositories.batches import BatchRepository
from repositories.trials_read import AttemptRow
from services.history import missing_batch
from services.outcomes import Failure, Outcome
from services.report_formats import RenderedReport, ReportFormat, render_report
from services.reports import AttemptResult, TrialResult, build_report
from services.trials import TrialDetails, TrialService

__all__ = ["batch_report"]


def batch_report(
    connection: Connection, tenant_id: int, batch_id: UUID, form: ReportFormat
) -> RenderedReport:
    """Sum up a tenant's batch as it is now. Raises NotFoundError."""
    batches = BatchRepository(connection, tenant_id)
    batch = batches.find(batch_id)
    if batch is None:
        raise missing_batch(connection, tenant_id, batch_id)
    trials = [_to_result(details) for details in TrialService(connection, tenant_id).all_of_batch(batch_id)]
    report = build_report(
        trials,
        batch_id=str(batch_id),
        name=batch.name or str(batch_id),
        unmade=batches.unmade(batch_id),
        biased=batches.is_biased(batch_id),
    )
    return render_report(form, report, trials)


def _to_result(details: TrialDetails) -> TrialResult:
    row = details.row
    duration = None
    if row.started_at is not None and row.finished_at is not None:
        duration = (row.finished_at - row.started_at).total_seconds()
    return TrialResult(
        trial_id=str(row.id),
        job_key=row.job_key,
        index=row.index,
        outcome=None if row.outcome is None else Outcome(row.outcome),
        failure=None if row.failure is None else Failure.from_json(row.failure),
        labels=row.labels,
        rewards=row.rewards or {},
        attempts=row.attempts_used,
        infra_losses=row.infra_losses,
        duration_s=duration,
        attempt_results=[_to_attempt(attempt) for attempt in details.attempts],
    )


def _to_attempt(row: AttemptRow) -> AttemptResult:
    return AttemptResult(
        number=row.number,
        state=row.state,
        outcome=None if row.outcome is None else Outcome(row.outcome),
        failure=None if row.failure is None else Failure.from_json(row.failure),
        node=row.node_name,
        started_at=row.started_at,
        finished_at=row.finished_at,
    )
