"""The estimates a report rests on: pass@k, pass^k, means and their intervals. Pure arithmetic.

A job is a cluster: its trials share a task and are not independent of each other, jobs are. Every estimate is therefore
first made per job and then averaged over jobs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

__all__ = ["Estimate", "estimate", "pass_at_k", "pass_hat_k", "reported_ks", "wilson_interval"]

_Z_95 = 1.959963984540054
"""Two-sided 95 % quantile of the normal distribution."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What one choice of denominator says.

    jobs, trials, passed: how many entered. pass_at_k, pass_hat_k: by k, averaged over jobs; None when a job has fewer
    than k trials. mean_at_n: the jobs' pass rates averaged. standard_error: of mean_at_n, over jobs; None below two
    jobs or under "wilson". interval_95: lower and upper bound for mean_at_n.
    interval_method: "cluster" (normal, over jobs), "wilson" (one trial per job) or None (nothing to go by).
    """

    jobs: int
    trials: int
    passed: int
    pass_at_k: dict[int, float | None]
    pass_hat_k: dict[int, float | None]
    mean_at_n: float | None
    standard_error: float | None
    interval_95: tuple[float, float] | None
    interval_method: str | None


def pass_at_k(n: int, c: int, k: int) -> float | None:
    """Chance that at least one of k trials passes, of which c of n did, without bias; None when n < k.

    Source: Chen et al., "Evaluating Large Language Models Trained on Code", 2021: 1 - C(n-c, k) / C(n, k).
    """
    if n < k:
        return None
    if n - c < k:
        return 1.0
    return 1.0 - math.prod((n - c - i) / (n - i) for i in range(k))


def pass_hat_k(n: int, c: int, k: int) -> float | None:
    """Chance that all of k trials pass, of which c of n did: C(c, k) / C(n, k); None when n < k.

    Source: Yao et al., "tau-bench", 2024.
    """
    if n < k:
        return None
    return math.prod((c - i) / (n - i) for i in range(k)) if c >= k else 0.0


def reported_ks(smallest_n: int) -> list[int]:
    """Give the k to report: 1, 2, 4, 8, … and 5, 10, 15, … up to the trials of the job that has fewest."""
    powers = {1 << bit for bit in range(smallest_n.bit_length())}
    return sorted(k for k in powers | set(range(5, smallest_n + 1, 5)) if k <= smallest_n)


def wilson_interval(passed: int, total: int) -> tuple[float, float]:
    """Give the 95 % score interval of a share. total >= 1. Source: Wilson, JASA 22, 1927."""
    share, z2 = passed / total, _Z_95**2
    centre = (share + z2 / (2 * total)) / (1 + z2 / total)
    half = _Z_95 / (1 + z2 / total) * math.sqrt(share * (1 - share) / total + z2 / (4 * total**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def estimate(counts: Sequence[tuple[int, int]], ks: Sequence[int]) -> Estimate:
    """Estimate from (trials, passed) of each job; jobs without trials are left out. ks: the k to report."""
    counts = [(n, c) for n, c in counts if n > 0]
    rates = [c / n for n, c in counts]
    error, interval, method = _interval(counts, rates)
    return Estimate(
        jobs=len(counts),
        trials=sum(n for n, _ in counts),
        passed=sum(c for _, c in counts),
        pass_at_k={k: _mean([pass_at_k(n, c, k) for n, c in counts]) for k in ks},
        pass_hat_k={k: _mean([pass_hat_k(n, c, k) for n, c in counts]) for k in ks},
        mean_at_n=fmean(rates) if rates else None,
        standard_error=error,
        interval_95=interval,
        interval_method=method,
    )


def _mean(values: Sequence[float | None]) -> float | None:
    # Leaving out the jobs with too few trials would average over other jobs for each k.
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def _interval(
    counts: Sequence[tuple[int, int]], rates: Sequence[float]
) -> tuple[float | None, tuple[float, float] | None, str | None]:
    if not counts:
        return None, None, None
    if all(n == 1 for n, _ in counts):
        return None, wilson_interval(sum(c for _, c in counts), len(counts)), "wilson"
    if len(counts) < 2:
        return None, None, None
    error = stdev(rates) / math.sqrt(len(rates))
    mean = fmean(rates)
    return error, (max(0.0, mean - _Z_95 * error), min(1.0, mean + _Z_95 * error)), "cluster"
