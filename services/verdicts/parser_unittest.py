"""Reads the output of `python -m unittest -v`, of every release from 3.8 to 3.14.

The runner writes to stderr while tests write to stdout, so anything may stand between a test's name and its result,
and text without a line end may be glued to either. The parser therefore looks for a name, then takes the last result
written before the next name; a line that is a result and nothing else outweighs one that merely ends like one.

Test ids are `module.Class.method`. Evidence of the end: the totals `Ran N tests` are those of the tests listed, and
each is followed by OK or FAILED. Text printed by the code under test that forges all of that, test by test, cannot be
told from the real thing; run untrusted code in a process of its own where that matters.
"""

import re
from dataclasses import dataclass, field

from services.outcomes import TestStatus
from services.verdicts.logtext import MAX_TESTS, TestTable, iter_lines
from services.verdicts.registry import ParsedLog, register_parser

__all__ = ["canonical_unittest_id", "parse_unittest"]

_HEAD = re.compile(r"( {0,2})([^\s()]{1,400}) \(([^\s()]{1,800})\)")
_RAN = re.compile(r"Ran (\d{1,9}) tests? in [0-9.]+s$")
_END = re.compile(r"(OK|FAILED|NO TESTS RAN)(?: \(.*)?$")
_SKIPPED = re.compile(r"skipped (?:'.*'|\".*\")$")
_REPORT = re.compile(r"(ERROR|FAIL|UNEXPECTED SUCCESS): (?=\S)")
_RULER = "=" * 70
_MAX_NAMES_PER_LINE = 20
_LEAVES_LINE_OPEN = frozenset({"expected failure", "unexpected success"})
_FIXTURES = frozenset({"setUpClass", "setUpModule", "tearDownClass", "tearDownModule"})

_WORDS = {
    "ok": TestStatus.PASSED,
    "FAIL": TestStatus.FAILED,
    "ERROR": TestStatus.ERROR,
    "expected failure": TestStatus.XFAIL,
    # unittest counts it as a failure of the run, unlike pytest's xpass
    "unexpected success": TestStatus.FAILED,
}
_REPORTED = {"ERROR": TestStatus.ERROR, "FAIL": TestStatus.FAILED, "UNEXPECTED SUCCESS": TestStatus.FAILED}


def canonical_unittest_id(test_id: str) -> str:
    """Turn `test_x (mod.Class)` and `test_x (mod.Class.test_x)` into `mod.Class.test_x`; leave anything else."""
    match = _HEAD.fullmatch(test_id.strip())
    return test_id if match is None else _join_id(match[2], match[3])


@register_parser("unittest", canonical_id=canonical_unittest_id)
def parse_unittest(text: str) -> ParsedLog:
    """Read the statuses and whether the run came to its end. Any text is allowed."""
    reader = _Reader()
    for line in iter_lines(text):
        reader.feed(line)
    return reader.finish()


def _join_id(name: str, dotted: str) -> str:
    last = dotted.rpartition(".")[2]
    # Since 3.11 the parentheses hold the whole id. Text glued in front of the name leaves the name's end intact.
    if last == name or dotted.endswith("." + name) or (last.startswith("test") and name.endswith(last)):
        return dotted
    return f"{dotted}.{name}"


@dataclass(slots=True)
class _Test:
    """A test whose name was read and whose result is still to come."""

    test_id: str
    is_fixture: bool
    is_final: bool = False  # further results before the next name belong to something else
    weak: TestStatus | None = None
    strong: TestStatus | None = None
    subtest: TestStatus | None = None

    @property
    def status(self) -> TestStatus:
        # A test gets no line of its own once a subtest failed or was skipped. One without any result did not end.
        if self.subtest is not None and self.subtest.is_failing:
            return self.subtest
        return self.strong or self.weak or self.subtest or TestStatus.ERROR

    def add_subtest(self, status: TestStatus) -> None:
        if self.subtest is None or not self.subtest.is_failing:
            self.subtest = status


@dataclass(slots=True)
class _Reader:
    table: TestTable = field(default_factory=TestTable)
    current: _Test | None = None
    awaits_doc: tuple[str, str] | None = None
    awaits_end: bool = False
    is_reporting: bool = False
    rest: str = ""
    started: int = 0
    skipped: int = 0
    totals: list[int] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    skipped_groups: list[str] = field(default_factory=list)

    def feed(self, line: str) -> None:
        # Before 3.11 a test with failed subtests leaves its line open, and the next name follows on the same line.
        for _ in range(_MAX_NAMES_PER_LINE):
            self._feed(line)
            if not self.rest:
                return
            line, self.rest = self.rest, ""

    def _feed(self, line: str) -> None:
        if self.awaits_doc is not None:
            (test_id, dotted), self.awaits_doc = self.awaits_doc, None
            _, found, tail = line.partition(" ... ")
            if found:
                self._open(test_id, dotted, tail)
                return
        if self._read_total(line) or self._read_report(line):
            return
        if not self._read_head(line) and self.current is not None:
            self._take_result(line)

    def finish(self) -> ParsedLog:
        self._close()
        reason = self._what_is_missing()
        return ParsedLog(self.table.tests, not reason, reason, tuple(self.skipped_groups))

    def _read_total(self, line: str) -> bool:
        if self.awaits_end:
            self.awaits_end = False
            end = _END.match(line)
            if end is not None:
                self.ends.append(end[1])
                return True
        total = _RAN.match(line)
        if total is None:
            return False
        self.is_reporting = False
        self.totals.append(int(total[1]))
        self.awaits_end = True
        return True

    def _read_report(self, line: str) -> bool:
        """Read `FAIL: name (id)` below a ruler: it also tells of results that were lost in other output."""
        if line == _RULER:
            self.is_reporting = True
            return True
        report = _REPORT.match(line) if self.is_reporting else None
        self.is_reporting = False
        if report is None:
            return False
        head = _HEAD.match(line, report.end())
        if head is not None:
            self.table.add(_join_id(head[2], head[3]), _REPORTED[report[1]])
        # unexpected successes are listed line after line below one ruler
        self.is_reporting = report[1] == "UNEXPECTED SUCCESS"
        return True

    def _read_head(self, line: str) -> bool:
        match = _HEAD.match(line)
        if match is None:
            return self._read_glued_head(line)
        indent, name, dotted = match.groups()
        rest = line[match.end() :]
        test_id = _join_id(name, dotted)
        if rest.startswith(" ... "):
            self._open(test_id, dotted, rest[5:])
        elif not rest:
            self.awaits_doc = (test_id, dotted)
        elif indent:
            return self._read_subtest(test_id, rest)
        else:
            return False
        return True

    def _read_glued_head(self, line: str) -> bool:
        """Find a name behind other text, as `half a line of outputtest_x (m.C.test_x) ... ok`."""
        end = line.find(") ... ")
        start = line.rfind(" (", 0, end) if end > 0 else -1
        if start < 0:
            return False
        name = line[line.rfind(" ", 0, start) + 1 : start]
        dotted = line[start + 2 : end]
        if "test" not in name or not dotted.replace(".", "").replace("<", "").replace(">", "").isidentifier():
            return False
        self._open(_join_id(name, dotted), dotted, line[end + 6 :])
        return True

    def _read_subtest(self, test_id: str, rest: str) -> bool:
        status = _result_at_end(rest.rpartition(" ... ")[2])[0]
        if status is None:
            return False
        if self.current is not None and self.current.test_id == test_id:
            self.current.add_subtest(status)
        elif status.is_failing:
            self.table.add(test_id, status)
        return True

    def _open(self, test_id: str, dotted: str, tail: str) -> None:
        test = self.current
        # The name of a test whose subtests wrote lines is written again before its own result.
        if test is None or test.test_id != test_id or test.strong is not None:
            self._close()
            test = self.current = _Test(test_id, is_fixture=test_id.rpartition(".")[2] in _FIXTURES)
            self.started += not test.is_fixture
        if _HEAD.match(tail):
            self.rest = tail
            return
        self._take_result(tail)
        if test.strong is not None:
            # Before 3.11 the results of class fixtures stand alone on a line, so the first one is the test's own.
            # Later runners do that after these two words only; there a later result outweighs a printed one.
            test.is_final = test_id != dotted or tail.strip() in _LEAVES_LINE_OPEN

    def _take_result(self, text: str) -> None:
        status, is_whole = _result_at_end(text)
        if status is None or self.current is None or self.current.is_final:
            return
        if is_whole:
            self.current.strong = status
        else:
            self.current.weak = status

    def _close(self) -> None:
        test, self.current = self.current, None
        if test is None:
            return
        self.table.add(test.test_id, test.status)
        self.skipped += test.status is TestStatus.SKIPPED and not test.is_fixture
        if test.is_fixture and test.status is TestStatus.SKIPPED:
            self.skipped_groups.append(test.test_id.rpartition(".")[0])

    def _what_is_missing(self) -> str:
        if self.table.is_full:
            return f"the log names more than {MAX_TESTS} tests"
        if not self.totals:
            return "the log has no line 'Ran N tests': the run did not end"
        if len(self.ends) != len(self.totals):
            return "a line 'Ran N tests' is not followed by OK or FAILED"
        # A test that itself runs unittest leaves inner totals (and rulers) behind; the last total is the outer one.
        # Python 3.12.1 leaves tests skipped by a decorator out of its total.
        possible = range(self.started - self.skipped, self.started + 1)
        if sum(self.totals) not in possible and self.totals[-1] not in possible:
            return f"{sum(self.totals)} tests ran but the log lists {self.started}; unittest needs -v"
        if self.ends[-1] == "FAILED" and not any(status.is_failing for status in self.table.tests.values()):
            return "the run ended with FAILED but the log shows no failing test"
        return ""


def _result_at_end(text: str) -> tuple[TestStatus | None, bool]:
    """Give the result the text ends with, and whether the text is nothing else."""
    stripped = text.strip()
    status = _WORDS.get(stripped)
    if status is not None:
        return status, True
    if _SKIPPED.match(stripped):
        return TestStatus.SKIPPED, True
    for word, status in _WORDS.items():
        if stripped.endswith(word):
            return status, False
    start = stripped.rfind("skipped ")
    return (TestStatus.SKIPPED, False) if start >= 0 and _SKIPPED.match(stripped, start) else (None, False)
