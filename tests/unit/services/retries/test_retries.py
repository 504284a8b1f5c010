from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import FailureClass
from services.jobspec import RetryBudget
from services.outcomes import Failure
from services.retries import RetryDecision, decide_retry

NOW = datetime(2025, 1, 1, tzinfo=UTC)


def decide(
    cls: FailureClass, code: str = "x", *, infra_losses: int = 0, task_retries: int = 0, **policy: float
) -> RetryDecision:
    failure = Failure(cls, code, "message")
    budget = RetryBudget(**policy)  # type: ignore[arg-type]
    return decide_retry(
        failure, budget, infra_losses=infra_losses, task_retries=task_retries, now=NOW, rng=Random(1)
    )


@pytest.mark.parametrize(
    ("cls", "code", "used", "counts_as"),
    [
        (FailureClass.INFRA, "node_lost", {}, "infra"),
        (FailureClass.INFRA, "unknown", {"infra_losses": 2}, "infra"),
        (FailureClass.INFRA, "node_lost", {"infra_losses": 3}, None),
        (FailureClass.INFRA, "node_lost", {"task_retries": 9}, "infra"),
        (FailureClass.TASK, "tests_failed", {}, "task"),
        (FailureClass.TASK, "tests_failed", {"task_retries": 1}, None),
        (FailureClass.TASK, "tests_failed", {"infra_losses": 9}, "task"),
        (FailureClass.TASK, "patch_rejected", {}, None),
        (FailureClass.SPEC, "image_not_found", {}, None),
        (FailureClass.QUOTA, "quota_denied", {}, None),
        (FailureClass.CANCELLED, "cancelled", {}, None),
    ],
)
def test_class_and_its_own_budget_decide(
    cls: FailureClass, code: str, used: dict[str, int], counts_as: str | None
) -> None:
    decision = decide(cls, code, **used, infra_max=3, task_max=1)
    assert decision.counts_as == counts_as
    assert decision.retry is (counts_as is not None)
    assert (decision.at is None) is (counts_as is None)
    assert decision.reason.startswith(code)


def test_default_budget_never_repeats_a_sample() -> None:
    assert not decide(FailureClass.TASK).retry
    assert decide(FailureClass.INFRA).retry


@given(
    used=st.integers(0, 2_000),
    initial=st.floats(0, 1e6),
    factor=st.floats(0, 1e6),
    cap=st.floats(0, 1e6),
    seed=st.integers(0, 9),
)
def test_delay_lies_between_zero_and_its_ceiling(
    used: int, initial: float, factor: float, cap: float, seed: int
) -> None:
    policy = RetryBudget(infra_max=used + 1, initial_seconds=initial, factor=factor, cap_seconds=cap)
    failure = Failure(FailureClass.INFRA, "node_lost", "")
    decision = decide_retry(failure, policy, infra_losses=used, task_retries=0, now=NOW, rng=Random(seed))
    assert decision.at is not None
    assert NOW <= decision.at <= NOW + timedelta(seconds=cap)
    if used == 0:
        assert decision.at <= NOW + timedelta(seconds=min(initial, cap))


def test_ceiling_grows_by_the_factor_up_to_the_cap() -> None:
    class Highest(Random):
        def uniform(self, a: float, b: float) -> float:
            assert a == 0
            return b

    delays = []
    for used in range(5):
        policy = RetryBudget(infra_max=9, initial_seconds=2, factor=3, cap_seconds=50)
        failure = Failure(FailureClass.INFRA, "node_lost", "")
        decision = decide_retry(failure, policy, infra_losses=used, task_retries=0, now=NOW, rng=Highest())
        assert decision.at is not None
        delays.append((decision.at - NOW).total_seconds())
    assert delays == [2, 6, 18, 50, 50]


def test_equal_seeds_give_equal_delays() -> None:
    assert decide(FailureClass.INFRA) == decide(FailureClass.INFRA)
