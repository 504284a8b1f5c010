"""Batches and jobs: accept, append, look, list. What is done to them afterwards: `batch_verbs`."""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from core.blobstore import BlobStore
from core.errors import ConflictError, NotFoundError
from core.ids import new_id
from core.tracing import current_traceparent
from models.states import Outcome, TrialState
from repositories.batch_progress import BatchProgressRepository
from repositories.batches import (
    BatchRepository,
    BatchRow,
    LockedBatch,
    NewBatchRow,
    NewJobRow,
    NewNeed,
    NewTrials,
)
from repositories.jobs import JobRepository, JobRow
from repositories.nodes import NodeReadRepository
from runtimes.base import LACKS
from services.batch_webhooks import BatchWebhook, BatchWebhookService
from services.blobs import BlobService
from services.fan_out import split_first_page
from services.history import missing_batch
from services.idempotency import IdempotencyService, RequestIdentity
from services.jobspec import JobSpec, digest_of
from services.problems import InvalidFieldsError, Problem
from services.queue_room import QueueRoom
from services.sandbox_caps import DEFAULT_CAPS, SandboxCaps
from services.submission_warnings import submission_warnings

__all__ = [
    "MAX_TRIALS",
    "BatchService",
    "BatchSummary",
    "Caps",
    "Created",
    "JobSummary",
    "NewBatch",
    "NewJobs",
    "TrialCounts",
]

MAX_TRIALS = 100_000
"""Trials of one batch, over all its jobs and appends: its report is made in one piece."""


@dataclass(frozen=True, slots=True)
class NewJobs:
    """Jobs whose specs are checked.

    fields: where each was named in the request, as in `jobs[3]`; "" for a lone job. files: inputs that came inline, by
    digest; the caller stores them first.
    """

    specs: tuple[JobSpec, ...]
    fields: tuple[str, ...]
    files: Mapping[str, bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, *specs: JobSpec) -> "NewJobs":
        """Jobs as they stand in a list of a request."""
        return cls(specs, tuple(f"jobs[{number}]" for number in range(len(specs))))

    def place(self, number: int, name: str) -> str:
        """Spell a field of one of the jobs."""
        return f"{self.fields[number]}.{name}" if self.fields[number] else name


@dataclass(frozen=True, slots=True)
class Caps:
    """How many trials of a batch may run at a time: of all, and by label name of jobs that share its value."""

    max_running: int | None = None
    max_per_label: Mapping[str, int] = field(default_factory=dict)

    def labels_of(self, spec: JobSpec) -> dict[str, str] | None:
        """Give the job's labels that these caps look at; None if there are no caps."""
        if self.max_running is None and not self.max_per_label:
            return None
        return {name: spec.labels[name] for name in sorted(self.max_per_label) if name in spec.labels}


@dataclass(frozen=True, slots=True)
class NewBatch:
    """A batch that is checked. defaults: as sent, for jobs appended later. stop_when: outcome to number, or None.

    caps: on trials that run at a time.
    """

    name: str | None
    labels: Mapping[str, str]
    priority: int
    implicit: bool
    jobs: NewJobs
    is_open: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)
    stop_when: Mapping[str, int] | None = None
    caps: Caps = Caps()
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


class BatchService:
    """Batches and jobs of one tenant, inside the caller's transaction."""

    def __init__(
        self,
        connection: Connection,
        tenant_id: int,
        *,
        store: BlobStore,
        default_runtime: str = "local",
        caps: SandboxCaps = DEFAULT_CAPS,
    ) -> None:
        """store: for inputs. default_runtime: of jobs that name none. caps: on what a job's sandbox may ask for."""
        self._connection = connection
        self._tenant_id = tenant_id
        self._default_runtime = default_runtime
        self._caps = caps
        self._batches = BatchRepository(connection, tenant_id)
        self._jobs = JobRepository(connection, tenant_id)
        self._room = QueueRoom(connection, tenant_id)
        self._blobs = BlobService(connection, tenant_id, store)
        self._keys = IdempotencyService(connection, tenant_id)
        self._webhooks = BatchWebhookService(connection, tenant_id)

    def create(self, batch: NewBatch, identity: RequestIdentity | None = None) -> Created:
        """Accept a batch: after the commit it will run, whatever crashes.

        Raises InvalidFieldsError for blobs the tenant does not have and for limits above the installation's,
        QuotaExceededError, IdempotencyConflictError.
        """
        batch_id = new_id()
        # First, so that of many equal requests at once all but one wait here and then answer with its batch.
        earlier = self._keys.claim(identity, batch_id) if identity is not None else None
        if earlier is not None:
            return Created(earlier, replayed=True)
        self.check(batch)
        row = NewBatchRow(
            id=batch_id,
            name=batch.name,
            labels=batch.labels,
            priority=batch.priority,
            implicit=batch.implicit,
            max_running=batch.caps.max_running,
            max_per_label=batch.caps.max_per_label,
            is_open=batch.is_open,
            defaults=batch.defaults if batch.is_open else None,
            stop_when=batch.stop_when,
        )
        trials = sum(spec.trials.count for spec in batch.jobs.specs)
        self._room.refuse_early(trials)
        self._batches.insert(row, jobs=len(batch.jobs.specs), trials=trials)
        self._insert_jobs(batch_id, batch.jobs, first_ordinal=0, known={}, is_paused=False, caps=batch.caps)
        if batch.webhook is not None:
            self._webhooks.attach(batch_id, batch.webhook)
        context = current_traceparent()
        if context is not None:
            self._batches.set_traceparent(batch_id, context)
        self._room.hold(trials)
        return Created(batch_id, replayed=False)

    def check(self, batch: NewBatch) -> None:
        """Take over a batch's files, and check that it asks only for what the tenant has and the installation gives.

        Raises InvalidFieldsError for blobs and limits, InvalidRequestError for a secret of a webhook.
        """
        self._refuse_excesses(batch.jobs)
        self._take_files(batch.jobs)
        if batch.webhook is not None:
            self._webhooks.check(batch.webhook)

    def warnings(self, jobs: NewJobs) -> list[Problem]:
        """Say which of the jobs no node could start now, however empty: they are accepted, and wait."""
        nodes = NodeReadRepository(self._connection).capacities()
        return [
            Problem(jobs.place(number, name), message)
            for number, name, message in submission_warnings(
                jobs.specs, nodes, default_runtime=self._default_runtime
            )
        ]

    def append(self, batch_id: UUID, jobs: NewJobs, identity: RequestIdentity | None = None) -> Created:
        """Add jobs to an open batch, all or none.

        Raises NotFoundError, ConflictError for a batch that takes no more, InvalidFieldsError for keys it has, for
        needs and blobs it or the tenant has not and for limits above the installation's, QuotaExceededError,
        IdempotencyConflictError.
        """
        earlier = self._keys.claim(identity, batch_id) if identity is not None else None
        if earlier is not None:
            return Created(earlier, replayed=True)
        batch = self._batches.lock(batch_id)
        if batch is None:
            raise missing_batch(self._connection, self._tenant_id, batch_id)
        if not batch.is_open:
            raise ConflictError(_why_closed(batch))
        used = {spec.key for spec in jobs.specs} | {need.job for spec in jobs.specs for need in spec.needs}
        known = self._batches.jobs_by_key(batch_id, sorted(used))
        _refuse_taken_keys(jobs, known)
        trials = sum(spec.trials.count for spec in jobs.specs)
        if batch.trial_count + trials > MAX_TRIALS:
            message = f"{batch.trial_count} trials in the batch and {trials} more; at most {MAX_TRIALS}"
            raise InvalidFieldsError([Problem("jobs", f"{message}: begin another batch")])
        self._refuse_excesses(jobs)
        self._take_files(jobs)
        self._room.refuse_early(trials)
        self._batches.grow(batch_id, jobs=len(jobs.specs), trials=trials)
        needed = self._insert_jobs(
            batch_id,
            jobs,
            first_ordinal=batch.job_count,
            known=known,
            is_paused=batch.is_paused,
            caps=Caps(batch.max_running, batch.max_per_label),
        )
        if needed:
            # They may have ended long ago: whoever looks after ends looks at them once more.
            BatchProgressRepository(self._connection).look_at(batch_id, sorted(needed))
        self._room.hold(trials)
        return Created(batch_id, replayed=False)

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
            raise missing_batch(self._connection, self._tenant_id, batch_id)
        return row

    def _with_counts(self, rows: Sequence[JobRow]) -> list[JobSummary]:
        counts = self._jobs.counts([row.id for row in rows])
        return [JobSummary(row, _to_counts(row.trial_count, counts.get(row.id, []))) for row in rows]

    def _refuse_excesses(self, jobs: NewJobs) -> None:
        problems = [
            Problem(jobs.place(number, field), message)
            for number, spec in enumerate(jobs.specs)
            for field, message in self._excesses(spec)
        ]
        if problems:
            raise InvalidFieldsError(problems)

    def _excesses(self, spec: JobSpec) -> Iterator[tuple[str, str]]:
        """Give what no node could ever give a job: the field, and what is wrong."""
        yield from self._caps.excesses_of_job(spec.resources)
        runtime = spec.runtime or self._default_runtime
        if spec.resources.gpu and "gpu" in LACKS.get(runtime, ()):
            yield (
                "resources.gpu",
                f"sandboxes of the runtime {runtime} get none: leave it out, or choose another runtime",
            )

    def _take_files(self, jobs: NewJobs) -> None:
        self._blobs.grant_all(jobs.files)
        used = {item.blob for spec in jobs.specs for item in spec.inputs if item.blob is not None}
        unknown = self._blobs.unknown(used)
        if unknown:
            raise InvalidFieldsError(list(_blob_problems(jobs, unknown)))

    def _insert_jobs(
        self,
        batch_id: UUID,
        jobs: NewJobs,
        *,
        first_ordinal: int,
        known: Mapping[str, UUID],
        is_paused: bool,
        caps: Caps,
    ) -> set[UUID]:
        """Insert jobs, their needs and first trials; gives which of the known jobs they need. known: by key."""
        if not jobs.specs:
            return set()
        # Sorted, so that ids ascend with the order of the request and lists by id are lists in that order.
        job_ids = sorted(new_id() for _ in jobs.specs)
        made = split_first_page([spec.trials.count for spec in jobs.specs])
        by_key = {**known, **{spec.key: job_id for spec, job_id in zip(jobs.specs, job_ids, strict=True)}}
        rows, trials, needs = [], [], []
        first = 0
        for job_id, spec, count in zip(job_ids, jobs.specs, made, strict=True):
            rows.append(_to_job_row(job_id, spec, made=count))
            trials.append(
                _to_trials(
                    job_id,
                    spec,
                    count=count,
                    first=first,
                    default_runtime=self._default_runtime,
                    cap_labels=caps.labels_of(spec),
                )
            )
            needs += [NewNeed(job_id, by_key[need.job], need.outcome) for need in spec.needs]
            first += count
        self._batches.insert_jobs(batch_id, rows, first_ordinal=first_ordinal)
        if needs:
            self._batches.insert_needs(batch_id, needs)
        trial_ids = sorted(new_id() for _ in range(first))
        self._batches.insert_trials(batch_id, trials, trial_ids, is_paused=is_paused)
        return {need.needs_job_id for need in needs} & set(known.values())


def _to_job_row(job_id: UUID, spec: JobSpec, *, made: int) -> NewJobRow:
    body = spec.to_json()
    return NewJobRow(
        id=job_id,
        key=spec.key,
        kind=spec.kind,
        digest=digest_of(body),
        labels=spec.labels,
        spec=json.dumps(body),
        trial_count=spec.trials.count,
        tail_count=spec.trials.count - made,
        queue_seconds=spec.timeouts.queue,
        needs=len(spec.needs),
        stop=spec.trials.stop,
    )


def _to_trials(
    job_id: UUID,
    spec: JobSpec,
    *,
    count: int,
    first: int,
    default_runtime: str,
    cap_labels: Mapping[str, str] | None,
) -> NewTrials:
    return NewTrials(
        job_id=job_id,
        count=count,
        first=first,
        seed=spec.trials.seed,
        needs_others=bool(spec.needs),
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


def _blob_problems(jobs: NewJobs, unknown: Collection[str]) -> list[Problem]:
    return [
        Problem(jobs.place(number, f"inputs[{place}].blob"), "no such blob: store it with POST /v1/blobs")
        for number, spec in enumerate(jobs.specs)
        for place, item in enumerate(spec.inputs)
        if item.blob in unknown
    ]


def _refuse_taken_keys(jobs: NewJobs, known: Mapping[str, UUID]) -> None:
    """Check keys and needs against the jobs the batch has. Raises InvalidFieldsError."""
    new = {spec.key for spec in jobs.specs}
    problems = []
    for number, spec in enumerate(jobs.specs):
        if spec.key in known:
            problems.append(Problem(jobs.place(number, "key"), f"the batch has a job {spec.key!r} already"))
        problems += [
            Problem(jobs.place(number, f"needs[{place}].job"), f"the batch has no job {need.job!r}")
            for place, need in enumerate(spec.needs)
            if need.job not in known and need.job not in new
        ]
    if problems:
        raise InvalidFieldsError(problems)


def _why_closed(batch: LockedBatch) -> str:
    if batch.is_cancelled:
        return "the batch was cancelled: it takes no more jobs"
    if batch.is_stopped:
        return "the batch was stopped by its stop_when: it takes no more jobs"
    return "the batch is closed: only one made with `open` takes more jobs, until it is closed"


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
