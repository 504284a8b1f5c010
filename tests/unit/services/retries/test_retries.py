from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import FailureClass
from services.failure_codes import FAILURE_CODES, RULE_CODES
from services.jobspec import Backoff, RetryBudget, RetryRule
from services.outcomes import Failure
from services.retries import (
    MAX_RETRY_AFTER_SECONDS,
    Losses,
    RetryDecision,
    TriesUsed,
    decide_loss,
    decide_retry,
)

TASK, INFRA = FailureClass.TASK, FailureClass.INFRA
NODES = [UUID(int=number) for number in range(5)]


class Highest(Random):
    """Draws the upper end, so that ceilings can be seen."""

    def uniform(self, a: float, b: float) -> float:
        assert a == 0
        return b


def decide(
    cls: FailureClass,
    code: str = "x",
    *,
    used: TriesUsed | None = None,
    exit_code: int | None = None,
    signal: int | None = None,
    retry_after: float | None = None,
    rng: Random | None = None,
    **policy: object,
) -> RetryDecision:
    failure = Failure(
        cls, code, "message", exit_code=exit_code, signal=signal, retry_after_seconds=retry_after
    )
    budget = RetryBudget(**policy)  # type: ignore[arg-type]
    return decide_retry(failure, budget, used or TriesUsed(), rng=rng or Random(1))


@pytest.mark.parametrize(
    ("cls", "code", "used", "counts_as"),
    [
        (INFRA, "node_lost", {}, "infra"),
        (INFRA, "unknown", {"infra_losses": 2}, "infra"),
        (INFRA, "node_lost", {"infra_losses": 3}, None),
        (INFRA, "node_lost", {"task_retries": 9}, "infra"),
        (TASK, "tests_failed", {}, "task"),
        (TASK, "tests_failed", {"task_retries": 1}, None),
        (TASK, "tests_failed", {"infra_losses": 9}, "task"),
        (TASK, "patch_rejected", {}, None),
        (TASK, "total_timeout", {}, None),
        (INFRA, "poison", {}, None),
        (FailureClass.SPEC, "image_not_found", {}, None),
        (FailureClass.QUOTA, "quota_denied", {}, None),
        (FailureClass.CANCELLED, "cancelled", {}, None),
    ],
)
def test_class_and_its_own_budget_decide(
    cls: FailureClass, code: str, used: dict[str, int], counts_as: str | None
) -> None:
    decision = decide(cls, code, used=TriesUsed(**used), infra_max=3, task_max=1)
    assert decision.counts_as == counts_as
    assert decision.retry is (counts_as is not None)
    assert decision.reason.startswith(code)


def test_default_budget_never_repeats_a_sample() -> None:
    assert not decide(TASK).retry
    assert decide(INFRA).retry


@given(
    cls=st.sampled_from([TASK, INFRA]),
    infra=st.integers(0, 5),
    task=st.integers(0, 5),
    infra_max=st.integers(0, 5),
    task_max=st.integers(0, 5),
)
def test_neither_budget_is_touched_by_failures_of_the_other_class(
    cls: FailureClass, infra: int, task: int, infra_max: int, task_max: int
) -> None:
    used = TriesUsed(infra, task)
    decision = decide(cls, used=used, infra_max=infra_max, task_max=task_max)
    if cls is INFRA:
        assert decision.used == TriesUsed(infra + 1, task)
        assert decision.retry is (infra < infra_max)
    else:
        assert decision.used == TriesUsed(infra, task + decision.retry)
        assert decision.retry is (task < task_max)


@given(
    used=st.integers(0, 2_000),
    backoff=st.builds(Backoff, st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6)),
    asked=st.none() | st.floats(0, MAX_RETRY_AFTER_SECONDS),
    seed=st.integers(0, 9),
)
def test_delay_lies_between_what_was_asked_for_and_its_ceiling(
    used: int, backoff: Backoff, asked: float | None, seed: int
) -> None:
    decision = decide(
        INFRA,
        used=TriesUsed(infra_losses=used),
        retry_after=asked,
        rng=Random(seed),
        infra_max=used + 1,
        initial_seconds=backoff.initial,
        factor=backoff.factor,
        cap_seconds=backoff.cap,
    )
    least = asked or 0.0
    assert least <= decision.delay_seconds <= least + backoff.cap
    if used == 0:
        assert decision.delay_seconds <= least + min(backoff.initial, backoff.cap)


def test_ceiling_grows_by_the_factor_up_to_the_cap() -> None:
    policy = {"infra_max": 9, "initial_seconds": 2, "factor": 3, "cap_seconds": 50}
    delays = [
        decide(INFRA, used=TriesUsed(infra_losses=used), rng=Highest(), **policy).delay_seconds
        for used in range(5)
    ]
    assert delays == [2, 6, 18, 50, 50]


def test_delays_are_spread_over_the_whole_range_down_to_zero() -> None:
    delays = [
        decide(INFRA, rng=Random(seed), initial_seconds=1.0, factor=1.0).delay_seconds for seed in range(200)
    ]
    assert min(delays) < 0.1
    assert max(delays) > 0.9


@pytest.mark.parametrize(
    ("asked", "least"),
    [
        (30.0, 30.0),
        (1e9, MAX_RETRY_AFTER_SECONDS),
        (float("inf"), 0.0),
        (float("nan"), 0.0),
        (-5.0, 0.0),
        (None, 0.0),
    ],
)
def test_what_a_registry_asks_for_is_waited_within_reason(asked: float | None, least: float) -> None:
    decision = decide(INFRA, "registry_rate_limited", retry_after=asked, initial_seconds=0.0)
    assert decision.delay_seconds == least


def test_those_who_are_sent_away_for_equally_long_do_not_come_back_together() -> None:
    delays = {decide(INFRA, retry_after=60.0, rng=Random(seed)).delay_seconds for seed in range(20)}
    assert len(delays) == 20
    assert min(delays) >= 60.0


def test_equal_seeds_give_equal_delays() -> None:
    assert decide(INFRA) == decide(INFRA)


@pytest.mark.parametrize("code", ["worker_shutdown", "preempted"])
def test_attempt_taken_away_on_purpose_is_free_whatever_was_used(code: str) -> None:
    used = TriesUsed(infra_losses=9, task_retries=9)
    decision = decide(INFRA, code, used=used, infra_max=0)
    assert (decision.retry, decision.delay_seconds, decision.counts_as) == (True, 0.0, None)
    assert decision.used == used


def test_loss_goes_back_at_once_unless_a_rule_says_otherwise() -> None:
    assert decide(INFRA, "node_lost", rng=Highest()).delay_seconds == 0.0
    rule = RetryRule(codes=("node_lost",), backoff=Backoff(7.0, 1.0, 7.0))
    assert decide(INFRA, "node_lost", rng=Highest(), rules=(rule,)).delay_seconds == 7.0


MATCHES = [
    (RetryRule(classes=("task",)), {"cls": TASK}, True),
    (RetryRule(classes=("infra",)), {"cls": TASK}, False),
    (RetryRule(classes=("infra", "task")), {"cls": TASK}, True),
    (RetryRule(codes=("oom_limit",)), {"cls": TASK, "code": "oom_limit"}, True),
    (RetryRule(codes=("oom_limit",)), {"cls": TASK, "code": "nonzero_exit"}, False),
    (RetryRule(exit_codes=((75, 75),)), {"cls": TASK, "exit_code": 75}, True),
    (RetryRule(exit_codes=((75, 75),)), {"cls": TASK, "exit_code": 76}, False),
    (RetryRule(exit_codes=((1, 2), (64, 78))), {"cls": TASK, "exit_code": 78}, True),
    (RetryRule(exit_codes=((1, 2), (64, 78))), {"cls": TASK, "exit_code": 79}, False),
    (RetryRule(exit_codes=((0, 255),)), {"cls": TASK, "exit_code": None}, False),
    (RetryRule(signals=(9,)), {"cls": TASK, "signal": 9}, True),
    (RetryRule(signals=(9,)), {"cls": TASK, "signal": 15}, False),
    (RetryRule(signals=(9,)), {"cls": TASK, "signal": None}, False),
    (RetryRule(classes=("task",), signals=(9,)), {"cls": INFRA, "signal": 9}, False),
    (RetryRule(), {"cls": INFRA}, True),
]


@pytest.mark.parametrize(("rule", "failure", "matches"), MATCHES)
def test_rule_matches_in_every_respect_it_names(rule: RetryRule, failure: dict, matches: bool) -> None:
    fail = RetryRule(**{**{name: getattr(rule, name) for name in RetryRule.__slots__}, "retry": False})
    decision = decide(**failure, rules=(fail,), task_max=5)
    assert decision.retry is not matches
    assert ("retry.rules[0] says so" in decision.reason) is matches


RULES = st.lists(
    st.builds(
        RetryRule,
        classes=st.lists(st.sampled_from(["task", "infra"]), max_size=2).map(tuple),
        codes=st.lists(st.sampled_from(["nonzero_exit", "oom_limit", "unknown"]), max_size=2).map(tuple),
        exit_codes=st.lists(st.sampled_from([(1, 1), (2, 9)]), max_size=1).map(tuple),
        signals=st.lists(st.sampled_from([9, 15]), max_size=1).map(tuple),
        retry=st.booleans(),
        max=st.none() | st.integers(1, 3),
    ),
    max_size=5,
)


@given(
    rules=RULES,
    facts=st.fixed_dictionaries(
        {
            "cls": st.sampled_from([TASK, INFRA]),
            "code": st.sampled_from(["nonzero_exit", "oom_limit", "unknown"]),
            "exit_code": st.none() | st.integers(0, 10),
            "signal": st.none() | st.sampled_from([9, 15]),
        }
    ),
    counts=st.lists(st.integers(0, 3), max_size=5),
)
def test_first_rule_that_matches_decides_alone(rules, facts, counts) -> None:
    cls, code, exit_code, signal = (facts[name] for name in ("cls", "code", "exit_code", "signal"))
    used = TriesUsed(rules=tuple(counts))
    decision = decide(**facts, used=used, rules=tuple(rules), task_max=9, infra_max=9)

    def says(rule: RetryRule) -> bool:
        in_range = exit_code is not None and any(low <= exit_code <= high for low, high in rule.exit_codes)
        return (
            (not rule.classes or cls.value in rule.classes)
            and (not rule.codes or code in rule.codes)
            and (not rule.signals or signal in rule.signals)
            and (not rule.exit_codes or in_range)
        )

    place = next((at for at, rule in enumerate(rules) if says(rule)), None)
    if place is None:
        assert decision.retry
        assert decision.used.rules == used.rules
        return
    rule = rules[place]
    may = rule.retry and (rule.max is None or used.of_rule(place) < rule.max)
    assert decision.retry is may
    for at in range(len(rules)):
        assert decision.used.of_rule(at) == used.of_rule(at) + (may and at == place)


def test_rule_is_bounded_by_its_own_number_and_by_the_budget_of_the_class() -> None:
    rule = RetryRule(codes=("nonzero_exit",), max=2)
    for count, task, retried in ((0, 0, True), (1, 1, True), (2, 2, False), (1, 3, False)):
        used = TriesUsed(task_retries=task, rules=(count,))
        assert decide(TASK, "nonzero_exit", used=used, rules=(rule,), task_max=3).retry is retried


def test_rule_may_retry_what_would_fail_in_the_same_way_but_nothing_of_the_spec() -> None:
    everything = (RetryRule(),)
    assert decide(TASK, "patch_rejected", rules=everything, task_max=1).retry
    assert not decide(TASK, "total_timeout", rules=everything, task_max=1).retry
    assert not decide(FailureClass.SPEC, "image_not_found", rules=everything, task_max=1).retry
    assert not decide(FailureClass.CANCELLED, "cancelled", rules=everything, task_max=1).retry


def test_rule_may_end_what_would_be_free() -> None:
    rule = RetryRule(codes=("worker_shutdown",), retry=False)
    assert not decide(INFRA, "worker_shutdown", rules=(rule,)).retry


def test_backoff_of_a_rule_grows_with_its_own_retries() -> None:
    rule = RetryRule(codes=("x",), backoff=Backoff(10.0, 2.0, 1000.0))
    used = TriesUsed(task_retries=5, rules=(2,))
    assert decide(TASK, used=used, rules=(rule,), task_max=9, rng=Highest()).delay_seconds == 40.0


LOST = Failure(INFRA, "node_lost", "gone", retryable=True)


@pytest.mark.parametrize(
    ("nodes", "infra_max", "retry", "code"),
    [
        ([0], 3, True, "node_lost"),
        ([0, 0], 3, True, "node_lost"),
        ([0, 1], 3, True, "node_lost"),
        ([0, 1, 2], 3, False, "poison"),
        ([0, 1, 2], 10, False, "poison"),
        ([0, 0, 0], 3, False, "poison"),
        ([0, 0, 0], 10, False, "poison"),
        ([0], 0, False, "node_lost"),
        ([0, 1], 1, False, "poison"),
    ],
)
def test_trial_under_which_node_after_node_is_lost_is_poison(
    nodes: list[int], infra_max: int, retry: bool, code: str
) -> None:
    losses = Losses(len(nodes), frozenset(NODES[number] for number in nodes))
    used = TriesUsed(infra_losses=len(nodes) - 1)
    decision, ending = decide_loss(LOST, RetryBudget(infra_max=infra_max), used, losses, rng=Random(1))
    assert (decision.retry, ending.code) == (retry, code)
    assert ending.cls is INFRA
    assert decision.used.infra_losses == len(nodes)


def test_budget_used_up_by_other_failures_makes_no_poison() -> None:
    used = TriesUsed(infra_losses=3)
    losses = Losses(1, frozenset(NODES[:1]))
    decision, ending = decide_loss(LOST, RetryBudget(infra_max=3), used, losses, rng=Random(1))
    assert (decision.retry, ending.code) == (False, "node_lost")


def test_no_rule_spares_a_poisonous_trial() -> None:
    policy = RetryBudget(infra_max=10, rules=(RetryRule(),))
    decision, ending = decide_loss(LOST, policy, TriesUsed(2), Losses(3, frozenset(NODES[:3])), rng=Random(1))
    assert (decision.retry, ending.code) == (False, "poison")


def test_rules_name_codes_of_failures_that_may_be_retried() -> None:
    assert RULE_CODES.issubset(FAILURE_CODES[TASK] | FAILURE_CODES[INFRA])
    assert not RULE_CODES & {"poison", "total_timeout", "image_not_found", "cancelled"}
