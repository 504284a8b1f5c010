from itertools import combinations
from statistics import fmean

import pytest

from services.report_statistics import estimate, pass_at_k, pass_hat_k, reported_ks, wilson_interval


@pytest.mark.parametrize("n", range(1, 8))
def test_pass_at_k_and_pass_hat_k_are_those_of_all_subsets(n: int) -> None:
    for c in range(n + 1):
        trials = [True] * c + [False] * (n - c)
        for k in range(1, n + 1):
            subsets = list(combinations(trials, k))
            assert pass_at_k(n, c, k) == pytest.approx(fmean(any(subset) for subset in subsets))
            assert pass_hat_k(n, c, k) == pytest.approx(fmean(all(subset) for subset in subsets))


def test_fewer_trials_than_k_give_no_figure() -> None:
    assert pass_at_k(3, 3, 4) is None
    assert pass_hat_k(3, 3, 4) is None


@pytest.mark.parametrize(
    ("n", "ks"), [(0, []), (1, [1]), (3, [1, 2]), (8, [1, 2, 4, 5, 8]), (16, [1, 2, 4, 5, 8, 10, 15, 16])]
)
def test_reported_ks(n: int, ks: list[int]) -> None:
    assert reported_ks(n) == ks


@pytest.mark.parametrize(
    ("passed", "total", "expected"),
    [(0, 10, (0.0, 0.2775)), (5, 10, (0.2366, 0.7634)), (10, 10, (0.7225, 1.0))],
)
def test_wilson_interval_of_published_examples(
    passed: int, total: int, expected: tuple[float, float]
) -> None:
    assert wilson_interval(passed, total) == pytest.approx(expected, abs=1e-4)


def test_jobs_are_the_clusters_of_the_interval() -> None:
    found = estimate([(4, 4), (4, 0), (4, 2)], [1, 2])
    assert found.mean_at_n == pytest.approx(0.5)
    assert found.standard_error == pytest.approx(0.5 / 3**0.5)
    assert found.interval_method == "cluster"
    assert found.interval_95 == (0.0, 1.0)
    assert found.pass_at_k == {1: pytest.approx(0.5), 2: pytest.approx((1 + 0 + 5 / 6) / 3)}


def test_one_trial_per_job_gets_the_wilson_interval() -> None:
    found = estimate([(1, 1)] * 5 + [(1, 0)] * 5 + [(0, 0)], [1])
    assert (found.jobs, found.trials, found.passed) == (10, 10, 5)
    assert found.interval_method == "wilson"
    assert found.interval_95 == pytest.approx((0.2366, 0.7634), abs=1e-4)


def test_job_with_too_few_trials_leaves_that_k_empty() -> None:
    found = estimate([(4, 2), (2, 1)], [1, 2, 4])
    assert found.pass_at_k[4] is None
    assert found.pass_hat_k[4] is None
    assert found.pass_at_k[2] is not None


def test_nothing_gives_no_figures() -> None:
    found = estimate([], [])
    assert (found.mean_at_n, found.standard_error, found.interval_95, found.interval_method) == (None,) * 4
