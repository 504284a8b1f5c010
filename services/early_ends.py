"""Why trials end without having been run to a verdict, in the words that are stored and told."""

from core.errors import FailureClass
from models.states import Outcome
from repositories.trial_ending import EarlyEnd
from services.outcomes import CANCELLED, Failure

__all__ = [
    "CANCEL",
    "NEEDS_UNMET",
    "TAIL_FAILURES",
    "batch_rule_end",
    "cancel_end",
    "job_rule_end",
    "session_end",
]

_NEEDS_UNMET = Failure(
    FailureClass.CANCELLED, "needs_unmet", "a job that it needs did not end as its `needs` ask for"
)
_SKIPPED = Failure(FailureClass.CANCELLED, "stop_when", "a rule of its job or batch ended the rest")

CANCEL = EarlyEnd(Outcome.CANCELLED.value, CANCELLED.code, CANCELLED.to_json())
NEEDS_UNMET = EarlyEnd(Outcome.SKIPPED.value, _NEEDS_UNMET.code, _NEEDS_UNMET.to_json())

TAIL_FAILURES = {
    Outcome.CANCELLED.value: CANCELLED.to_json(),
    Outcome.SKIPPED.value: _SKIPPED.to_json(),
}
"""Of trials that never had a row; their code is the reason that was noted."""


def cancel_end(mode: str) -> EarlyEnd:
    """On request. mode: graceful or force."""
    return EarlyEnd(CANCEL.outcome, CANCEL.reason, CANCEL.failure, mode)


def job_rule_end(stop: str) -> EarlyEnd:
    """By `trials.stop` of a job. stop: first_pass or first_fail."""
    if stop == "first_pass":
        message = "another trial of the job has passed: trials.stop is first_pass"
        failure = Failure(FailureClass.CANCELLED, "stop_first_pass", message)
    else:
        message = "another trial of the job has failed: trials.stop is first_fail"
        failure = Failure(FailureClass.CANCELLED, "stop_first_fail", message)
    return EarlyEnd(Outcome.SKIPPED.value, failure.code, failure.to_json())


def batch_rule_end(outcome: str, number: int) -> EarlyEnd:
    """By `stop_when` of a batch: so many of its trials ended with this outcome."""
    message = f"{number} trials of the batch ended as {outcome}: stop_when.{outcome} is reached"
    failure = Failure(FailureClass.CANCELLED, "stop_when", message)
    return EarlyEnd(Outcome.SKIPPED.value, failure.code, failure.to_json())


def session_end(reason: str) -> EarlyEnd:
    """Of a live sandbox whose tenant or whose time has ended it; at once, since nothing of it is kept."""
    return EarlyEnd(CANCEL.outcome, reason, CANCEL.failure, "force")
