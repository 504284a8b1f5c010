"""Of cases that repeat each other one is tried a day: the same everywhere, and in time each of them."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.support import rotation
from tests.support.rotation import of_today, of_today_among

NAMES = ["a", "b", "c", "d"]

FILE = """
import pytest

@pytest.mark.one_a_day("kind")
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("kind", ["a", "b", "c", "d"])
def test_marked(kind, size):
    pass

@pytest.mark.parametrize("kind", ["a", "b"])
def test_other(kind):
    pass
"""


@pytest.fixture(autouse=True)
def _no_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SANDMILL_ALL_CASES", raising=False)


def set_day(monkeypatch: pytest.MonkeyPatch, day: int) -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC) + timedelta(days=day)
    monkeypatch.setattr(rotation, "datetime", type("Day", (), {"now": staticmethod(lambda _tz: now)}))


@pytest.fixture(scope="module")
def items(tmp_path_factory: pytest.TempPathFactory) -> list[pytest.Item]:
    """The cases of FILE."""
    folder = tmp_path_factory.mktemp("rotation")
    (folder / "test_it.py").write_text(FILE)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = one_a_day\n")
    found: list[pytest.Item] = []

    class Seen:
        def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
            found.extend(items)

    options = ["--collect-only", "-qq", "--import-mode=importlib", "-c", str(folder / "pytest.ini")]
    assert pytest.main([*options, str(folder)], plugins=[Seen()]) == 0
    return found


def test_each_name_has_its_days(monkeypatch):
    seen = []
    for day in range(60):
        set_day(monkeypatch, day)
        assert of_today(NAMES, count=2) == of_today(reversed(NAMES), count=2)
        seen.append(tuple(of_today(NAMES, count=2)))
    assert {name for pair in seen for name in pair} == set(NAMES)
    assert len(set(seen)) == 6
    assert {len(pair) for pair in seen} == {2}


def test_all_names_are_given_to_who_wants_them(monkeypatch):
    monkeypatch.setenv("SANDMILL_ALL_CASES", "1")
    assert of_today(NAMES, count=2) == NAMES


def test_one_case_stays_of_those_that_differ_by_the_named_parameter_alone(monkeypatch, items):
    seen = set()
    for day in range(40):
        set_day(monkeypatch, day)
        left = of_today_among(items)
        assert left == [item for item in items if item in left]
        *marked, other, last = sorted(item.name for item in left)
        assert [other, last] == ["test_other[a]", "test_other[b]"]
        assert {name[-2:] for name in marked} == {"1]", "2]"}
        assert len(marked) == 2
        assert of_today_among(items[::-1]) == left[::-1]
        seen |= set(marked)
    assert len(seen) == 8


def test_all_cases_stay_for_who_wants_them(monkeypatch, items):
    monkeypatch.setenv("SANDMILL_ALL_CASES", "1")
    assert of_today_among(items) == items
    assert len(items) == 10
