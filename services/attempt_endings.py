"""What an attempt came to: whose fault a failure was, and the row that is written in the end."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from core.errors import CreateTimeoutError, ExecdUnreachableError, FailureClass, RunFailure
from core.jsonb import to_jsonb
from repositories.attempts import ArtifactRow, AttemptEnd, ClaimedAttempt
from runtimes.base import SandboxStats
from services.attempt_clock import AttemptClock, Phase
from services.attempt_control import StopReason
from services.jobspec import JobSpec
from services.log_pump import LogSummary
from services.outcomes import CANCELLED, Failure, Grade, Outcome, StepResult
from services.retries import TriesUsed, decide_retry

__all__ = [
    "Ending",
    "Measured",
    "blame",
    "grade_of_stop",
    "no_verdict",
    "time_over",
    "to_attempt_end",
    "unknown_failure",
]

_PREEMPTED = Failure(
    FailureClass.INFRA, "preempted", "stopped to make room, or because its node is drained", retryable=True
)
_SHUTDOWN = Failure(FailureClass.INFRA, "worker_shutdown", "the worker was stopped", retryable=True)


@dataclass(frozen=True, slots=True)
class Ending:
    """All that there is to write in the end."""

    attempt: AttemptEnd
    artifacts: tuple[ArtifactRow, ...]
    failure_class: str

    def to_json(self) -> dict[str, Any]:
        """Give JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Ending":
        """Read what `to_json` gave."""
        rows = tuple(ArtifactRow(**row) for row in value["artifacts"])
        return cls(AttemptEnd(**value["attempt"]), rows, value["failure_class"])


@dataclass(frozen=True, slots=True)
class Measured:
    """What was seen of an attempt: its steps, what its sandbox used, its log, how long it took."""

    steps: Sequence[StepResult]
    stats: SandboxStats
    log: LogSummary
    wall_seconds: float


def no_verdict(failure: Failure) -> Grade:
    """Grade what could not be judged."""
    return Grade(Outcome.ERROR, failure)


def unknown_failure(message: str) -> Failure:
    """Blame nobody's fault on ourselves: class infra, and the trial gets another try."""
    return Failure(FailureClass.INFRA, "unknown", message, retryable=True)


def time_over(spec: JobSpec, clock: AttemptClock) -> Failure:
    """Say which of the times the steps may take is over: that of this attempt, or that of the whole trial."""
    timeouts = spec.timeouts
    if timeouts.run is not None and clock.total_left() > 0:
        code, text = "run_timeout", f"timeouts.run of {timeouts.run:g} s was over"
    else:
        code, text = "total_timeout", f"timeouts.total of {timeouts.total:g} s was over"
    return Failure(FailureClass.TASK, code, text, timed_out=True)


def blame(error: RunFailure, spec: JobSpec, clock: AttemptClock, *, has_exhausted_memory: bool) -> Grade:
    """Blame a failure of the sandbox on who caused it.

    has_exhausted_memory: the code under test has run and used up all it was allowed.
    """
    if isinstance(error, CreateTimeoutError) and clock.left() <= 0:
        return no_verdict(time_over(spec, clock))
    if isinstance(error, ExecdUnreachableError) and has_exhausted_memory:
        message = "the memory limit was reached, and the sandbox's own daemon fell with it"
        return Grade(Outcome.FAILED, Failure(FailureClass.TASK, "oom_limit", message, oom=True))
    return no_verdict(
        Failure(
            error.failure_class,
            error.code,
            error.message,
            retryable=error.retryable,
            retry_after_seconds=error.retry_after_seconds,
        )
    )


def grade_of_stop(reason: StopReason | None, spec: JobSpec, phase: Phase) -> Grade:
    """Grade an attempt that was stopped before its steps were done."""
    match reason:
        case StopReason.SHUTDOWN:
            return no_verdict(_SHUTDOWN)
        case StopReason.PREEMPT:
            return no_verdict(_PREEMPTED)
        case StopReason.DEADLINE:
            return no_verdict(_killed_at_deadline(spec, phase))
        case _:
            return Grade(Outcome.CANCELLED, CANCELLED)


def to_attempt_end(
    verdict: Grade,
    measured: Measured,
    claimed: ClaimedAttempt,
    spec: JobSpec,
    *,
    reason: StopReason | None,
    rng: Random,
) -> AttemptEnd:
    """Make the row, with what becomes of the trial. reason: why it was stopped, if it was. rng: for jitter."""
    failure = verdict.failure
    decision = None
    if failure is not None:
        used = TriesUsed(claimed.infra_losses, claimed.task_retries, tuple(claimed.rule_retries or ()))
        decision = decide_retry(failure, spec.retry, used, rng=rng)
    usage = {
        "wall_seconds": round(measured.wall_seconds, 3),
        "cpu_seconds": measured.stats.cpu_seconds,
        "memory_peak_bytes": measured.stats.memory_peak_bytes,
        "log_bytes": measured.log.stored_bytes,
    }
    return AttemptEnd(
        outcome=verdict.outcome.value,
        reason=failure.code if failure else verdict.outcome.value,
        end_reason=reason.value if reason else "finished",
        failure=to_jsonb(failure.to_json()) if failure else None,
        steps=to_jsonb([asdict(step) for step in measured.steps]),
        grade=to_jsonb(verdict.to_json()),
        usage=to_jsonb(usage),
        rewards=to_jsonb(dict(verdict.rewards)) if verdict.rewards else None,
        next_seq=measured.log.next_seq,
        log_bytes=measured.log.stored_bytes,
        truncated_bytes=measured.log.truncated_bytes,
        retry_seconds=decision.delay_seconds if decision and decision.retry else None,
        infra_loss=decision.used.infra_losses - claimed.infra_losses if decision else 0,
        task_retry=decision.used.task_retries - claimed.task_retries if decision else 0,
        rule_retries=decision.used.rules if decision else None,
    )


def _killed_at_deadline(spec: JobSpec, phase: Phase) -> Failure:
    """Describe what did not end by itself: whatever its time limit, execd should have seen to it."""
    code, text = {
        Phase.START: ("start_timeout", f"not running within timeouts.start of {spec.timeouts.start:g} s"),
        Phase.STEPS: ("execd_unreachable", "the sandbox did not end its step at the deadline"),
        Phase.COLLECT: ("execd_unreachable", "the sandbox did not give its files in time"),
    }[phase]
    message = f"{text}, and was killed from outside"
    return Failure(FailureClass.INFRA, code, message, timed_out=True, retryable=True)
