import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.outcomes import TestStatus
from services.verdicts.parser_unittest import canonical_unittest_id, parse_unittest
from tests.support.runners import run_unittest

SUITE = '''
import sys, unittest

class Plain(unittest.TestCase):
    def test_ok(self): pass
    def test_fail(self): self.fail("no")
    def test_error(self): raise RuntimeError("x")
    def test_doc(self):
        """Does one thing ... well."""
    def test_doc_fail(self):
        """Does another thing."""
        self.fail()
    @unittest.skip("not (here) 'today'")
    def test_skip(self): pass
    @unittest.expectedFailure
    def test_xfail(self): self.fail()
    @unittest.expectedFailure
    def test_xpass(self): pass
    def test_prints(self):
        print("a line"); print("ok"); print("FAIL and no newline", end="", flush=True)
    def test_prints_ok_and_fails(self):
        print("ok", flush=True)
        self.fail()
    def test_look_and_fail(self):
        print("have a look", flush=True); print("x", end="", flush=True)
        self.fail()
    def test_warns(self):
        sys.stderr.write("file.py:3: Warning: what\\n  warn()\\n")
    def test_sub(self):
        for i in range(3):
            with self.subTest("part", i=i): self.assertNotEqual(i, 1)
    def test_sub_ok(self):
        for i in range(3):
            with self.subTest(i=i): pass
    def test_sub_skip(self):
        for i in range(2):
            with self.subTest(i=i): self.skipTest("later")
    def test_sub_skip_fail(self):
        for i in range(3):
            with self.subTest(i=i): self.skipTest("later") if i != 1 else self.fail()
    def test_sub_doc_skip(self):
        """With a doc line."""
        with self.subTest(i=1): self.skipTest("later")
    def test_sub_doc(self):
        """With a doc line."""
        with self.subTest(i=1): self.fail()
    def test_flushes_late(self):
        print("y" * 8185, "half of a")
        print("line, the rest comes later")

    def test_zz(self): pass

class BadSetUp(unittest.TestCase):
    @classmethod
    def setUpClass(cls): raise RuntimeError("x")
    def test_never(self): pass

class SkippedSetUp(unittest.TestCase):
    @classmethod
    def setUpClass(cls): raise unittest.SkipTest("not today")
    def test_never(self): pass
'''

EXPECTED = {
    "test_ok": "passed",
    "test_fail": "failed",
    "test_error": "error",
    "test_doc": "passed",
    "test_doc_fail": "failed",
    "test_skip": "skipped",
    "test_xfail": "xfail",
    "test_xpass": "failed",
    "test_prints": "passed",
    "test_prints_ok_and_fails": "failed",
    "test_look_and_fail": "failed",
    "test_warns": "passed",
    "test_sub": "failed",
    "test_sub_ok": "passed",
    "test_sub_skip": "skipped",
    "test_sub_skip_fail": "failed",
    "test_sub_doc_skip": "skipped",
    "test_sub_doc": "failed",
    "test_flushes_late": "passed",
    "test_zz": "passed",
}


def test_every_result_of_a_real_run_is_read(tmp_path: Path) -> None:
    log = run_unittest(
        tmp_path, "-v", "test_it", "test_broken", test_it=SUITE, test_broken="import nothing_there"
    )
    parsed = parse_unittest(log)
    assert parsed.completed, parsed.reason + log
    own = {name.rpartition(".")[2]: str(s) for name, s in parsed.tests.items() if ".Plain." in name}
    assert own == EXPECTED
    assert parsed.tests["test_it.BadSetUp.setUpClass"] is TestStatus.ERROR
    assert parsed.tests["unittest.loader._FailedTest.test_broken"] is TestStatus.ERROR
    assert parsed.status_of("test_it.BadSetUp.test_never") is None
    assert parsed.status_of("test_it.SkippedSetUp.test_never") is TestStatus.SKIPPED


def test_run_that_ends_early_is_not_completed(tmp_path: Path) -> None:
    source = """
    import os, unittest
    class T(unittest.TestCase):
        def test_a(self): pass
        def test_b(self): os._exit(0)
    """
    parsed = parse_unittest(run_unittest(tmp_path, "-v", test_x=source))
    assert not parsed.completed
    assert parsed.tests == {"test_x.T.test_a": TestStatus.PASSED, "test_x.T.test_b": TestStatus.ERROR}


def test_inner_run_of_unittest_does_not_confuse(tmp_path: Path) -> None:
    source = """
    import unittest
    class Inner(unittest.TestCase):
        def runTest(self): self.fail()
    class T(unittest.TestCase):
        def test_a(self): unittest.TextTestRunner().run(Inner())
        def test_b(self): pass
    """
    log = run_unittest(tmp_path, "-v", "test_x.T", test_x=source)
    assert "Ran 1 test in" in log
    parsed = parse_unittest(log)
    assert parsed.completed, parsed.reason
    assert parsed.tests["test_x.T.test_a"] is TestStatus.PASSED


OLD_FORM = """\
test_a (pkg.tests.Case) ... ok
test_b (pkg.tests.Case)
Says what it does. ... skipped "can't"
test_c (pkg.tests.Case) ... FAIL
pkg.broken (unittest.loader._FailedTest) ... ERROR

======================================================================
FAIL: test_c (pkg.tests.Case)
----------------------------------------------------------------------
Traceback (most recent call last):
AssertionError

----------------------------------------------------------------------
Ran 4 tests in 0.001s

FAILED (failures=1, errors=1, skipped=1)
"""


def test_ids_without_method_in_parentheses_are_completed() -> None:
    parsed = parse_unittest(OLD_FORM)
    assert parsed.completed, parsed.reason
    assert {name: str(status) for name, status in parsed.tests.items()} == {
        "pkg.tests.Case.test_a": "passed",
        "pkg.tests.Case.test_b": "skipped",
        "pkg.tests.Case.test_c": "failed",
        "unittest.loader._FailedTest.pkg.broken": "error",
    }


def test_carriage_returns_and_colours_are_passed_over() -> None:
    coloured = OLD_FORM.replace("ok", "\x1b[32mok\x1b[0m").replace("\n", "\r\n")
    assert parse_unittest(coloured) == parse_unittest(OLD_FORM)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("Ran 4 tests in 0.001s", "", "no line 'Ran"),
        ("FAILED (failures=1, errors=1, skipped=1)", "", "not followed by"),
        ("Ran 4 tests", "Ran 5 tests", "5 tests ran but the log lists 4"),
        ("test_a (pkg.tests.Case) ... ok\n", "", "4 tests ran but the log lists 3"),
    ],
)
def test_missing_evidence_of_the_end_is_named(old: str, new: str, reason: str) -> None:
    parsed = parse_unittest(OLD_FORM.replace(old, new))
    assert not parsed.completed
    assert reason in parsed.reason


def test_failure_only_in_the_final_line_is_missing_evidence() -> None:
    log = "test_a (m.C.test_a) ... ok\n\nRan 1 test in 0.1s\n\nFAILED (failures=1)\n"
    assert "no failing test" in parse_unittest(log).reason


def test_results_that_contradict_each_other_count_as_failed() -> None:
    twice = "test_a (m.C.test_a) ... ok\ntest_a (m.C.test_a) ... skipped 'x'\n\nRan 2 tests in 0.1s\n\nOK\n"
    parsed = parse_unittest(twice)
    assert parsed.completed
    assert parsed.tests == {"m.C.test_a": TestStatus.FAILED}


BEFORE_3_11 = """\
ERROR
test_sub (m.Plain) ... test_doc (m.Plain)
Does one thing. ... ok
test_last (m.Plain) ... ok
ERROR
test_xpass (m.Plain) ... unexpected success
skipped 'not today'

======================================================================
ERROR: setUpClass (m.Bad)
----------------------------------------------------------------------
RuntimeError: x

======================================================================
FAIL: test_sub (m.Plain) [part] (i=1)
----------------------------------------------------------------------
AssertionError: 1 == 1

----------------------------------------------------------------------
Ran 4 tests in 0.010s

FAILED (failures=1, errors=2, skipped=1, unexpected successes=1)
"""


def test_results_that_stand_alone_are_not_given_to_the_test_before() -> None:
    parsed = parse_unittest(BEFORE_3_11)
    assert parsed.completed, parsed.reason
    assert {name: str(status) for name, status in parsed.tests.items()} == {
        "m.Plain.test_sub": "failed",
        "m.Plain.test_doc": "passed",
        "m.Plain.test_last": "passed",
        "m.Plain.test_xpass": "failed",
        "m.Bad.setUpClass": "error",
    }


def test_skipped_tests_may_be_missing_from_the_total() -> None:
    log = "test_a (m.C.test_a) ... ok\ntest_b (m.C.test_b) ... skipped 'x'\n\nRan 1 test in 0.1s\n\nOK\n"
    assert parse_unittest(log).completed
    assert not parse_unittest(log.replace("skipped 'x'", "ok")).completed


def test_two_runs_in_one_log_are_added_up() -> None:
    one = "test_a (m.C.test_a) ... ok\n\nRan 1 test in 0.1s\n\nOK\n"
    other = one.replace("test_a", "test_b")
    parsed = parse_unittest(one + other)
    assert parsed.completed
    assert list(parsed.tests) == ["m.C.test_a", "m.C.test_b"]


@pytest.mark.parametrize(
    ("given_id", "expected"),
    [
        ("test_x (m.C)", "m.C.test_x"),
        ("test_x (m.C.test_x)", "m.C.test_x"),
        ("m.C.test_x", "m.C.test_x"),
        ("any text", "any text"),
    ],
)
def test_spellings_of_an_id_are_one(given_id: str, expected: str) -> None:
    assert canonical_unittest_id(given_id) == expected


PIECES = st.sampled_from(
    ["test_a (m.C.test_a)", "test_b (m.C)", " ... ", "ok", "FAIL", "ERROR", "skipped 'x'", "\n", "=" * 70, "FAIL: ",
     "Ran 1 test in 0.1s", "OK", "FAILED (", "  ", "(", ")", "\x1b[0m", "\r", "\ud800", "\x00", "setUpClass (m.C)"]
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(PIECES | st.text("a (é\n\u2028", max_size=5), max_size=40).map("".join))
def test_any_text_is_read_without_an_error(text: str) -> None:
    parsed = parse_unittest(text)
    assert parsed.completed == (not parsed.reason)


@pytest.mark.parametrize(
    "piece",
    [
        "a",
        "(",
        ") ... ",
        "test_a (",
        "skipped '",
        "\n",
        "\x1b[",
        "test_a (m.C.test_a) ... ok\n",
        "Ran 1 test in 0.",
    ],
)
def test_hostile_megabyte_takes_linear_time(piece: str) -> None:
    text = piece * (1_000_000 // len(piece))
    started = time.process_time()
    parse_unittest(text)
    assert time.process_time() - started < 2.0
