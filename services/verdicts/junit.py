"""Reads JUnit XML from a sandbox as a stream of events: no tree, no DTD, no entities, bounded depth and size."""

from dataclasses import dataclass, field
from xml.parsers import expat

from services.outcomes import TestStatus, clean_text
from services.verdicts.logtext import TestTable

__all__ = ["InvalidJunitError", "JunitResult", "parse_junit"]

MAX_JUNIT_BYTES = 32 << 20
MAX_DEPTH = 64
MAX_ID_CHARS = 2_000


class InvalidJunitError(ValueError):
    """The file is not JUnit XML this service reads; the message says why."""


@dataclass(frozen=True, slots=True)
class JunitResult:
    """tests: status by id `classname.name`. by_name: ids by plain name, for `require` without a class.

    declared_bad: the most failures and errors any one suite says it has.
    """

    tests: dict[str, TestStatus]
    by_name: dict[str, list[str]]
    declared_bad: int = 0

    def status_of(self, required: str) -> TestStatus | None:
        """Give the status of a test asked for as `classname.name`, `classname::name` or `name`; None when absent.

        A plain name that several classes share has to pass in all of them.
        """
        found = self.tests.get(required) or self.tests.get(required.replace("::", "."))
        if found is not None:
            return found
        statuses = [self.tests[test_id] for test_id in self.by_name.get(required, [])]
        worst = (TestStatus.ERROR, TestStatus.FAILED, TestStatus.SKIPPED, TestStatus.XPASS, TestStatus.XFAIL)
        return next((status for status in worst if status in statuses), statuses[0] if statuses else None)


def parse_junit(content: bytes) -> JunitResult:
    """Read all test cases at any depth. Raises InvalidJunitError; never expands anything.

    A case reported twice with different results counts as failed. pytest's `skipped type="pytest.xfail"` is xfail.
    """
    if len(content) > MAX_JUNIT_BYTES:
        raise InvalidJunitError(f"the file is larger than {MAX_JUNIT_BYTES} bytes")
    reader = _Reader()
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = _refuse_doctype
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    try:
        parser.Parse(content, True)
    except InvalidJunitError:
        raise
    except (expat.ExpatError, LookupError, ValueError) as error:  # the last two: odd names of encodings
        raise InvalidJunitError(f"not well-formed XML: {error}") from error
    if reader.root not in {"testsuites", "testsuite"}:
        raise InvalidJunitError(f"the root element is <{clean_text(reader.root, 40)}>, not <testsuites>")
    if reader.table.is_full:
        raise InvalidJunitError("the file names too many tests")
    return JunitResult(reader.table.tests, reader.by_name, reader.declared_bad)


def _refuse_doctype(*_: object) -> None:
    raise InvalidJunitError("a document type declaration is not allowed")


@dataclass(slots=True)
class _Reader:
    table: TestTable = field(default_factory=TestTable)
    by_name: dict[str, list[str]] = field(default_factory=dict)
    root: str = ""
    depth: int = 0
    case: tuple[str, str] | None = None
    case_depth: int = 0
    status: TestStatus = TestStatus.PASSED
    declared_bad: int = 0

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise InvalidJunitError(f"elements are nested deeper than {MAX_DEPTH}")
        if tag in {"testsuite", "testsuites"}:
            self.declared_bad = max(self.declared_bad, _declared_bad(attributes))
        if self.depth == 1:
            self.root = tag
        elif tag == "testcase":
            self._open_case(attributes)
        elif self.case is not None and self.depth == self.case_depth + 1:
            self._take_result(tag, attributes)

    def end(self, tag: str) -> None:
        if tag == "testcase" and self.case is not None and self.depth == self.case_depth:
            test_id, name = self.case
            is_new = test_id not in self.table.tests
            self.table.add(test_id, self.status)
            if is_new and not self.table.is_full:
                self.by_name.setdefault(name, []).append(test_id)
            self.case = None
        self.depth -= 1

    def _open_case(self, attributes: dict[str, str]) -> None:
        if self.case is not None:
            raise InvalidJunitError("a test case stands inside another")
        name = clean_text(attributes.get("name", ""), MAX_ID_CHARS)
        group = clean_text(attributes.get("classname", ""), MAX_ID_CHARS)
        if not name:
            raise InvalidJunitError("a test case has no name")
        self.case = (f"{group}.{name}" if group else name, name)
        self.case_depth = self.depth
        self.status = TestStatus.PASSED

    def _take_result(self, tag: str, attributes: dict[str, str]) -> None:
        if tag == "error" or (tag == "failure" and self.status is not TestStatus.ERROR):
            self.status = TestStatus.ERROR if tag == "error" else TestStatus.FAILED
        elif tag == "skipped" and not self.status.is_failing:
            is_expected = attributes.get("type") == "pytest.xfail"
            self.status = TestStatus.XFAIL if is_expected else TestStatus.SKIPPED


def _declared_bad(attributes: dict[str, str]) -> int:
    """Sum failures and errors of a suite; what is no small number counts as none."""
    counts = (attributes.get(name, "0") for name in ("failures", "errors"))
    return sum(int(count) for count in counts if count.isascii() and count.isdecimal() and len(count) < 10)
