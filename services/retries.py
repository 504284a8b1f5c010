"""When a failed attempt runs again. The only place that decides it; workers and the scheduler obey."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Literal

from core.errors import FailureClass
from services.jobspec import RetryBudget
from services.outcomes import Failure

__all__ = ["RetryDecision", "decide_retry"]

PERMANENT_CODES = frozenset({"patch_rejected"})
"""Task failures that no further try can change: same files, same patch, same answer."""

_NEVER = {
    FailureClass.SPEC: "the job itself is wrong",
    FailureClass.QUOTA: "a limit of the tenant stands against it",
    FailureClass.CANCELLED: "it was cancelled",
}


@dataclass(frozen=True, slots=True)
class RetryDecision:
    """retry: run again, not before `at` (aware UTC). counts_as: the budget it is taken from. reason: always set.

    counts_as is None, and at too, when there is no retry.
    """

    retry: bool
    at: datetime | None
    counts_as: Literal["infra", "task"] | None
    reason: str


def decide_retry(
    failure: Failure,
    policy: RetryBudget,
    *,
    infra_losses: int,
    task_retries: int,
    now: datetime,
    rng: Random,
) -> RetryDecision:
    """Say whether a trial whose attempt failed runs again, and when.

    infra_losses, task_retries: what the trial used of each budget before this failure; neither touches the other's.
    now: aware UTC. Delay: uniform in [0, min(cap, initial * factor ** used)] seconds. Failures of class infra retry
    within `policy.infra_max`, of class task within `policy.task_max`, all others never. A failure nobody can name is
    class infra (code `unknown`): blaming the task for it would move scores.
    Source: full jitter, M. Brooker, "Exponential Backoff and Jitter", AWS Architecture Blog, 2015.
    """
    if failure.cls in _NEVER:
        return _no(f"{failure.code} is not retried: {_NEVER[failure.cls]}")
    if failure.code in PERMANENT_CODES:
        return _no(f"{failure.code} is not retried: it would fail in the same way")
    kind: Literal["infra", "task"] = "infra" if failure.cls is FailureClass.INFRA else "task"
    used, allowed = (infra_losses, policy.infra_max) if kind == "infra" else (task_retries, policy.task_max)
    if used >= allowed:
        return _no(f"{failure.code} is not retried: {used} of {allowed} {kind} retries used")
    delay = rng.uniform(0.0, _ceiling_seconds(policy, used))
    reason = f"{failure.code}: {kind} retry {used + 1} of {allowed} in {delay:.1f} s"
    return RetryDecision(retry=True, at=now + timedelta(seconds=delay), counts_as=kind, reason=reason)


def _no(reason: str) -> RetryDecision:
    return RetryDecision(retry=False, at=None, counts_as=None, reason=reason)


def _ceiling_seconds(policy: RetryBudget, used: int) -> float:
    try:
        grown = policy.initial_seconds * policy.factor**used
    except OverflowError:  # float powers raise instead of giving infinity
        grown = policy.cap_seconds
    return max(0.0, min(policy.cap_seconds, grown))
