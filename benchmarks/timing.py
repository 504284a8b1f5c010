"""Times and their middle values; the reference that all ratios stand on."""

import math
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

__all__ = ["fork_exec", "median", "percentile", "summary", "timed", "timed_into"]


def fork_exec() -> None:
    """Start /bin/true and wait for its end: what starting anything costs at least on this machine, right now."""
    subprocess.run(["/bin/true"], check=True)


def timed(action: Callable[[], object], times: int = 1) -> list[float]:
    """Milliseconds of each call."""
    result: list[float] = []
    for _ in range(times):
        with timed_into(result):
            action()
    return result


@contextmanager
def timed_into(milliseconds: list[float]) -> Iterator[None]:
    """Append how long the body took."""
    started = time.perf_counter()
    yield
    milliseconds.append(1000 * (time.perf_counter() - started))


def median(values: Sequence[float]) -> float:
    """Middle value."""
    return statistics.median(values)


def percentile(values: Sequence[float], percent: float) -> float:
    """Smallest value that so many percent of all do not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def summary(name: str, milliseconds: Sequence[float], references: dict[str, float]) -> dict[str, float]:
    """Give p50 and p99, and the ratio of p50 to each reference (name to milliseconds)."""
    middle = median(milliseconds)
    result = {f"{name}_ms_p50": round(middle, 2), f"{name}_ms_p99": round(percentile(milliseconds, 99), 2)}
    for reference, value in references.items():
        result[f"{name}_per_{reference}"] = round(middle / value, 3 if middle < value else 2)
    return result
