"""Batches and jobs: accept, look, list, cancel."""

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from sqlalchemy import Connection

from core.blobstore import BlobStore
from core.errors import NotFoundError, QuotaExceededError
from core.ids import new_id
from core.tracing import current_traceparent
from models.states import Outcome, TrialState
from repositories.batches import BatchRepository, BatchRow, CancelledTrial, NewJobRow, NewTrials
from repositories.jobs import JobRepository, JobRow
from repositories.tenants import TenantRepository
from services.batch_webhooks import BatchWebhook, BatchWebhookService
from services.blobs import BlobService
from services.idempotency import IdempotencyService, RequestIdentity
from services.jobspec import JobSpec, digest_of
from services.outcomes import CANCELLED
from services.problems import InvalidFieldsError, Problem

__all__ = ["BatchService", "BatchSummary", "Cancellation", "Created", "JobSummary", "NewBatch", "TrialCounts"]


@dataclass(frozen=True, slots=True)
class NewBatch:
    """A batch whose specs are checked. files: inputs that came inline, by digest; the caller stores them first.

    max_running, max_per_label: its caps, on trials that run at a time; by label name for jobs that share its value.
    """

    name: str | None
    labels: Mapping[str, str]
    priority: int
    implicit: bool
    jobs: tuple[JobSpec, ...]
    files: Mapping[str, bytes] = field(default_factory=dict)
    max_running: int | None = None
    max_per_label: Mapping[str, int] = field(default_factory=dict)
    webhook: BatchWebhook | None = None


@dataclass(frozen=True, slots=True)
class Created:
    """replayed: the same request made this batch before."""

    batch_id: UUID
    replayed: bool


@dataclass(frozen=True, slots=True)
class TrialCounts:
    """How many trials are where, and how the finished ones ended; zeros are left out, the order is the enum's."""

    total: int
    by_state: Mapping[TrialState, int]
    by_outcome: Mapping[Outcome, int]


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """A batch with its counts."""

    row: BatchRow
    counts: TrialCounts


@dataclass(frozen=True, slots=True)
class JobSummary:
    """A job with its counts."""

    row: JobRow
    counts: TrialCounts


@dataclass(frozen=True, slots=True)
class Cancellation:
    """What a cancel met. nodes: where trials still run that were told to stop."""

    cancelled: int
    cancelling: int
    nodes: Mapping[UUID, list[UUID]]


class BatchService:
    """Batches and jobs of one tenant, inside the caller's transaction."""

    def __init__(
        self, connection: Connection, tenant_id: int, *, store: BlobStore, default_runtime: str = "local"
    ) -> None:
        """store: for inputs. default_runtime: of jobs that name none."""
        self._tenant_id = tenant_id
        self._default_runtime = default_runtime
        self._batches = BatchRepository(connection, tenant_id)
        self._jobs = JobRepository(connection, tenant_id)
        self._tenants = TenantRepository(connection)
        self._blobs = BlobService(connection, tenant_id, store)
        self._keys = IdempotencyService(connection, tenant_id)
        self._webhooks = BatchWebhookService(connection, tenant_id)

    def create(self, batch: NewBatch, identity: RequestIdentity | None = None) -> Created:
        """Accept a batch: after the commit it will run, whatever crashes.

        Raises InvalidFieldsError for blobs the tenant does not have, QuotaExceededError, IdempotencyConflictError.
        """
        batch_id = new_id()
        # First, so that of many equal requests at once all but one wait here and then answer with its batch.
        earlier = self._keys.claim(identity, batch_id) if identity is not None else None
        if earlier is not None:
            return Created(earlier, replayed=True)
        self.check(batch)
        trial_count = sum(spec.trials.count for spec in batch.jobs)
        if trial_count > self._tenants.queue_room(self._tenant_id):
            raise QuotaExceededError("too many trials are queued: wait until some have run")
        self._insert(batch_id, batch, trial_count)
        if batch.webhook is not None:
            self._webhooks.attach(batch_id, batch.webhook)
        context = current_traceparent()
        if context is not None:
            self._batches.set_traceparent(batch_id, context)
        return Created(batch_id, replayed=False)

    def check(self, batch: NewBatch) -> None:
        """Take over a batch's files, and check that it names only what the tenant has.

        Raises InvalidFieldsError for blobs, InvalidRequestError for a secret of a webhook.
        """
        self._blobs.grant_all(batch.files)
        self._check_blobs(batch)
        if batch.webhook is not None:
            self._webhooks.check(batch.webhook)

    def get(self, batch_id: UUID) -> BatchSummary:
        """Look one up. Raises NotFoundError."""
        row = self.get_row(batch_id)
        return BatchSummary(
            row, _to_counts(row.trial_count, self._batches.counts([batch_id]).get(batch_id, []))
        )

    def page(self, *, before: UUID | None, limit: int) -> list[BatchSummary]:
        """List batches, newest first, older than `before`."""
        rows = self._batches.page(before=before, limit=limit)
        counts = self._batches.counts([row.id for row in rows])
        return [BatchSummary(row, _to_counts(row.trial_count, counts.get(row.id, []))) for row in rows]

    def get_job(self, job_id: UUID) -> JobSummary:
        """Look one up, with its spec. Raises NotFoundError."""
        row = self._jobs.find(job_id)
        if row is None:
            raise NotFoundError("job", job_id)
        return self._with_counts([row])[0]

    def page_jobs(self, *, before: UUID | None, limit: int) -> list[JobSummary]:
        """List jobs of all batches, newest first, older than `before`."""
        return self._with_counts(self._jobs.page(before=before, limit=limit))

    def page_jobs_of(self, batch_id: UUID, *, after: UUID | None, limit: int) -> list[JobSummary]:
        """List the jobs of a batch in their order. Raises NotFoundError for the batch."""
        self.get_row(batch_id)
        return self._with_counts(self._jobs.page_of_batch(batch_id, after=after, limit=limit))

    def get_row(self, batch_id: UUID) -> BatchRow:
        """Look up the batch alone. Raises NotFoundError."""
        row = self._batches.find(batch_id)
        if row is None:
            raise NotFoundError("batch", batch_id)
        return row

    def cancel(self, batch_id: UUID, *, mode: str) -> Cancellation:
        """Cancel what is not finished; again is no error. mode: graceful or force. Raises NotFoundError."""
        self.get_row(batch_id)
        return _to_cancellation(self._batches.cancel(batch_id, mode=mode, failure=CANCELLED.to_json()))

    def cancel_trial(self, trial_id: UUID, *, mode: str) -> Cancellation:
        """Cancel one trial of this tenant; the caller has looked it up. One that is finished stays as it is."""
        return _to_cancellation(self._batches.cancel_trial(trial_id, mode=mode, failure=CANCELLED.to_json()))

    def _with_counts(self, rows: Sequence[JobRow]) -> list[JobSummary]:
        counts = self._jobs.counts([row.id for row in rows])
        return [JobSummary(row, _to_counts(row.trial_count, counts.get(row.id, []))) for row in rows]

    def _check_blobs(self, batch: NewBatch) -> None:
        used = {item.blob for spec in batch.jobs for item in spec.inputs if item.blob is not None}
        unknown = self._blobs.unknown(used)
        if unknown:
            raise InvalidFieldsError(list(_blob_problems(batch, unknown)))

    def _insert(self, batch_id: UUID, batch: NewBatch, trial_count: int) -> None:
        # Sorted, so that ids ascend with the order of the request and lists by id are lists in that order.
        job_ids = sorted(new_id() for _ in batch.jobs)
        trial_ids = sorted(new_id() for _ in range(trial_count))
        jobs: list[NewJobRow] = []
        trials: list[NewTrials] = []
        first = 0
        for job_id, spec in zip(job_ids, batch.jobs, strict=True):
            jobs.append(_to_job_row(job_id, spec))
            caps = _cap_labels(batch, spec)
            trials.append(
                _to_trials(job_id, spec, first=first, default_runtime=self._default_runtime, cap_labels=caps)
            )
            first += spec.trials.count
        self._batches.insert(
            batch_id,
            name=batch.name,
            labels=batch.labels,
            priority=batch.priority,
            implicit=batch.implicit,
            max_running=batch.max_running,
            max_per_label=batch.max_per_label,
            jobs=jobs,
            trials=trials,
            trial_ids=trial_ids,
        )


def _to_job_row(job_id: UUID, spec: JobSpec) -> NewJobRow:
    body = spec.to_json()
    return NewJobRow(
        id=job_id,
        key=spec.key,
        kind=spec.kind,
        digest=digest_of(body),
        labels=spec.labels,
        spec=json.dumps(body),
        trial_count=spec.trials.count,
    )


def _cap_labels(batch: NewBatch, spec: JobSpec) -> dict[str, str] | None:
    """Give the job's labels that the batch's caps look at; None if it has no caps."""
    if batch.max_running is None and not batch.max_per_label:
        return None
    return {name: spec.labels[name] for name in sorted(batch.max_per_label) if name in spec.labels}


def _to_trials(
    job_id: UUID, spec: JobSpec, *, first: int, default_runtime: str, cap_labels: Mapping[str, str] | None
) -> NewTrials:
    return NewTrials(
        job_id=job_id,
        count=spec.trials.count,
        first=first,
        seed=spec.trials.seed,
        priority=spec.priority,
        queue_seconds=spec.timeouts.queue,
        runtime=spec.runtime or default_runtime,
        cpu_millicores=spec.resources.cpu_millicores,
        memory_bytes=spec.resources.memory_bytes,
        gpu=spec.resources.gpu,
        queue=spec.queue,
        preemptible=spec.preemptible,
        node_labels=spec.node_labels,
        max_cpu_seconds=spec.resources.cpu_millicores / 1000 * spec.timeouts.total,
        cap_labels=cap_labels,
    )


def _blob_problems(batch: NewBatch, unknown: Collection[str]) -> list[Problem]:
    found = []
    for job_number, spec in enumerate(batch.jobs):
        prefix = "" if batch.implicit else f"jobs[{job_number}]."
        for number, item in enumerate(spec.inputs):
            if item.blob in unknown:
                found.append(
                    Problem(f"{prefix}inputs[{number}].blob", "no such blob: store it with POST /v1/blobs")
                )
    return found


def _to_counts(total: int, rows: Sequence[tuple[str, str | None, int]]) -> TrialCounts:
    by_state: Counter[str] = Counter()
    by_outcome: Counter[str] = Counter()
    for state, outcome, number in rows:
        by_state[state] += number
        if outcome is not None:
            by_outcome[outcome] += number
    return TrialCounts(
        total,
        {state: by_state[state] for state in TrialState if state in by_state},
        {outcome: by_outcome[outcome] for outcome in Outcome if outcome in by_outcome},
    )


def _to_cancellation(met: Sequence[CancelledTrial]) -> Cancellation:
    nodes: dict[UUID, list[UUID]] = {}
    for trial in met:
        if trial.node_id is not None:
            nodes.setdefault(trial.node_id, []).append(trial.trial_id)
    finished = sum(trial.is_finished for trial in met)
    return Cancellation(cancelled=finished, cancelling=len(met) - finished, nodes=nodes)
