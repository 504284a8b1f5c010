"""Trials, attempts and artifacts on the wire."""

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from api.schemas.base import ResponseSchema

__all__ = [
    "ArtifactView",
    "AttemptView",
    "FailureView",
    "GradeView",
    "OutcomeName",
    "TrialDetailView",
    "TrialStateName",
    "TrialView",
]

TrialStateName = Literal["blocked", "paused", "queued", "running", "retry_wait", "cancelling", "finished"]
OutcomeName = Literal["passed", "failed", "error", "cancelled", "skipped"]


class _StoredView(BaseModel):
    """Base of what is written by workers and only passed on: of another release it may hold more."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class FailureView(_StoredView):
    """Why there is no success. `class` says who is to blame, `code` is stable."""

    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True)

    failure_class: Literal["task", "infra", "spec", "quota", "cancelled"] = Field(alias="class")
    code: str
    message: str
    step: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    oom: bool = False
    timed_out: bool = False
    retryable: bool = False
    retry_after_seconds: float | None = Field(
        default=None, description="How long whoever refused asked to be left alone."
    )


class StepView(_StoredView):
    """How one step ended."""

    name: str
    role: Literal["setup", "run", "verify"]
    exit_code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    oom: bool = False
    duration_ms: int = 0
    error: str | None = None
    patch_rejected: bool = False
    is_idle: bool = Field(default=False, description="Timed out by `timeouts.idle`, not by its own time.")


class TestSetView(_StoredView):
    """How the tests named in the verdict fared; `failed` holds those that did not pass."""

    __test__ = False

    passed: int
    total: int
    failed: list[str] = Field(default=[])


class TestsView(ResponseSchema):
    """What the verdict read: tests by status, and the two named sets."""

    __test__ = False

    counts: dict[str, int]
    fail_to_pass: TestSetView | None
    pass_to_pass: TestSetView | None


class LogView(ResponseSchema):
    """The size of the log. closed: nothing will be added."""

    bytes: int
    truncated_bytes: int
    closed: bool


class AttemptView(ResponseSchema):
    """One physical try of a trial."""

    id: UUID
    trial_id: UUID
    number: int = Field(description="1 for the first.")
    state: Literal[
        "dispatched", "starting", "running", "stopping", "collecting", "finished", "lost", "never_started"
    ]
    phase: str | None = Field(description="What it does now: create, the name of a step, collect, stop.")
    node: str | None
    outcome: OutcomeName | None
    failure: FailureView | None
    steps: list[StepView]
    tests: TestsView | None
    usage: dict[str, Any] | None
    log: LogView
    created_at: datetime
    claimed_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None


class GradeView(ResponseSchema):
    """A later grade, oldest first: the wish until `graded_at`, then what came of it."""

    number: int | None = Field(description="The `grade_no` it gave the trial; null if it changed nothing.")
    old_outcome: OutcomeName | None
    outcome: OutcomeName | None
    failure: FailureView | None
    tests: TestsView | None
    verdict: dict[str, Any] | None = Field(description="Null: the job's own.")
    requested_at: datetime
    graded_at: datetime | None


class TrialView(ResponseSchema):
    """One sample of a job."""

    id: UUID
    batch_id: UUID
    job_id: UUID
    job_key: str
    index: int
    seed: int | None = Field(description="What the sample finds as TRIAL_SEED.")
    state: TrialStateName
    state_reason: str | None = Field(
        description="Why it is in this state. Of a queued trial that cannot start as things are: no_node,"
        " no_node_offers_runtime or too_large_for_any_node."
    )
    outcome: OutcomeName | None = Field(description="Set when finished. `error` is no verdict, and no score.")
    failure: FailureView | None
    rewards: dict[str, float] | None
    priority: int
    runtime: str | None
    paused: bool = Field(description="It does not start, whatever it waits for; if it runs, it goes on.")
    cancel_requested: bool
    cancel_reason: str | None = Field(description="cancelled on request, or the rule that ended it.")
    retry_of: UUID | None = Field(description="The trial in whose place this one counts.")
    superseded_by: UUID | None = Field(description="The retry that counts in this one's place.")
    grade_no: int = Field(description="How often it was graded again.")
    attempts_used: int
    infra_losses: int
    task_retries: int
    replay_of: UUID | None = Field(description="The dead trial that this one runs again.")
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class TrialDetailView(TrialView):
    """One sample with all its attempts, oldest first. The last one's result, or its last grade, is the trial's."""

    attempts: list[AttemptView]
    grades: list[GradeView]


class ArtifactView(ResponseSchema):
    """A file kept from the sandbox."""

    path: str = Field(description="As it was in the sandbox.")
    digest: str
    size_bytes: int
    created_at: datetime
