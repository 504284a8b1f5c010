from importlib.metadata import EntryPoint

import pytest

from core.errors import SpecInvalidError
from services.outcomes import TestStatus
from services.verdicts import ParsedLog, get_parser, known_parsers, register_parser, registry
from services.verdicts.logtext import TestTable, decode_log, iter_lines


def parse_nothing(text: str) -> ParsedLog:
    return ParsedLog({}, completed=True)


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        "good": EntryPoint("good", f"{__name__}:parse_nothing", registry.ENTRY_POINT_GROUP),
        "bad": EntryPoint("bad", "json:there_is_no_such_thing", registry.ENTRY_POINT_GROUP),
    }
    monkeypatch.setattr(registry, "_entry_points", lambda: found)
    monkeypatch.setattr(registry, "_parsers", dict(registry._parsers))
    monkeypatch.setattr(EntryPoint, "load", load)


def load(entry: EntryPoint) -> object:
    # Test modules are not importable by name; everything else loads as it does outside tests.
    if entry.attr == "parse_nothing":
        return parse_nothing
    raise AttributeError(entry.attr)


def test_built_in_parsers_are_known() -> None:
    assert {"pytest", "unittest"} <= set(known_parsers())


@pytest.mark.usefixtures("plugins")
def test_parsers_of_other_distributions_are_found_by_entry_point() -> None:
    assert known_parsers() == ("bad", "good", "pytest", "unittest")
    assert get_parser("good").parse("x").completed


@pytest.mark.usefixtures("plugins")
def test_parser_that_does_not_load_is_an_error_of_the_spec() -> None:
    with pytest.raises(SpecInvalidError, match=r"log parser 'bad' .* does not load"):
        get_parser("bad")


@pytest.mark.usefixtures("plugins")
def test_name_is_registered_once() -> None:
    with pytest.raises(ValueError, match="registered already"):
        register_parser("unittest")(parse_nothing)


def test_table_of_tests_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.verdicts.logtext.MAX_TESTS", 2)
    table = TestTable()
    for name in "aabc":
        table.add(name, TestStatus.PASSED)
    assert table.is_full
    assert list(table.tests) == ["a", "b"]


def test_lines_are_cut_to_their_two_ends() -> None:
    long = "a" * 100_000 + "z" * 100_000
    lines = list(iter_lines(f"x\r\n\r\n{long}\ny\r"))
    assert lines[0] == "x"
    assert lines[1].startswith("a")
    assert lines[1].endswith("z")
    assert len(lines[1]) < 10_000
    assert lines[2:] == ["y"]


def test_any_bytes_decode_to_text_the_database_can_hold() -> None:
    assert decode_log(b"a\x00\xffb") == "a\ufffd\ufffdb"
