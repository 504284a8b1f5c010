"""Trials and attempts as they come back. Times are aware; names of states and outcomes are listed where they stand."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sandmill.record import Record

__all__ = [
    "AttemptInfo",
    "Failure",
    "StepInfo",
    "TestSet",
    "TestsInfo",
    "TrialDetail",
    "TrialInfo",
]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no success. failure_class: task, infra, spec, quota or cancelled. code: stable.

    retry_after_seconds: how long a registry or an engine asked to be left alone.
    """

    failure_class: str
    code: str
    message: str
    step: str | None
    exit_code: int | None
    signal: int | None
    oom: bool
    timed_out: bool
    retryable: bool
    retry_after_seconds: float | None

    @classmethod
    def from_json(cls, value: Any) -> "Failure":
        """Read the wire form."""
        found = Record(value, "failure")
        return cls(
            failure_class=found.text("class"),
            code=found.text("code"),
            message=found.text("message"),
            step=found.text_or_none("step"),
            exit_code=found.integer_or_none("exit_code"),
            signal=found.integer_or_none("signal"),
            oom=found.flag("oom"),
            timed_out=found.flag("timed_out"),
            retryable=found.flag("retryable"),
            retry_after_seconds=found.number_or_none("retry_after_seconds"),
        )


@dataclass(frozen=True, slots=True)
class StepInfo:
    """How one step ended. exit_code: None when it was killed or never started. error: why it could not start.

    is_idle: timed out by `idle`, not by its own time.
    """

    name: str
    role: str
    exit_code: int | None
    signal: int | None
    timed_out: bool
    oom: bool
    duration_ms: int
    error: str | None
    patch_rejected: bool
    is_idle: bool

    @classmethod
    def from_json(cls, value: Any) -> "StepInfo":
        """Read the wire form."""
        found = Record(value, "step")
        return cls(
            name=found.text("name"),
            role=found.text("role"),
            exit_code=found.integer_or_none("exit_code"),
            signal=found.integer_or_none("signal"),
            timed_out=found.flag("timed_out"),
            oom=found.flag("oom"),
            duration_ms=found.integer("duration_ms"),
            error=found.text_or_none("error"),
            patch_rejected=found.flag("patch_rejected"),
            is_idle=found.flag_or_false("is_idle"),
        )


@dataclass(frozen=True, slots=True)
class TestSet:
    """How tests named in the verdict fared. failed: ids that did not pass, absent ones too."""

    __test__ = False  # keeps pytest from collecting the class by its name

    passed: int
    total: int
    failed: tuple[str, ...]

    @classmethod
    def from_json(cls, value: Any) -> "TestSet":
        """Read the wire form."""
        found = Record(value, "set of tests")
        return cls(found.integer("passed"), found.integer("total"), found.each("failed", str))


@dataclass(frozen=True, slots=True)
class TestsInfo:
    """What the verdict read. counts: tests by status. The sets are None unless the verdict names tests."""

    __test__ = False  # keeps pytest from collecting the class by its name

    counts: Mapping[str, int]
    fail_to_pass: TestSet | None
    pass_to_pass: TestSet | None

    @classmethod
    def from_json(cls, value: Any) -> "TestsInfo":
        """Read the wire form."""
        found = Record(value, "result of tests")
        return cls(
            found.counts("counts"),
            found.one_or_none("fail_to_pass", TestSet.from_json),
            found.one_or_none("pass_to_pass", TestSet.from_json),
        )


@dataclass(frozen=True, slots=True)
class AttemptInfo:
    """One physical try of a trial. number: 1 for the first. phase: what it does now. node: name of the machine.

    state: dispatched, starting, running, stopping, collecting; or an end: finished, lost, never_started.
    usage: wall_seconds, cpu_seconds, memory_peak_bytes, log_bytes as far as known.
    """

    id: str
    trial_id: str
    number: int
    state: str
    phase: str | None
    node: str | None
    outcome: str | None
    failure: Failure | None
    steps: tuple[StepInfo, ...]
    tests: TestsInfo | None
    usage: Mapping[str, Any]
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @classmethod
    def from_json(cls, value: Any) -> "AttemptInfo":
        """Read the wire form."""
        found = Record(value, "attempt")
        return cls(
            id=found.text("id"),
            trial_id=found.text("trial_id"),
            number=found.integer("number"),
            state=found.text("state"),
            phase=found.text_or_none("phase"),
            node=found.text_or_none("node"),
            outcome=found.text_or_none("outcome"),
            failure=found.one_or_none("failure", Failure.from_json),
            steps=found.each("steps", StepInfo.from_json),
            tests=found.one_or_none("tests", TestsInfo.from_json),
            usage=found.json_object("usage"),
            created_at=found.time("created_at"),
            started_at=found.time_or_none("started_at"),
            finished_at=found.time_or_none("finished_at"),
        )


@dataclass(frozen=True, slots=True)
class TrialInfo:
    """One sample of a job.

    state: blocked, queued, running, retry_wait, cancelling or finished. outcome: set when finished: passed, failed,
    error (no verdict, and no score), cancelled or skipped. replay_of: the dead trial that this one runs again.
    retry_of: the trial in whose place this one counts; superseded_by: the one that counts in this one's place.
    grade_no: how often it was graded again.
    """

    id: str
    batch_id: str
    job_id: str
    job_key: str
    index: int
    seed: int | None
    state: str
    outcome: str | None
    failure: Failure | None
    rewards: Mapping[str, float]
    attempts_used: int
    infra_losses: int
    replay_of: str | None
    retry_of: str | None
    superseded_by: str | None
    grade_no: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @property
    def is_finished(self) -> bool:
        """Whether it has ended."""
        return self.state == "finished"

    @classmethod
    def from_json(cls, value: Any) -> "TrialInfo":
        """Read the wire form."""
        return cls(**_trial_fields(Record(value, "trial")))


@dataclass(frozen=True, slots=True)
class TrialDetail(TrialInfo):
    """One sample with its attempts, oldest first. The last one's result is the trial's."""

    attempts: tuple[AttemptInfo, ...]

    @classmethod
    def from_json(cls, value: Any) -> "TrialDetail":
        """Read the wire form."""
        found = Record(value, "trial")
        return cls(**_trial_fields(found), attempts=found.each("attempts", AttemptInfo.from_json))


def _trial_fields(found: Record) -> dict[str, Any]:
    return {
        "id": found.text("id"),
        "batch_id": found.text("batch_id"),
        "job_id": found.text("job_id"),
        "job_key": found.text("job_key"),
        "index": found.integer("index"),
        "seed": found.integer_or_none("seed"),
        "state": found.text("state"),
        "outcome": found.text_or_none("outcome"),
        "failure": found.one_or_none("failure", Failure.from_json),
        "rewards": found.numbers("rewards"),
        "attempts_used": found.integer("attempts_used"),
        "infra_losses": found.integer("infra_losses"),
        "replay_of": found.text_or_none("replay_of"),
        "retry_of": found.text_or_none("retry_of"),
        "superseded_by": found.text_or_none("superseded_by"),
        "grade_no": found.integer("grade_no"),
        "created_at": found.time("created_at"),
        "started_at": found.time_or_none("started_at"),
        "finished_at": found.time_or_none("finished_at"),
    }
