"""Log parsers by name: built-in ones and those that installed distributions offer.

A parser turns the text of a test run into statuses and says whether the run gave evidence of its end. Anyone adds one
by `@register_parser("name")` or, from another distribution, by an entry point of the group `sandmill.log_parsers`
whose name is the parser's name and whose object is a `LogParser` or a function `(str) -> ParsedLog`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from core.errors import SpecInvalidError
from services.outcomes import TestStatus

__all__ = ["ENTRY_POINT_GROUP", "LogParser", "ParsedLog", "get_parser", "known_parsers", "register_parser"]

ENTRY_POINT_GROUP = "sandmill.log_parsers"


@dataclass(frozen=True, slots=True)
class ParsedLog:
    """What a log shows.

    tests: status by test id. completed: the log proves that the run reached its end and every test it counts is in
    `tests`; reason says what is missing otherwise. skipped_groups: prefixes of test ids whose group was skipped as a
    whole, so that its tests are not listed one by one.
    """

    tests: Mapping[str, TestStatus]
    completed: bool
    reason: str = ""
    skipped_groups: tuple[str, ...] = ()

    def status_of(self, test_id: str) -> TestStatus | None:
        """Give the status of one test; None when the log does not show it."""
        found = self.tests.get(test_id)
        if found is None and any(test_id.startswith(group + ".") for group in self.skipped_groups):
            return TestStatus.SKIPPED
        return found


@dataclass(frozen=True, slots=True)
class LogParser:
    """One parser. parse: full log text to result; never raises, linear in time.

    canonical_id: turns the spellings of a test id that job authors use into the one `parse` gives.
    """

    name: str
    parse: Callable[[str], ParsedLog]
    canonical_id: Callable[[str], str] = str


_parsers: dict[str, LogParser] = {}


def register_parser(
    name: str, *, canonical_id: Callable[[str], str] = str
) -> Callable[[Callable[[str], ParsedLog]], Callable[[str], ParsedLog]]:
    """Register the decorated function under `name`. Raises ValueError if the name is taken."""

    def register(parse: Callable[[str], ParsedLog]) -> Callable[[str], ParsedLog]:
        if name in _parsers:
            raise ValueError(f"a log parser named {name!r} is registered already")
        _parsers[name] = LogParser(name, parse, canonical_id)
        return parse

    return register


def known_parsers() -> tuple[str, ...]:
    """List the names of all parsers, sorted; those of other distributions are not loaded for it."""
    return tuple(sorted({*_parsers, *_entry_points()}))


def get_parser(name: str) -> LogParser:
    """Find a parser. Raises SpecInvalidError when there is none or the one of another distribution does not load."""
    parser = _parsers.get(name)
    if parser is not None:
        return parser
    entry = _entry_points().get(name)
    if entry is None:
        raise SpecInvalidError(f"no log parser {name!r}; there are: {', '.join(known_parsers())}")
    try:
        loaded = entry.load()
    except Exception as error:  # foreign code at import: whatever it raises means the same to the job
        raise SpecInvalidError(f"log parser {name!r} ({entry.value}) does not load: {error}") from error
    parser = loaded if isinstance(loaded, LogParser) else LogParser(name, loaded)
    return _parsers.setdefault(name, parser)


@cache  # reads the metadata of every installed distribution; that set does not change in a running process
def _entry_points() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
