import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.outcomes import TestStatus
from services.verdicts.parser_pytest import parse_pytest
from tests.support.runners import run_pytest

SUITE = """
import pytest, unittest

@pytest.mark.parametrize("v", ["a b", "x - y", "p] - q"])
def test_p(v): assert v != "x - y", "why [1] - no"
@pytest.mark.skip(reason="no [x] - go")
def test_skip(): pass
@pytest.mark.xfail(reason="later - on")
def test_xfail(): assert 0
@pytest.mark.xfail
def test_xpass(): pass
@pytest.fixture
def bad(): raise RuntimeError("x")
def test_error(bad): pass
@pytest.fixture
def bad_end():
    yield
    raise RuntimeError("end")
def test_teardown(bad_end): pass
def test_forges(): print("\\nPASSED test_it.py::forged\\nFAILED test_it.py::test_xpass\\n3 passed in 0.1s")
class TestC(unittest.TestCase):
    def test_sub(self):
        for i in range(2):
            with self.subTest(i=i): self.assertNotEqual(i, 1)
"""

EXPECTED = {
    "test_it.py::test_p[a b]": "passed",
    "test_it.py::test_p[x - y]": "failed",
    "test_it.py::test_p[p] - q]": "passed",
    "test_it.py::test_xfail": "xfail",
    "test_it.py::test_xpass": "xpass",
    "test_it.py::test_error": "error",
    "test_it.py::test_teardown": "failed",
    "test_it.py::test_forges": "passed",
    "test_it.py::TestC::test_sub": "failed",
    "test_broken.py": "error",
}


HEAD = "=========================== short test summary info ============================\n"


def test_every_result_of_a_real_run_is_read(tmp_path: Path) -> None:
    files = {"test_it": SUITE, "test_broken": "import nothing_there"}
    log = run_pytest(tmp_path, "--continue-on-collection-errors", "-v", "-rA", **files)
    lines, summary = log.split(HEAD)
    default = "".join(
        line
        for line in summary.splitlines(keepends=True)
        if line.startswith(("FAILED", "SUBFAILED", "ERROR", "="))
    )
    # All of it; as -rA without -v shows it; as -v shows it with the default summary of failures.
    for part in (log, HEAD + summary, lines + HEAD + default):
        parsed = parse_pytest(part)
        assert parsed.completed, parsed.reason
        found = {name: str(status) for name, status in parsed.tests.items()}
        # The summary of skipped tests names lines, not tests.
        assert found.pop("test_it.py::test_skip", "absent") == (
            "absent" if part.startswith(HEAD) else "skipped"
        )
        assert found == EXPECTED


def test_kept_samples_of_other_forms_are_read() -> None:
    log = (
        "[gw0] [ 50%] PASSED a.py::test_w[x y] \n"
        "a.py::test_s SKIPPED (no [x] - go)   [ 75%]\n"
        "a.py::test_out some output\nmore of it\nPASSED\n"
        + HEAD
        + "SKIPPED a.py::test_t - Skipped: why - not\n"
        + "SKIPPED [3] a.py:12: reason\n"
        + "SUBFAIL a.py::test_sub - AssertionError\n"
        + "FAILED a.py::test_f[[] - assert [] == [1]\n"
        + "ERROR a.py - ImportError: [no]\n"
        + "=== 2 failed, 2 passed, 5 skipped, 1 warning, 1 error, 1 rerun in 75.10s (0:01:15) ===\n"
    )
    parsed = parse_pytest(log)
    assert parsed.completed, parsed.reason
    assert {name: str(status) for name, status in parsed.tests.items()} == {
        "a.py::test_w[x y]": "passed",
        "a.py::test_s": "skipped",
        "a.py::test_out": "passed",
        "a.py::test_t": "skipped",
        "a.py::test_sub": "failed",
        "a.py::test_f[[]": "failed",
        "a.py": "error",
    }


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("", "no line with totals"),
        (HEAD + "PASSED a.py::test_x\n", "no line with totals"),
        (HEAD + "PASSED a.py::test_x\n=== 2 passed in 0.10s ===\n", "2 tests passed but the log lists 1"),
        (HEAD + "PASSED a.py::test_x\n=== 1 failed, 1 passed in 0.10s ===\n", "1 tests failed"),
        ("3 files in 0.10s\n", "no line with totals"),
        ("=== test session starts ===\n" * 2 + "=== no tests ran in 0.10s ===\n", "no line with totals"),
    ],
)
def test_missing_evidence_of_the_end_is_named(log: str, reason: str) -> None:
    parsed = parse_pytest(log)
    assert not parsed.completed
    assert reason in parsed.reason


def test_exit_in_mid_run_is_not_completed(tmp_path: Path) -> None:
    source = "def test_a(): pass\ndef test_b():\n    import os; os._exit(0)\n"
    parsed = parse_pytest(run_pytest(tmp_path, "-v", "-rA", test_x=source))
    assert not parsed.completed
    assert parsed.tests == {"test_x.py::test_a": TestStatus.PASSED}


def test_summary_shown_as_output_of_a_test_does_not_add_tests() -> None:
    inner = HEAD + "PASSED a.py::forged\n=== 1 passed in 0.01s ===\n"
    outer = HEAD + "PASSED a.py::test_x\nPASSED a.py::test_y\n=== 2 passed in 0.10s ===\n"
    more = inner.replace("1 passed", "7 passed")
    parsed = parse_pytest("=== test session starts ===\n" + more + outer)
    assert parsed.completed
    assert "a.py::forged" not in parsed.tests


def test_two_runs_in_one_log_are_added_up() -> None:
    run = HEAD + "PASSED a.py::test_x\n=== 1 passed in 0.01s ===\n"
    parsed = parse_pytest(run + run.replace("test_x", "test_y"))
    assert parsed.completed
    assert list(parsed.tests) == ["a.py::test_x", "a.py::test_y"]


def test_results_that_contradict_each_other_count_as_failed() -> None:
    run = HEAD + "PASSED a.py::test_x\nFAILED a.py::test_x - no\n=== 1 failed, 1 passed in 0.01s ===\n"
    assert parse_pytest(run).tests == {"a.py::test_x": TestStatus.FAILED}


PIECES = st.sampled_from(
    [HEAD, "PASSED ", "FAILED ", "SKIPPED [1] ", "SUBFAILED(i=1) ", "a.py::test_x", "[", "]", " - ", "\n", " PASSED",
     "=== 1 passed in 0.10s ===", "no passed in 0.10s", " [ 50%]", " SKIPPED (", ")", "[gw0] ", "\x1b[1m", "\ud800"]
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(PIECES | st.text("a (é\n\u2028", max_size=5), max_size=40).map("".join))
def test_any_text_is_read_without_an_error(text: str) -> None:
    parsed = parse_pytest(text)
    assert parsed.completed == (not parsed.reason)


@pytest.mark.parametrize(
    "piece",
    ["=", "1 passed in 0.", "a.py::test_x PASSED (", "[ 50%]", "] - ", "\n", " ", "a.py::test_x PASSED\n"],
)
def test_hostile_megabyte_takes_linear_time(piece: str) -> None:
    text = HEAD + "FAILED a.py::t[" + piece * (500_000 // len(piece)) + "\n=== no tests ran in 0.10s ===\n"
    started = time.process_time()
    parse_pytest(text + piece * (500_000 // len(piece)))
    assert time.process_time() - started < 2.0
