import json
from collections.abc import Mapping
from typing import Any

import pytest

from core.errors import FailureClass
from services.jobspec import (
    ExitCodeVerdict,
    JobSpec,
    JunitVerdict,
    LogVerdict,
    PatchStep,
    RewardVerdict,
    Step,
    StepRole,
    Verdict,
)
from services.outcomes import Failure, Grade, Outcome, StepResult
from services.verdicts import grade, grading, register_parser, should_continue
from services.verdicts.registry import ParsedLog

SETUP, RUN, VERIFY = StepRole.SETUP, StepRole.RUN, StepRole.VERIFY


def make_spec(*steps: Step, verdict: Verdict | None = None) -> JobSpec:
    return JobSpec(key="k", image="host", steps=steps, verdict=verdict or ExitCodeVerdict())


def step(name: str, role: StepRole, **fields: Any) -> Step:
    return Step(name, role, **({"run": "true"} | fields))


def ended(of: Step, exit_code: int | None = 0, **fields: Any) -> StepResult:
    return StepResult(of.name, of.role, exit_code, **fields)


def grade_it(
    spec: JobSpec, *results: StepResult, log: str | bytes = b"", files: Mapping[str, bytes] | None = None
) -> Grade:
    content = log.encode() if isinstance(log, str) else log
    return grade(spec, results, lambda _: content, (files or {}).get)


def summary(given: Grade) -> tuple[str, str | None, str | None]:
    failure = given.failure
    return str(given.outcome), failure and str(failure.cls), failure and failure.code


APPLY = step("apply", SETUP, run=None, patch=PatchStep("/p.diff"))
PREPARE, AGENT, TESTS = step("prepare", SETUP), step("agent", RUN), step("tests", VERIFY)
ALL = (APPLY, PREPARE, AGENT, TESTS)
UP_TO = {of.name: [ended(earlier) for earlier in ALL[:at]] for at, of in enumerate(ALL)}


@pytest.mark.parametrize(
    ("last", "expected", "goes_on"),
    [
        (ended(TESTS), ("passed", None, None), True),
        (ended(TESTS, 1), ("failed", "task", "nonzero_exit"), True),
        (ended(TESTS, None, signal=9), ("failed", "task", "nonzero_exit"), True),
        (ended(TESTS, None, signal=9, oom=True), ("failed", "task", "oom_limit"), True),
        (ended(TESTS, None, signal=9, timed_out=True), ("error", "task", "step_timeout"), False),
        (ended(TESTS, None, error="no such file"), ("error", "task", "step_not_started"), False),
        (ended(PREPARE, 1), ("error", "task", "setup_failed"), False),
        (ended(PREPARE, None, timed_out=True), ("error", "task", "step_timeout"), False),
        (ended(PREPARE, 137, oom=True), ("error", "task", "oom_limit"), False),
        (ended(APPLY, 1, patch_rejected=True), ("failed", "task", "patch_rejected"), False),
        (ended(AGENT), ("error", "infra", "step_not_run"), True),
        (ended(AGENT, None, timed_out=True), ("failed", "task", "step_timeout"), True),
    ],
    ids=lambda value: f"{value.name}-{value.exit_code}" if isinstance(value, StepResult) else "",
)
def test_end_of_the_last_step_decides(
    last: StepResult, expected: tuple[str, str | None, str | None], goes_on: bool
) -> None:
    spec = make_spec(*ALL)
    given = grade_it(spec, *UP_TO[last.name], last)
    assert summary(given) == expected
    assert given.rewards == {"passed": {"reward": 1.0}, "failed": {"reward": 0.0}, "error": {}}[expected[0]]
    assert should_continue(next(of for of in ALL if of.name == last.name), last, spec) is goes_on
    if given.failure and given.failure.code != "step_not_run":
        assert (given.failure.step, given.failure.exit_code) == (
            last.name,
            None if last.patch_rejected else last.exit_code,
        )


def test_setup_may_blame_the_infrastructure() -> None:
    spec = make_spec(step("fetch", SETUP, blame_infra=True), TESTS)
    given = grade_it(spec, ended(spec.steps[0], 7))
    assert summary(given) == ("error", "infra", "setup_failed")
    assert given.failure is not None
    assert given.failure.retryable


@pytest.mark.parametrize(("exit_code", "expected"), [(0, "passed"), (1, "failed")])
def test_failed_run_step_is_verified_all_the_same(exit_code: int, expected: str) -> None:
    given = grade_it(make_spec(AGENT, TESTS), ended(AGENT, None, timed_out=True), ended(TESTS, exit_code))
    assert given.outcome == expected
    if given.failure:
        assert given.failure.code == "step_timeout"
        assert (
            given.failure.message
            == "step agent was killed after its timeout of 600 s; then step tests exited with 1"
        )


def test_failed_run_step_without_a_verify_step_fails_the_trial() -> None:
    first, last = step("compile", RUN), step("test", RUN)
    spec = make_spec(first, last, verdict=LogVerdict("unittest"))
    assert not should_continue(first, ended(first, 2), spec)
    assert summary(grade_it(spec, ended(first, 2))) == ("failed", "task", "nonzero_exit")
    assert summary(grade_it(spec, ended(first, None, timed_out=True))) == ("failed", "task", "step_timeout")


def test_failed_verify_step_before_the_last_fails_the_trial() -> None:
    lint = step("lint", VERIFY)
    spec = make_spec(lint, TESTS)
    assert not should_continue(lint, ended(lint, 1), spec)
    assert summary(grade_it(spec, ended(lint, 1))) == ("failed", "task", "nonzero_exit")


def test_steps_after_the_named_one_do_not_change_the_verdict() -> None:
    tidy = step("tidy", RUN)
    spec = make_spec(TESTS, tidy, verdict=ExitCodeVerdict(step="tests", pass_codes=(1,)))
    assert should_continue(TESTS, ended(TESTS, 1), spec)
    assert grade_it(spec, ended(TESTS, 1), ended(tidy, 9)).outcome is Outcome.PASSED
    assert summary(grade_it(spec, ended(TESTS, 0))) == ("failed", "task", "nonzero_exit")


def test_patch_that_may_be_rejected_in_part_lets_the_trial_go_on() -> None:
    lenient = step("apply", SETUP, run=None, patch=PatchStep("/p.diff", on_reject="continue"))
    result = ended(lenient, 0, patch_rejected=True)
    spec = make_spec(lenient, TESTS)
    assert should_continue(lenient, result, spec)
    assert grade_it(spec, result, ended(TESTS)).outcome is Outcome.PASSED


REWARD = make_spec(AGENT, TESTS, verdict=RewardVerdict("/r", key="score", pass_at=0.5))


@pytest.mark.parametrize(
    ("content", "code", "rewards"),
    [
        (b"0.75\n", None, {"reward": 0.75, "score": 0.75}),
        (
            b'{"score": 1, "speed": 2.5, "note": "x", "ok": true}',
            None,
            {"reward": 1.0, "score": 1.0, "speed": 2.5},
        ),
        (b"0.49", "reward_below_pass", {"reward": 0.49, "score": 0.49}),
        (None, "reward_missing", {}),
        (b"", "reward_unparsable", {}),
        (b"\xff\xfe", "reward_unparsable", {}),
        (b"true", "reward_unparsable", {}),
        (b'"1"', "reward_unparsable", {}),
        (b'{"other": 1}', "reward_unparsable", {}),
        (b'{"score": true}', "reward_unparsable", {}),
        (b'{"score": 1, "score": 0}', "reward_unparsable", {}),
        (b'{"score": 1, "\\ud800": 0}', "reward_unparsable", {}),
        (b"[" * 100_000, "reward_unparsable", {}),
        (b"9" * 5_000, "reward_unparsable", {}),
        (json.dumps({"score": 1, **{str(i): i for i in range(200)}}).encode(), "reward_unparsable", {}),
        (b"1" + b" " * (1 << 20), "reward_unparsable", {}),
        (b"NaN", "reward_non_finite", {}),
        (b"-Infinity", "reward_non_finite", {}),
        (b"1e999", "reward_non_finite", {}),
        (b"9" * 400, "reward_non_finite", {}),
        (b'{"score": 1, "other": 1e999}', "reward_non_finite", {}),
    ],
    ids=lambda value: "" if isinstance(value, bytes | dict) else value,
)
def test_reward_file_decides(content: bytes | None, code: str | None, rewards: dict[str, float]) -> None:
    files = {} if content is None else {"/r": content}
    given = grade_it(REWARD, ended(AGENT), ended(TESTS, 3), files=files)
    assert given.failure is None if code is None else given.failure and given.failure.code == code
    assert given.rewards == rewards
    wanted = {None: Outcome.PASSED, "reward_below_pass": Outcome.FAILED}.get(code, Outcome.ERROR)
    assert given.outcome is wanted


def test_missing_reward_after_running_out_of_memory_is_a_failed_sample() -> None:
    given = grade_it(REWARD, ended(AGENT, None, signal=9, oom=True), ended(TESTS))
    assert summary(given) == ("failed", "task", "oom_limit")


def cases(*inner: str, head: str = "") -> bytes:
    return (head + "<testsuites><testsuite>" + "".join(inner) + "</testsuite></testsuites>").encode()


def case(name: str, child: str = "", group: str = "m.C") -> str:
    return f'<testcase classname="{group}" name="{name}">{child}</testcase>'


@pytest.mark.parametrize(
    ("content", "exit_code", "expected"),
    [
        (cases(case("a"), case("b", "<skipped/>")), 0, ("passed", None, None)),
        (cases(case("a"), case("b", '<skipped type="pytest.xfail"/>')), 0, ("passed", None, None)),
        (cases(case("a"), case("b", "<failure>x</failure>")), 1, ("failed", "task", "tests_failed")),
        (cases(case("a"), case("b", "<error/>")), 1, ("failed", "task", "tests_failed")),
        (cases(case("b")), 0, ("failed", "task", "tests_failed")),
        (cases(case("a", "<skipped/>"), case("b")), 0, ("failed", "task", "tests_failed")),
        (cases(case("a"), case("a", "<failure/>")), 0, ("failed", "task", "tests_failed")),
        (cases(case("a"), case("a", "<skipped/>", "n.D")), 0, ("failed", "task", "tests_failed")),
        (cases(case("a")), 1, ("failed", "task", "junit_exit_mismatch")),
        (None, 0, ("error", "task", "junit_missing")),
        (b"<testsuites>", 0, ("error", "task", "junit_unparsable")),
        (b"<html/>", 0, ("error", "task", "junit_unparsable")),
        (b"\x00\xff", 0, ("error", "task", "junit_unparsable")),
        (b'<?xml version="1.0" encoding="hex"?><testsuites/>', 0, ("error", "task", "junit_unparsable")),
        (cases(case("a"), head='<!DOCTYPE x [<!ENTITY a "b">]>'), 0, ("error", "task", "junit_unparsable")),
        (
            cases(case("a"), head="<!DOCTYPE x>").decode().encode("utf-16"),
            0,
            ("error", "task", "junit_unparsable"),
        ),
        (cases("<a>" * 100), 0, ("error", "task", "junit_unparsable")),
        (cases("<testcase/>"), 0, ("error", "task", "junit_unparsable")),
        (cases(case("a", case("b"))), 0, ("error", "task", "junit_unparsable")),
        (cases("x" * (33 << 20)), 0, ("error", "task", "junit_unparsable")),
    ],
    ids=range(20),
)
def test_junit_file_decides(
    content: bytes | None, exit_code: int, expected: tuple[str, str | None, str | None]
) -> None:
    spec = make_spec(TESTS, verdict=JunitVerdict("/j.xml", require=("a",)))
    files = {} if content is None else {"/j.xml": content}
    assert summary(grade_it(spec, ended(TESTS, exit_code), files=files)) == expected


@pytest.mark.parametrize("name", ["m.C.a", "m.C::a", "a"])
def test_required_test_is_found_by_any_spelling(name: str) -> None:
    spec = make_spec(TESTS, verdict=JunitVerdict("/j.xml", require=(name,), allow_skip=False))
    assert grade_it(spec, ended(TESTS), files={"/j.xml": cases(case("a"))}).outcome is Outcome.PASSED
    skipping = cases(case("a"), case("b", "<skipped/>"))
    assert grade_it(spec, ended(TESTS), files={"/j.xml": skipping}).outcome is Outcome.FAILED


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ('tests="1" failures="0" errors="0"', ("passed", None, None)),
        ('tests="2" failures="1"', ("failed", "task", "junit_incomplete")),
        ('errors="1"', ("failed", "task", "junit_incomplete")),
        ('failures="many"', ("passed", None, None)),
    ],
)
def test_failures_a_suite_counts_but_does_not_show_are_failures(
    attributes: str, expected: tuple[str, str | None, str | None]
) -> None:
    spec = make_spec(TESTS, verdict=JunitVerdict("/j.xml"))
    content = f"<testsuites><testsuite {attributes}>{case('a')}</testsuite></testsuites>".encode()
    assert summary(grade_it(spec, ended(TESTS), files={"/j.xml": content})) == expected


def test_junit_file_without_tests_proves_nothing() -> None:
    spec = make_spec(TESTS, verdict=JunitVerdict("/j.xml"))
    for content in (cases(), cases(case("a", "<skipped/>"))):
        given = grade_it(spec, ended(TESTS), files={"/j.xml": content})
        assert summary(given) == ("failed", "task", "no_tests")


def unittest_log(total: int | None = None, **results: str) -> str:
    lines = [f"{name} (m.C.{name}) ... {result}" for name, result in results.items()]
    failed = any(result in {"FAIL", "ERROR"} for result in results.values())
    return "\n".join(
        [
            *lines,
            "",
            f"Ran {len(results) if total is None else total} tests in 0.1s",
            "",
            "FAILED" if failed else "OK",
        ]
    )


def swe(fail_to_pass: str = "", pass_to_pass: str = "") -> JobSpec:
    def ids(text: str) -> tuple[str, ...]:
        return tuple(f"m.C.{name}" for name in text.split())

    verdict = LogVerdict("unittest", fail_to_pass=ids(fail_to_pass), pass_to_pass=ids(pass_to_pass))
    return make_spec(AGENT, TESTS, verdict=verdict)


@pytest.mark.parametrize(
    ("log", "exit_code", "expected"),
    [
        (unittest_log(test_f="ok", test_p="ok"), 0, None),
        (unittest_log(test_f="expected failure", test_p="expected failure"), 0, None),
        (unittest_log(test_f="ok", test_p="skipped 'x'"), 0, None),
        (unittest_log(test_f="skipped 'x'", test_p="ok"), 0, "tests_failed"),
        (unittest_log(test_f="FAIL", test_p="ok"), 1, "tests_failed"),
        (unittest_log(test_f="ok", test_p="ERROR"), 1, "tests_failed"),
        (unittest_log(test_p="ok"), 0, "tests_failed"),
        (unittest_log(test_f="ok"), 0, "tests_failed"),
        (unittest_log(test_f="ok", test_p="ok", test_z="FAIL"), 1, None),
        (unittest_log(test_f="ok", test_p="ok"), 1, "log_exit_mismatch"),
        (unittest_log(total=3, test_f="ok", test_p="ok"), 0, "log_incomplete"),
        (unittest_log(test_f="ok", test_p="ok").rpartition("Ran")[0], 0, "log_incomplete"),
        ("", 0, "log_incomplete"),
    ],
    ids=range(13),
)
def test_named_tests_decide_by_the_full_resolution_rule(
    log: str, exit_code: int, expected: str | None
) -> None:
    given = grade_it(swe("test_f", "test_p"), ended(AGENT), ended(TESTS, exit_code), log=log)
    assert (given.failure and given.failure.code) == expected
    assert given.outcome is (Outcome.FAILED if expected else Outcome.PASSED)


def test_grade_counts_the_named_tests_and_survives_json() -> None:
    log = unittest_log(test_a="ok", test_b="FAIL", test_c="ok")
    given = grade_it(swe("test_a test_b test_gone", "test_c"), ended(AGENT), ended(TESTS, 1), log=log)
    value = json.loads(json.dumps(given.to_json()))
    assert value["fail_to_pass"] == {"passed": 1, "total": 3, "failed": ["m.C.test_b", "m.C.test_gone"]}
    assert value["pass_to_pass"] == {"passed": 1, "total": 1, "failed": []}
    assert value["test_counts"] == {"failed": 1, "passed": 2}
    assert value["failure"]["message"] == "2 of 4 tests did not pass: m.C.test_b, m.C.test_gone"
    assert given.failure is not None
    assert Failure.from_json(value["failure"]) == given.failure


def test_ids_in_the_spelling_of_the_runner_are_found() -> None:
    verdict = LogVerdict("unittest", fail_to_pass=("test_a (m.C)",))
    log = unittest_log(test_a="ok")
    assert grade_it(make_spec(TESTS, verdict=verdict), ended(TESTS), log=log).outcome is Outcome.PASSED


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (unittest_log(test_a="ok"), None),
        (unittest_log(test_a="skipped 'x'"), "no_tests"),
        (unittest_log(), "no_tests"),
        (unittest_log(test_a="ok", test_b="ERROR"), "tests_failed"),
    ],
)
def test_without_named_tests_one_has_to_run_and_none_to_fail(log: str, expected: str | None) -> None:
    given = grade_it(swe(), ended(AGENT), ended(TESTS), log=log)
    assert (given.failure and given.failure.code) == expected


def test_submission_that_prints_a_verdict_and_exits_is_not_believed() -> None:
    log = "test_f (m.C.test_f) ... ok\nPASSED\nAll tests passed! reward: 1.0\n"
    assert grade_it(swe("test_f"), ended(AGENT), ended(TESTS), log=log).outcome is Outcome.FAILED


def test_cause_of_a_negative_verdict_is_the_run_step_that_failed() -> None:
    log = unittest_log(test_f="FAIL")
    given = grade_it(swe("test_f"), ended(AGENT, None, signal=9, oom=True), ended(TESTS, 1), log=log)
    assert given.failure is not None
    assert (given.failure.code, given.failure.oom, given.failure.step) == ("oom_limit", True, "agent")
    assert given.failure.message.endswith("1 of 1 tests did not pass: m.C.test_f")


def test_unknown_parser_is_an_error_of_the_spec() -> None:
    spec = make_spec(TESTS, verdict=LogVerdict("nose"))
    given = grade_it(spec, ended(TESTS))
    assert summary(given) == ("error", "spec", "spec_invalid")
    assert given.failure is not None
    assert "pytest, unittest" in given.failure.message


def test_parser_that_raises_gives_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.verdicts.registry._parsers", {})

    @register_parser("broken")
    def parse(text: str) -> ParsedLog:
        raise RuntimeError(text)

    spec = make_spec(TESTS, verdict=LogVerdict("broken"))
    given = grade_it(spec, ended(TESTS), log="bad \x00 text")
    assert summary(given) == ("error", "task", "log_unparsable")
    assert given.failure is not None
    assert "\x00" not in given.failure.message


def test_largest_logs_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grading, "MAX_LOG_BYTES", 10)
    given = grade_it(swe("test_f"), ended(AGENT), ended(TESTS), log=unittest_log(test_f="ok"))
    assert summary(given) == ("failed", "task", "log_incomplete")


def test_same_bytes_give_the_same_grade_twenty_times() -> None:
    log = unittest_log(test_f="ok", test_p="FAIL")
    grades = [grade_it(swe("test_f", "test_p"), ended(AGENT), ended(TESTS, 1), log=log) for _ in range(20)]
    assert all(given == grades[0] for given in grades)
    assert grades[0].failure is not None
    assert grades[0].failure.cls is FailureClass.TASK
