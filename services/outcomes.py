"""What came of a step, a failure and a trial: the values worker, verdicts, retries and reports share.

`outcome` says what a finished trial counts as, `failure` why it is not `passed`. `error` means "no verdict" and is
never a score. Everything here is plain data that survives a round trip through JSON.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from core.errors import FailureClass
from models.states import Outcome
from services.jobspec import StepRole

__all__ = [
    "CANCELLED",
    "Failure",
    "Grade",
    "Outcome",
    "StepResult",
    "TestSetResult",
    "TestStatus",
    "clean_text",
]

MAX_MESSAGE_CHARS = 2_000
"""A failure message is read by people in tables; the log has the rest."""


class TestStatus(StrEnum):
    """Result of one test. xfail: failed as expected. xpass: passed though a failure was expected."""

    __test__ = False  # keeps pytest from collecting the class by its name

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    ERROR = "error"
    XFAIL = "xfail"
    XPASS = "xpass"

    @property
    def is_failing(self) -> bool:
        """True for failed and error."""
        return self in {TestStatus.FAILED, TestStatus.ERROR}


def clean_text(text: str, limit: int = MAX_MESSAGE_CHARS) -> str:
    """Make text from a sandbox fit for PostgreSQL and UTF-8: no NUL, no lone surrogate, at most `limit` chars."""
    text = text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= limit else text[: limit - 1] + "…"


@dataclass(frozen=True, slots=True)
class StepResult:
    """How one step ended, as seen from outside the sandbox.

    exit_code: None when the step was killed or never started. signal: the number that ended it. oom: the sandbox's own
    memory limit killed something while the step ran. error: why the step could not be started; None if it ran. is_idle:
    it timed out by timeouts.idle, not by its own time.
    patch_rejected: a patch step did not apply as a whole (also set under `on_reject: continue`).
    """

    name: str
    role: StepRole
    exit_code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    oom: bool = False
    duration_ms: int = 0
    error: str | None = None
    patch_rejected: bool = False
    is_idle: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a trial did not pass. `code` is stable and groups reports; `cls` alone decides about retries.

    retryable: the same trial may well end differently on another try; for readers, the retry rules use `cls`.
    retry_after_seconds: whoever refused asks to be left alone for so long; None: nobody did.
    """

    cls: FailureClass
    code: str
    message: str
    step: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    oom: bool = False
    timed_out: bool = False
    retryable: bool = False
    retry_after_seconds: float | None = None

    def __post_init__(self) -> None:
        """Clean the message: it may quote what a sandbox wrote."""
        object.__setattr__(self, "message", clean_text(self.message))

    def to_json(self) -> dict[str, Any]:
        """Give plain JSON values; `cls` is spelled `class`, and retry_after_seconds is left out where there is none."""
        value = asdict(self)
        if self.retry_after_seconds is None:
            del value["retry_after_seconds"]
        return {"class": str(value.pop("cls")), **value}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Failure":
        """Read what `to_json` wrote. Raises KeyError, TypeError or ValueError on anything else."""
        rest = dict(value)
        return cls(cls=FailureClass(rest.pop("class")), **rest)


CANCELLED = Failure(FailureClass.CANCELLED, "cancelled", "cancelled on request")
"""Of every trial that ends because its user asked for it."""


@dataclass(frozen=True, slots=True)
class TestSetResult:
    """How a named set of tests fared. failed: the ids that did not pass, absent ones too, in the order asked for."""

    __test__ = False  # keeps pytest from collecting the class by its name

    passed: int
    total: int
    failed: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Give plain JSON values."""
        return {"passed": self.passed, "total": self.total, "failed": list(self.failed)}


@dataclass(frozen=True, slots=True)
class Grade:
    """The verdict on one trial.

    failure: None exactly when passed. rewards: finite numbers by name, `reward` among them for passed and failed; empty
    for error. tests: every test the verdict's source names. fail_to_pass, pass_to_pass: None unless the job names any.
    """

    outcome: Outcome
    failure: Failure | None = None
    rewards: Mapping[str, float] = field(default_factory=dict)
    tests: Mapping[str, TestStatus] = field(default_factory=dict)
    fail_to_pass: TestSetResult | None = None
    pass_to_pass: TestSetResult | None = None

    @property
    def test_counts(self) -> dict[str, int]:
        """Count the tests by status; statuses that do not occur are left out."""
        counts = Counter(str(status) for status in self.tests.values())
        return dict(sorted(counts.items()))

    def to_json(self) -> dict[str, Any]:
        """Give plain JSON values, `test_counts` included."""
        return {
            "outcome": str(self.outcome),
            "failure": self.failure and self.failure.to_json(),
            "rewards": dict(self.rewards),
            "test_counts": self.test_counts,
            "tests": {name: str(status) for name, status in self.tests.items()},
            "fail_to_pass": self.fail_to_pass and self.fail_to_pass.to_json(),
            "pass_to_pass": self.pass_to_pass and self.pass_to_pass.to_json(),
        }
