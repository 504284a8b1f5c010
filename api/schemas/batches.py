"""Batches on the wire: what is sent to make one, and what is told about one."""

from datetime import datetime
from typing import Annotated, Any, Literal, Self
from uuid import UUID

from pydantic import Field, PlainValidator, model_validator
from pydantic_core import PydanticCustomError

from api.schemas.base import RequestSchema, ResponseSchema
from api.schemas.fields import MATRIX_NAME, LabelCaps, Labels, Title, one_line
from api.schemas.jobs import JobRequestInBatch, VerdictRequest
from api.schemas.trials import OutcomeName
from api.schemas.webhooks import OnCompleteRequest

__all__ = [
    "AppendEnvelope",
    "AppendRequest",
    "BatchEnvelope",
    "BatchRequest",
    "BatchView",
    "CancelRequest",
    "CancelView",
    "CountsView",
    "JobDetail",
    "JobView",
    "PauseView",
    "RegradeRequest",
    "RegradeView",
    "ResumeView",
    "RetryView",
    "RunAgainRequest",
    "SubmittedBatchView",
    "SubmittedJobView",
    "WarningView",
]

MAX_JOBS = 10_000


class ConcurrencyRequest(RequestSchema):
    """How many trials of the batch may run at a time; what waits for that is `blocked` with reason `concurrency`."""

    max: int | None = Field(default=None, ge=1, le=100_000, description="Of the whole batch.")
    per_label: LabelCaps = Field(
        default={}, description="By name of a job's label: most trials of jobs with the same value of it."
    )


MatrixName = Annotated[str, Field(pattern=MATRIX_NAME)]


def _check_matrix_value(value: Any) -> str:
    """Give the text of a value: a number is spelled as JSON spells it."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value}"
    if not isinstance(value, str):
        raise PydanticCustomError("matrix_value", "must be text or a number")
    if len(value) > 255:
        raise PydanticCustomError("matrix_value_long", "may have at most 255 characters")
    return one_line(value)


MatrixValue = Annotated[str, PlainValidator(_check_matrix_value, json_schema_input_type=str | int | float)]
Matrix = Annotated[
    dict[MatrixName, Annotated[list[MatrixValue], Field(min_length=1, max_length=MAX_JOBS)]],
    Field(max_length=20),
]
Number = Annotated[int, Field(ge=1, le=1_000_000)]


class StopWhenRequest(RequestSchema):
    """Ends a batch early: as soon as so many trials have ended with one of these outcomes."""

    passed: Number | None = None
    failed: Number | None = None
    error: Number | None = None

    @model_validator(mode="after")
    def _check_any(self) -> Self:
        if not (self.passed or self.failed or self.error):
            message = "needs at least one of passed, failed and error"
            raise ValueError(message)
        return self


class AppendEnvelope(RequestSchema):
    """Jobs to append that are not looked at yet."""

    defaults: dict[str, Any] = Field(default={})
    matrix: Matrix = Field(default={})
    jobs: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MAX_JOBS)]


class BatchEnvelope(RequestSchema):
    """A batch whose jobs are not looked at yet: they are checked one by one after the defaults are merged in."""

    name: Title | None = None
    labels: Labels = Field(default={})
    priority: int = Field(default=0, ge=-100, le=100)
    concurrency: ConcurrencyRequest = ConcurrencyRequest()
    open: bool = Field(default=False, description="More jobs may be appended, until it is closed.")
    stop_when: StopWhenRequest | None = Field(
        default=None, description="Ends the batch when so many trials have ended so."
    )
    matrix: Matrix = Field(
        default={},
        description="Each job is made once for each combination of values; `${matrix.NAME}` stands for one of them"
        " in all strings of the job.",
    )
    on_complete: OnCompleteRequest | None = None
    defaults: dict[str, Any] = Field(default={})
    jobs: Annotated[list[dict[str, Any]], Field(max_length=MAX_JOBS)] = Field(
        description="At least one, unless the batch is open."
    )


class BatchRequest(BatchEnvelope):
    """Jobs submitted together.

    `defaults` holds any fields of a job. They are merged under each job: objects deeply, lists as a whole; a verdict
    that names its own `from` replaces the default one.
    """

    jobs: Annotated[list[JobRequestInBatch], Field(max_length=MAX_JOBS)] = Field(  # type: ignore[assignment] # the published form of the same field
        description="At least one, unless the batch is open."
    )


class AppendRequest(AppendEnvelope):
    """Jobs for an open batch. `defaults` is laid over those of the batch."""

    jobs: Annotated[list[JobRequestInBatch], Field(min_length=1, max_length=MAX_JOBS)]  # type: ignore[assignment] # the published form of the same field


class RunAgainRequest(RequestSchema):
    """Which finished trials to run again."""

    outcomes: Annotated[list[OutcomeName], Field(min_length=1, max_length=5)] = Field(
        default=["error", "cancelled"]
    )


class RegradeRequest(RequestSchema):
    """How to grade finished trials again."""

    verdict: VerdictRequest | None = Field(default=None, description="Default: each job's own.")


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


class PauseView(ResponseSchema):
    """What a pause met."""

    paused: int = Field(description="Trials that will not start until they are resumed.")
    running: int = Field(description="Trials that run on.")


class ResumeView(ResponseSchema):
    """What a resume did."""

    resumed: int = Field(description="Trials that were paused and may go on.")


class RetryView(ResponseSchema):
    """What a retry did."""

    retried: int = Field(description="Trials that are run again, each as a new trial in its place.")


class RegradeView(ResponseSchema):
    """What a regrade will do; it is done by workers, one trial after the other."""

    regrading: int = Field(description="Trials that will be graded again.")
    not_gradable: int = Field(description="Finished trials of which nothing is stored that could be graded.")


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
    open: bool = Field(description="More jobs may be appended.")
    paused: bool
    cancel_requested: bool
    stopped: str | None = Field(description="The outcome by which `stop_when` ended it.")
    jobs: int = Field(description="How many jobs it has.")
    trials: CountsView
    created_at: datetime
    finished_at: datetime | None


class WarningView(ResponseSchema):
    """Something about a request that was accepted all the same."""

    field: str = Field(description="Path in the request, as in `jobs[3].resources.memory_mb`.")
    message: str


_WARNINGS = Field(description="Jobs that no node could start now, however empty: they wait for one.")


class SubmittedBatchView(BatchView):
    """A batch to which jobs were just submitted."""

    warnings: list[WarningView] = _WARNINGS


class JobView(ResponseSchema):
    """One job, without its spec."""

    id: UUID
    batch_id: UUID
    key: str
    kind: str
    digest: str = Field(description="Of all that decides the result: equal digests are the same work.")
    labels: dict[str, str]
    paused: bool
    trials: CountsView
    created_at: datetime


class JobDetail(JobView):
    """One job with its spec, every default filled in; it can be submitted again as it is."""

    spec: dict[str, Any]


class SubmittedJobView(JobDetail):
    """A job that was just submitted."""

    warnings: list[WarningView] = _WARNINGS
