"""From stored bytes to lines: the bounds every log parser shares.

The bytes come from a sandbox. Lines are cut to a bounded length and read one at a time, so that a log of any shape
costs time and memory in proportion to its size.
"""

import re
from collections.abc import Iterator

from services.outcomes import TestStatus

__all__ = ["MAX_LOG_BYTES", "MAX_TESTS", "TestTable", "decode_log", "iter_lines"]

MAX_LOG_BYTES = 64 << 20
"""Logs above are not graded; the cap on stored output per attempt is below it."""

MAX_TESTS = 200_000
"""Tests one log may name; the largest suites in public benchmarks have some ten thousand."""

MAX_LINE_CHARS = 8_192

_ANSI = re.compile(r"\x1b\[[0-9;?]{0,32}[ -/]{0,4}[@-~]")
_NON_EMPTY_LINE = re.compile(r"[^\n]+")


def decode_log(log: bytes) -> str:
    """Decode as UTF-8 with replacement; NUL, which PostgreSQL cannot store, is replaced as well."""
    return log.decode("utf-8", "replace").replace("\x00", "\ufffd")


def iter_lines(text: str) -> Iterator[str]:
    """Give the non-empty lines without terminator and colours; of an overlong one its two ends, joined."""
    has_colours = "\x1b" in text
    for match in _NON_EMPTY_LINE.finditer(text):
        start, end = match.span()
        if end - start > MAX_LINE_CHARS:
            line = text[start : start + MAX_LINE_CHARS // 2] + text[end - MAX_LINE_CHARS // 2 : end]
        else:
            line = match.group()
        if has_colours:
            line = _ANSI.sub("", line)
        line = line.rstrip("\r")
        if line:
            yield line


class TestTable:
    """Statuses by test id. A test reported with different results counts as failed.

    Output of the code under test can look like the runner's. Both lines then stand in the log, and taking either one
    alone would let a submission choose; so a contradiction is never a pass.
    """

    __test__ = False  # keeps pytest from collecting the class by its name

    def __init__(self) -> None:
        """Start empty."""
        self.tests: dict[str, TestStatus] = {}
        self.is_full = False

    def add(self, test_id: str, status: TestStatus) -> None:
        """Record one report. Beyond MAX_TESTS ids nothing is added and `is_full` is set."""
        known = self.tests.get(test_id)
        if known is None:
            if len(self.tests) >= MAX_TESTS:
                self.is_full = True
                return
            self.tests[test_id] = status
        elif known is not status:
            self.tests[test_id] = TestStatus.FAILED

    def update(self, other: "TestTable") -> None:
        """Record all reports of another table."""
        for test_id, status in other.tests.items():
            self.add(test_id, status)
        self.is_full |= other.is_full
