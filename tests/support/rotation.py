"""Which cases are tried today, where trying all of them with every change would take too long.

Other ones on other days; all of them where SANDMILL_ALL_CASES is 1. Cases of the same day are the same everywhere.
"""

import os
import random
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime

import pytest

__all__ = ["of_today", "of_today_among"]

_MARK = "one_a_day"


def of_today(names: Iterable[str], *, count: int) -> list[str]:
    """Give so many of the names, sorted."""
    names = sorted(names)
    return names if _all_are_wanted() else sorted(_random("").sample(names, count))


def of_today_among(items: list[pytest.Item]) -> list[pytest.Item]:
    """Leave out the cases of another day, of tests that are marked `one_a_day`.

    The names that the mark gives are those of parameters: of cases that differ by nothing else, one stays.
    """
    cases = defaultdict(list)
    for item in items:
        mark = item.get_closest_marker(_MARK)
        if mark is not None and isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            others = {name: value for name, value in item.callspec.params.items() if name not in mark.args}
            cases[f"{item.nodeid.partition('[')[0]} {sorted(others.items())}"].append(item.nodeid)
    if _all_are_wanted():
        return items
    left_out = set()
    for ids in map(sorted, cases.values()):
        left_out |= set(ids) - {_random(ids[0]).choice(ids)}
    return [item for item in items if item.nodeid not in left_out]


def _all_are_wanted() -> bool:
    return os.environ.get("SANDMILL_ALL_CASES") == "1"


def _random(what: str) -> random.Random:
    return random.Random(f"{datetime.now(UTC).date().isoformat()}{what}")
