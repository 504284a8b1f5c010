"""When a failed attempt runs again. The only place that decides it; workers and the scheduler obey.

Ordered rules of the job come first, the first that matches decides; what none matches is decided by its class.
Failures of class infra and of class task have budgets of their own, and neither touches the other's.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Literal
from uuid import UUID

from core.errors import FailureClass
from services.jobspec import Backoff, RetryBudget, RetryRule
from services.outcomes import Failure

__all__ = ["POISON_LOSSES", "Losses", "RetryDecision", "TriesUsed", "decide_loss", "decide_retry"]

POISON_LOSSES = 3
"""A trial whose worker was lost so often gets no further one: it may well be what ends them.

On one node, too: with a single node, or a greedy budget, it would else take everybody's work down ten times."""

MAX_RETRY_AFTER_SECONDS = 3600.0
"""What a registry or an engine may ask for: a wrong clock or a hostile one must not park a trial for a year."""

_NEVER = {
    FailureClass.SPEC: "the job itself is wrong",
    FailureClass.QUOTA: "a limit of the tenant stands against it",
    FailureClass.CANCELLED: "it was cancelled",
}
_FINAL_CODES = {
    "poison": "it has cost too many workers",
    "total_timeout": "no time is left",
}
"""No rule of a job changes these."""

_PERMANENT_CODES = frozenset({"patch_rejected"})
"""Task failures that no further try can change: same files, same patch, same answer. A rule may know better."""

_FREE_CODES = frozenset({"preempted", "worker_shutdown"})
"""We took the attempt away on purpose: that costs the trial nothing but time."""

_AT_ONCE_CODES = frozenset({"node_lost", "orphaned"})
"""Nothing is overloaded and nobody has to be spared: to wait would only make the loss greater."""


@dataclass(frozen=True, slots=True)
class TriesUsed:
    """What a trial has used before the failure in question. rules: retries by each rule of the job, by place."""

    infra_losses: int = 0
    task_retries: int = 0
    rules: tuple[int, ...] = ()

    def of_rule(self, place: int) -> int:
        """Retries by the rule at this place."""
        return self.rules[place] if place < len(self.rules) else 0


@dataclass(frozen=True, slots=True)
class RetryDecision:
    """retry: run again, not before delay_seconds from now. reason: always set.

    counts_as: the budget it is taken from; None if it is free, and when there is no retry. used: what the trial has
    used now, this failure included.
    """

    retry: bool
    delay_seconds: float
    counts_as: Literal["infra", "task"] | None
    used: TriesUsed
    reason: str


@dataclass(frozen=True, slots=True)
class Losses:
    """How often a trial's worker was lost under it, and on which nodes; the present one is among them."""

    count: int
    nodes: frozenset[UUID]


def decide_retry(failure: Failure, policy: RetryBudget, used: TriesUsed, *, rng: Random) -> RetryDecision:
    """Say whether a trial whose attempt failed runs again, and when.

    The first rule that matches decides; without one failures of class infra are retried within `policy.infra_max`, of
    class task within `policy.task_max`, all others never. A rule cannot exceed the budget of the failure's class. A
    failure nobody can name is class infra (code `unknown`): blaming the task for it would move scores.

    Delay: uniform in [0, min(cap, initial * factor ** used)] seconds, on top of what the failure asks for itself
    (`retry_after_seconds`, an hour at most). An attempt that was taken away on purpose is free, and runs again at once.
    Source: full jitter, M. Brooker, "Exponential Backoff and Jitter", AWS Architecture Blog, 2015.
    """
    place, rule = _first_match(failure, policy.rules)
    refusal = _refusal(failure, rule, place)
    if failure.code in _FREE_CODES and refusal is None:
        return RetryDecision(True, 0.0, None, used, f"{failure.code}: again at once, free of charge")
    kind: Literal["infra", "task"] = "infra" if failure.cls is FailureClass.INFRA else "task"
    before, allowed = (
        (used.infra_losses, policy.infra_max) if kind == "infra" else (used.task_retries, policy.task_max)
    )
    # A loss counts whether or not another try follows: reports tell what the infrastructure has cost.
    charged = replace(used, infra_losses=used.infra_losses + 1) if kind == "infra" else used
    if refusal is None and before >= allowed:
        refusal = f"{before} of {allowed} {kind} retries used"
    if refusal is None and rule is not None and rule.max is not None and used.of_rule(place) >= rule.max:
        refusal = f"retry.rules[{place}] allows {rule.max} retries, and all are used"
    if refusal is not None:
        return RetryDecision(False, 0.0, None, charged, f"{failure.code} is not retried: {refusal}")
    if kind == "task":
        charged = replace(charged, task_retries=used.task_retries + 1)
    if rule is not None:
        charged = replace(charged, rules=_one_more(used, place))
    own_backoff = rule.backoff if rule is not None else None
    delay = _delay_seconds(
        failure, policy, own_backoff, used=before if own_backoff is None else used.of_rule(place), rng=rng
    )
    reason = f"{failure.code}: {kind} retry {before + 1} of {allowed} in {delay:.1f} s"
    return RetryDecision(True, delay, kind, charged, reason)


def decide_loss(
    failure: Failure, policy: RetryBudget, used: TriesUsed, losses: Losses, *, rng: Random
) -> tuple[RetryDecision, Failure]:
    """Say the same for an attempt that was lost with its worker; also gives the failure that the trial ends with.

    That is `poison` once its worker was lost POISON_LOSSES times, whatever the budget, or when losses alone have used
    up all of it.
    """
    decision = decide_retry(failure, policy, used, rng=rng)
    if losses.count >= POISON_LOSSES:
        nodes = "one node" if len(losses.nodes) == 1 else f"{len(losses.nodes)} nodes"
        poison = _poison(failure, f"its worker was lost {losses.count} times, on {nodes}")
        return decide_retry(poison, policy, used, rng=rng), poison
    if not decision.retry and losses.count > policy.infra_max > 0:
        return decision, _poison(failure, f"its worker was lost {losses.count} times")
    return decision, failure


def _poison(failure: Failure, reason: str) -> Failure:
    message = f"{reason}: it is not tried again; last: {failure.message}"
    return replace(failure, code="poison", message=message, retryable=False)


def _first_match(failure: Failure, rules: Sequence[RetryRule]) -> tuple[int, RetryRule | None]:
    for place, rule in enumerate(rules):
        if _matches(rule, failure):
            return place, rule
    return -1, None


def _matches(rule: RetryRule, failure: Failure) -> bool:
    if rule.classes and failure.cls.value not in rule.classes:
        return False
    if rule.codes and failure.code not in rule.codes:
        return False
    if rule.signals and failure.signal not in rule.signals:
        return False
    return not rule.exit_codes or (
        failure.exit_code is not None
        and any(low <= failure.exit_code <= high for low, high in rule.exit_codes)
    )


def _refusal(failure: Failure, rule: RetryRule | None, place: int) -> str | None:
    """Say why there is no retry whatever the budgets; None if there may be one."""
    if failure.cls in _NEVER:
        return _NEVER[failure.cls]
    if failure.code in _FINAL_CODES:
        return _FINAL_CODES[failure.code]
    if rule is not None:
        return None if rule.retry else f"retry.rules[{place}] says so"
    return "it would fail in the same way" if failure.code in _PERMANENT_CODES else None


def _one_more(used: TriesUsed, place: int) -> tuple[int, ...]:
    counts = [used.of_rule(at) for at in range(max(place + 1, len(used.rules)))]
    counts[place] += 1
    return tuple(counts)


def _delay_seconds(
    failure: Failure, policy: RetryBudget, own_backoff: Backoff | None, *, used: int, rng: Random
) -> float:
    asked = failure.retry_after_seconds or 0.0
    least = min(asked, MAX_RETRY_AFTER_SECONDS) if math.isfinite(asked) and asked > 0 else 0.0
    if own_backoff is None and failure.code in _AT_ONCE_CODES:
        return least
    # Jitter on top of what was asked for, too: all who were told "in a minute" must not come in one and the same.
    return least + rng.uniform(0.0, _ceiling_seconds(own_backoff or policy.backoff, used))


def _ceiling_seconds(backoff: Backoff, used: int) -> float:
    try:
        grown = backoff.initial * backoff.factor**used
    except OverflowError:  # float powers raise instead of giving infinity
        grown = backoff.cap
    return max(0.0, min(backoff.cap, grown))
