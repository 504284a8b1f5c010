"""Batches on the wire: what is sent to make one, and what is told about one."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import Field

from api.schemas.base import RequestSchema, ResponseSchema
from api.schemas.fields import LabelCaps, Labels, Title
from api.schemas.jobs import JobRequestInBatch
from api.schemas.webhooks import OnCompleteRequest

__all__ = [
    "BatchRequest",
    "BatchView",
    "CancelRequest",
    "CancelView",
    "CountsView",
    "JobDetail",
    "JobView",
]

MAX_JOBS = 10_000


class ConcurrencyRequest(RequestSchema):
    """How many trials of the batch may run at a time; what waits for that is `blocked` with reason `concurrency`."""

    max: int | None = Field(default=None, ge=1, le=100_000, description="Of the whole batch.")
    per_label: LabelCaps = Field(
        default={}, description="By name of a job's label: most trials of jobs with the same value of it."
    )


class BatchEnvelope(RequestSchema):
    """A batch whose jobs are not looked at yet: they are checked one by one after the defaults are merged in."""

    name: Title | None = None
    labels: Labels = Field(default={})
    priority: int = Field(default=0, ge=-100, le=100)
    concurrency: ConcurrencyRequest = ConcurrencyRequest()
    on_complete: OnCompleteRequest | None = None
    defaults: dict[str, Any] = Field(default={})
    jobs: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MAX_JOBS)]


class BatchRequest(BatchEnvelope):
    """Jobs submitted together.

    `defaults` holds any fields of a job. They are merged under each job: objects deeply, lists as a whole; a verdict
    that names its own `from` replaces the default one.
    """

    jobs: Annotated[list[JobRequestInBatch], Field(min_length=1, max_length=MAX_JOBS)]  # type: ignore[assignment] # the published form of the same field


class CancelRequest(RequestSchema):
    """How to cancel. graceful: TERM, the grace, artifacts are kept. force: killed at once."""

    mode: Literal["graceful", "force"] = "graceful"


class CancelView(ResponseSchema):
    """What a cancel did at once. Running trials end a little later."""

    cancelled: int = Field(description="Trials that had not started and are finished now.")
    cancelling: int = Field(description="Trials that run and were told to stop.")


class ConcurrencyView(ResponseSchema):
    """The caps of a batch."""

    max: int | None
    per_label: dict[str, int]


class CountsView(ResponseSchema):
    """Trials by where they are, and finished ones by how they ended. Absent names are zero."""

    total: int
    by_state: dict[str, int]
    by_outcome: dict[str, int]


class BatchView(ResponseSchema):
    """One batch."""

    id: UUID
    name: str | None
    labels: dict[str, str]
    priority: int
    concurrency: ConcurrencyView
    state: Literal["running", "finished"]
    implicit: bool = Field(description="Made for a lone job.")
    cancel_requested: bool
    jobs: int = Field(description="How many jobs it has.")
    trials: CountsView
    created_at: datetime
    finished_at: datetime | None


class JobView(ResponseSchema):
    """One job, without its spec."""

    id: UUID
    batch_id: UUID
    key: str
    kind: str
    digest: str = Field(description="Of all that decides the result: equal digests are the same work.")
    labels: dict[str, str]
    trials: CountsView
    created_at: datetime


class JobDetail(JobView):
    """One job with its spec, every default filled in; it can be submitted again as it is."""

    spec: dict[str, Any]
