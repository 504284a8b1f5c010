"""Reads the output of pytest: the summary of `-rA` and the lines of `-v`, also those of xdist.

Summary lines count only between the header `short test summary info` and the totals, so captured output shown above
does not speak for a test. Evidence of the end: the last line with totals (`2 failed, 7 passed in 0.88s`), and as many
tests listed as it counts. Text that forges a whole summary cannot be told from the real thing.

Skipped tests stand in the summary as `file:line` and are therefore known by id only with `-v` or
`--no-fold-skipped`. A test id is what pytest prints: `tests/test_a.py::TestC::test_x[param]`.
"""

import re
from collections import Counter
from dataclasses import dataclass, field

from services.outcomes import TestStatus
from services.verdicts.logtext import MAX_TESTS, TestTable, iter_lines
from services.verdicts.registry import ParsedLog, register_parser

__all__ = ["parse_pytest"]

_WORDS = {
    "PASSED": TestStatus.PASSED,
    "FAILED": TestStatus.FAILED,
    "SUBFAILED": TestStatus.FAILED,
    "SUBFAIL": TestStatus.FAILED,  # the plugin's word before pytest 9
    "ERROR": TestStatus.ERROR,
    "SKIPPED": TestStatus.SKIPPED,
    "XFAIL": TestStatus.XFAIL,
    "XPASS": TestStatus.XPASS,
}
_COUNTED = {
    "passed": TestStatus.PASSED,
    "failed": TestStatus.FAILED,
    "error": TestStatus.ERROR,
    "errors": TestStatus.ERROR,
    "skipped": TestStatus.SKIPPED,
    "xfailed": TestStatus.XFAIL,
    "xpassed": TestStatus.XPASS,
}
_COUNT_WORDS = {*_COUNTED, "deselected", "warning", "warnings", "rerun", "subtests passed", "tests ran"}
_SESSION = re.compile(r"={3,} test session starts ={3,}$")
_HEADER = re.compile(r"={3,} short test summary info ={3,}$")
_TOTALS = re.compile(
    r"(?:=+ )?(\d[^=]{0,400}|no tests ran) in \d{1,9}\.\d\ds(?: \([0-9:, day]{1,40}\))?(?: =+)?$"
)
_COUNT = re.compile(r"(\d{1,9}|no) ([a-z]+(?: [a-z]+)?)")
_SUMMARY = re.compile(r"(PASSED|FAILED|ERROR|XFAIL|XPASS|SKIPPED|SUBFAIL(?:ED)?(?=[\[( ]))")
_SKIPPED_AT = re.compile(r"\[(\d{1,9})\] (\S+)")
_PROGRESS = re.compile(r" +\[ *(?:\d{1,3}%|\d+/\d+)\]$")
_XDIST = re.compile(r"\[gw\d{1,4}\] (?:\[ *\d{1,3}%\] )?(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) (\S.*)$")


@register_parser("pytest")
def parse_pytest(text: str) -> ParsedLog:
    """Read the statuses and whether the run came to its end. Any text is allowed."""
    reader = _Reader()
    for line in iter_lines(text):
        reader.feed(line)
    return reader.finish()


@dataclass(slots=True)
class _Summary:
    """One `short test summary info` up to its totals; totals is None while they are missing."""

    table: TestTable = field(default_factory=TestTable)
    listed: Counter[TestStatus] = field(default_factory=Counter)
    totals: Counter[TestStatus] | None = None


@dataclass(slots=True)
class _Reader:
    verbose: _Summary = field(default_factory=_Summary)
    summaries: list[_Summary] = field(default_factory=list)
    in_summary: bool = False
    sessions: int = 0
    open_id: str = ""

    def feed(self, line: str) -> None:
        if _HEADER.match(line):
            self.in_summary = True
            self.summaries.append(_Summary())
        elif self._read_totals(line):
            self.in_summary = False
        elif self.in_summary:
            self._read_summary(line, self.summaries[-1])
        elif _SESSION.match(line):
            self.sessions += 1
        else:
            self._read_verbose(line)

    def finish(self) -> ParsedLog:
        ended = [summary for summary in self.summaries if summary.totals is not None]
        reason = self._what_is_missing(ended)
        if reason and ended and not self._what_is_missing(ended[-1:]):
            # Tests that run pytest themselves show inner summaries; then the last one alone speaks.
            reason, ended = "", ended[-1:]
        table = TestTable()
        for summary in [self.verbose, *ended]:
            table.update(summary.table)
        if table.is_full:
            reason = f"the log names more than {MAX_TESTS} tests"
        return ParsedLog(table.tests, not reason, reason)

    def _read_totals(self, line: str) -> bool:
        match = _TOTALS.match(line)
        if match is None:
            return False
        totals: Counter[TestStatus] = Counter()
        for part in match[1].split(","):
            count = _COUNT.fullmatch(part.strip())
            if count is None or count[2] not in _COUNT_WORDS:
                return False
            if count[2] in _COUNTED and count[1] != "no":
                totals[_COUNTED[count[2]]] += int(count[1])
        if not self.in_summary:
            self.summaries.append(_Summary())
        self.summaries[-1].totals = totals
        return True

    def _read_summary(self, line: str, summary: _Summary) -> None:
        match = _SUMMARY.match(line)
        if match is None:
            return
        status = _WORDS[match[1]]
        rest = line[match.end() :]
        if match[1].startswith("SUB"):  # `SUBFAILED[message] (i=1) id`; the id is the first word with `::`
            rest = " " + next((word for word in rest.split(" ") if "::" in word), "")
        if not rest.startswith(" ") or len(rest) < 2:
            return
        rest = rest[1:]
        folded = _SKIPPED_AT.match(rest)
        if folded is not None:
            summary.listed[status] += int(folded[1])
            return
        summary.listed[status] += 1
        summary.table.add(rest if status is TestStatus.PASSED else _without_message(rest), status)

    def _read_verbose(self, line: str) -> None:
        by_worker = _XDIST.match(line)
        if by_worker is not None:
            self._add_verbose(by_worker[2].rstrip(), _WORDS[by_worker[1]])
            return
        stripped = _PROGRESS.sub("", line).rstrip()
        found = _result_of(stripped)
        if found is not None:
            before, status = found
            # With -s, output of the test stands between its id and its result; the id then opened an earlier line.
            test_id = before if _looks_like_id(before) else self.open_id
            if test_id:
                self._add_verbose(test_id, status)
            self.open_id = ""
            return
        first = stripped.partition(" ")[0]
        if _looks_like_id(first):
            self.open_id = first

    def _add_verbose(self, test_id: str, status: TestStatus) -> None:
        self.verbose.listed[status] += 1
        self.verbose.table.add(test_id, status)

    def _what_is_missing(self, summaries: list[_Summary]) -> str:
        if not summaries or self.sessions > sum(summary.totals is not None for summary in self.summaries):
            return "the log has no line with totals: pytest did not end"
        for status in (TestStatus.PASSED, TestStatus.FAILED):
            total = sum(summary.totals[status] for summary in summaries if summary.totals is not None)
            listed = sum(summary.listed[status] for summary in summaries)
            if total not in {listed, self.verbose.listed[status]}:
                listed = max(listed, self.verbose.listed[status])
                return f"{total} tests {status} but the log lists {listed}; pytest needs -rA or -v"
        return ""


def _result_of(line: str) -> tuple[str, TestStatus] | None:
    """Give what stands before the result a `-v` line ends with (` PASSED`, ` SKIPPED (why)`), and the result."""
    for word, status in _WORDS.items():
        if line == word or line.endswith(" " + word):
            return line[: -len(word)].strip(), status
        if line.endswith(")"):
            before, found, _ = line.partition(f" {word} (")
            if found:
                return before.strip(), status
    return None


def _looks_like_id(text: str) -> bool:
    path, found, name = text.partition("::")
    return bool(found and path and name) and " " not in path


def _without_message(text: str) -> str:
    """Cut ` - message` off `id - message`; parameters in brackets may hold ` - ` themselves."""
    cut = text.find(" - ")
    bracket = text.find("[")
    if cut < 0 or not 0 <= bracket < cut:
        return text if cut < 0 else text[:cut]
    end = text.find("] - ", bracket)
    if end >= 0:
        return text[: end + 1]
    return text if text.endswith("]") else text[:cut]
