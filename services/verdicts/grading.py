"""Computes the verdict of a trial from step results and stored bytes. Nothing the sandbox claims is taken on trust.

The verdict is deterministic: the same results and bytes give the same grade, today and when graded again. Failures of
the verdict's source (no reward file, no XML) are `error`, since nothing was measured; a log without evidence that all
tests ran is `failed`, since ending the run early is the cheapest way to hide a failing test.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from core.errors import FailureClass, SpecInvalidError
from services.jobspec import ExitCodeVerdict, JobSpec, JunitVerdict, LogVerdict, RewardVerdict, Step
from services.outcomes import Failure, Grade, Outcome, StepResult, TestSetResult, TestStatus
from services.verdicts.junit import InvalidJunitError, parse_junit
from services.verdicts.logtext import MAX_LOG_BYTES, decode_log
from services.verdicts.registry import LogParser, ParsedLog, get_parser
from services.verdicts.reward import InvalidRewardError, parse_reward
from services.verdicts.steps import decide_before_verdict, physical_failure, verdict_step

__all__ = ["grade"]

ReadLog = Callable[[str], bytes]
ReadArtifact = Callable[[str], bytes | None]

_PASSING = frozenset({TestStatus.PASSED, TestStatus.XFAIL, TestStatus.XPASS})
_MAINTAINED = _PASSING | {TestStatus.SKIPPED}


def grade(
    spec: JobSpec, steps: Sequence[StepResult], read_log: ReadLog, read_artifact: ReadArtifact
) -> Grade:
    """Compute the verdict.

    steps: results in order; steps that did not run are absent. read_log: step name to its stored output, both streams
    in their one order. read_artifact: absolute path to the collected bytes, None when it was not there. Both are
    called only when the verdict needs them; what they raise passes through.
    """
    results = {result.name: result for result in steps}
    decision = decide_before_verdict(spec, results)
    if decision.outcome is not None:
        rewards = {} if decision.outcome is Outcome.ERROR else {"reward": 0.0}
        return Grade(decision.outcome, decision.failure, rewards)
    step = verdict_step(spec)
    result = results[step.name]
    match spec.verdict:
        case ExitCodeVerdict() as verdict:
            given = _by_exit_code(verdict, step, result)
        case RewardVerdict() as verdict:
            given = _by_reward(verdict, read_artifact(verdict.path), step)
        case JunitVerdict() as verdict:
            given = _by_junit(verdict, read_artifact(verdict.path), step, result)
        case LogVerdict() as verdict:
            given = _by_log(verdict, read_log, step, result)
    return _with_cause(given, decision.failure)


def _with_cause(given: Grade, cause: Failure | None) -> Grade:
    """Name the step that failed before as the reason of a negative verdict; the verdict's own text follows."""
    if cause is None or given.failure is None or given.failure.code == cause.code:
        return given
    failure = replace(cause, message=f"{cause.message}; then {given.failure.message}")
    if given.outcome is Outcome.FAILED:
        return replace(given, failure=failure)
    if cause.code == "oom_limit" and given.failure.cls is FailureClass.TASK:
        # Running out of its own memory is the task's result, also when it left nothing else to read.
        return replace(given, outcome=Outcome.FAILED, failure=failure, rewards={"reward": 0.0})
    return given


def _by_exit_code(verdict: ExitCodeVerdict, step: Step, result: StepResult) -> Grade:
    if result.exit_code in verdict.pass_codes:
        return _passed()
    failure = physical_failure(step, result)
    if result.exit_code == 0:
        failure = replace(
            failure, message=f"step {step.name} exited with 0, which is not a passing code here"
        )
    return _failed(failure)


def _by_reward(verdict: RewardVerdict, content: bytes | None, step: Step) -> Grade:
    if content is None:
        return _no_verdict("reward_missing", f"there is no reward file {verdict.path}", step)
    try:
        rewards = parse_reward(content, verdict.key)
    except InvalidRewardError as error:
        return _no_verdict(error.code, str(error), step)
    reward = rewards[verdict.key]
    if reward >= verdict.pass_at:
        return Grade(Outcome.PASSED, rewards={"reward": reward, **rewards})
    text = f"{verdict.key} is {reward:g}, below {verdict.pass_at:g}"
    return Grade(
        Outcome.FAILED, _task_failure("reward_below_pass", text, step), {"reward": reward, **rewards}
    )


def _by_junit(verdict: JunitVerdict, content: bytes | None, step: Step, result: StepResult) -> Grade:
    if content is None:
        return _no_verdict("junit_missing", f"there is no file {verdict.path}", step)
    try:
        parsed = parse_junit(content)
    except InvalidJunitError as error:
        return _no_verdict("junit_unparsable", f"{verdict.path}: {error}", step)
    tests = parsed.tests
    unmet = [name for name in verdict.require if parsed.status_of(name) not in _PASSING]
    failing = [name for name, status in tests.items() if status.is_failing]
    skipped = [name for name, status in tests.items() if status is TestStatus.SKIPPED]
    if failing or unmet or (skipped and not verdict.allow_skip):
        named = failing or unmet or skipped
        text = f"{len(named)} of {len(tests)} tests did not pass: {_some(named)}"
        return replace(_failed(_task_failure("tests_failed", text, step)), tests=tests)
    problem = _exit_mismatch("junit_exit_mismatch", tests, step, result)
    if parsed.declared_bad:
        # Nothing is failing by the cases, so those that the suite counts were left out of the file.
        text = f"a suite declares {parsed.declared_bad} failures or errors, and no test case shows one"
        problem = _task_failure("junit_incomplete", text, step)
    if not _has_run(tests):
        problem = _task_failure("no_tests", "no test ran", step)
    return replace(_passed() if problem is None else _failed(problem), tests=tests)


def _by_log(verdict: LogVerdict, read_log: ReadLog, step: Step, result: StepResult) -> Grade:
    try:
        parser = get_parser(verdict.parser)
    except SpecInvalidError as error:
        return Grade(Outcome.ERROR, Failure(FailureClass.SPEC, error.code, error.message, step=step.name))
    log = read_log(step.name)
    if len(log) > MAX_LOG_BYTES:
        return _failed(_task_failure("log_incomplete", "the log is too large to be graded", step))
    try:
        parsed = parser.parse(decode_log(log))
    except Exception as error:  # noqa: BLE001 -- parsers of other distributions meet hostile logs here
        text = f"log parser {parser.name} failed: {type(error).__name__}: {error}"
        return _no_verdict("log_unparsable", text, step)
    given = replace(
        _passed(),
        tests=parsed.tests,
        fail_to_pass=_named_set(verdict.fail_to_pass, _PASSING, parser, parsed),
        pass_to_pass=_named_set(verdict.pass_to_pass, _MAINTAINED, parser, parsed),
    )
    failure = _log_failure(given, parsed, step, result)
    if failure is None:
        return given
    return replace(given, outcome=Outcome.FAILED, failure=failure, rewards={"reward": 0.0})


def _log_failure(given: Grade, parsed: ParsedLog, step: Step, result: StepResult) -> Failure | None:
    if not parsed.completed:
        return _task_failure("log_incomplete", parsed.reason or "the log does not show the run's end", step)
    named = [found for found in (given.fail_to_pass, given.pass_to_pass) if found is not None]
    if named:
        failing = [test_id for found in named for test_id in found.failed]
        total = sum(found.total for found in named)
    else:
        failing = [test_id for test_id, status in parsed.tests.items() if status.is_failing]
        total = len(parsed.tests)
    if failing:
        text = f"{len(failing)} of {total} tests did not pass: {_some(failing)}"
        return _task_failure("tests_failed", text, step)
    if not named and not _has_run(parsed.tests):
        return _task_failure("no_tests", "no test ran", step)
    return _exit_mismatch("log_exit_mismatch", parsed.tests, step, result)


def _has_run(tests: Mapping[str, TestStatus]) -> bool:
    return any(status is not TestStatus.SKIPPED for status in tests.values())


def _exit_mismatch(
    code: str, tests: Mapping[str, TestStatus], step: Step, result: StepResult
) -> Failure | None:
    """Tests of which none failed do not explain a step that reports failure."""
    if result.exit_code == 0 or any(status.is_failing for status in tests.values()):
        return None
    ended = f"exited with {result.exit_code}" if result.signal is None else f"was killed by {result.signal}"
    failure = _task_failure(code, f"step {step.name} {ended} though no test failed", step)
    return replace(failure, exit_code=result.exit_code, signal=result.signal)


def _named_set(
    ids: Sequence[str], accepted: frozenset[TestStatus], parser: LogParser, parsed: ParsedLog
) -> TestSetResult | None:
    failed = tuple(test_id for test_id in ids if _status(test_id, parser, parsed) not in accepted)
    return TestSetResult(len(ids) - len(failed), len(ids), failed) if ids else None


def _status(test_id: str, parser: LogParser, parsed: ParsedLog) -> TestStatus | None:
    return parsed.status_of(test_id) or parsed.status_of(parser.canonical_id(test_id))


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(name[:200] for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


def _passed() -> Grade:
    return Grade(Outcome.PASSED, rewards={"reward": 1.0})


def _failed(failure: Failure) -> Grade:
    return Grade(Outcome.FAILED, failure, {"reward": 0.0})


def _no_verdict(code: str, message: str, step: Step) -> Grade:
    return Grade(Outcome.ERROR, _task_failure(code, message, step))


def _task_failure(code: str, message: str, step: Step) -> Failure:
    return Failure(FailureClass.TASK, code, message, step=step.name)
