"""Checks what one field of a job says about another, once each of them is right by itself."""

from collections.abc import Collection, Iterator, Sequence

from api.schemas.convert import resolve_step
from api.schemas.jobs import (
    ExitCodeRequest,
    InputRequest,
    JobRequest,
    LogRequest,
    RetryRequest,
    StepRequest,
    VerdictRequest,
)

__all__ = ["Finding", "check_references", "check_verdict"]

Finding = tuple[Sequence[str | int], str]
"""Place in the job, as in `("steps", 1, "name")`, and what is wrong there, for a person."""


def check_references(job: JobRequest, known_parsers: Collection[str]) -> Iterator[Finding]:
    """Give everything that is wrong. known_parsers: names of the log parsers that a verdict can name."""
    yield from _check_steps(job.steps)
    yield from _check_times(job)
    yield from _check_paths(job.inputs, job.workdir)
    yield from check_verdict(job.verdict, {step.name for step in job.steps}, known_parsers)
    yield from _check_rules(job.retry)


def _check_steps(steps: Sequence[StepRequest]) -> Iterator[Finding]:
    names: set[str] = set()
    verifies = False
    for number, step in enumerate(steps):
        if step.name in names:
            yield ("steps", number, "name"), "another step has this name"
        if step.role == "setup" and verifies:
            yield ("steps", number, "role"), "a setup step cannot come after a verify step"
        names.add(step.name)
        verifies = verifies or step.role == "verify"


def _check_times(job: JobRequest) -> Iterator[Finding]:
    """Refuse two files of one path at one time; before a later step, a second one may replace the first."""
    seen: set[tuple[str, str | None]] = set()
    for number, item in enumerate(job.inputs):
        step = None if item.before is None else resolve_step(job, item.before)
        if item.before is not None and step is None:
            yield ("inputs", number, "before"), "no step has this name or role"
        elif (item.path, step) in seen:
            yield ("inputs", number, "path"), "another input has this path"
        else:
            seen.add((item.path, step))


def _check_paths(inputs: Sequence[InputRequest], workdir: str) -> Iterator[Finding]:
    """Refuse a file where there has to be a folder. Sorted so, whatever lies below a path follows it at once."""
    above: str | None = None
    for path, number in sorted((f"{item.path}/", number) for number, item in enumerate(inputs)):
        if above is not None and path != above and path.startswith(above):
            yield ("inputs", number, "path"), "lies below the path of another input, which is a file"
        else:
            above = path
        if f"{workdir}/".startswith(path):
            yield ("inputs", number, "path"), "must not be workdir, a folder, or one above it"


def check_verdict(
    verdict: VerdictRequest, step_names: Collection[str], known_parsers: Collection[str]
) -> Iterator[Finding]:
    """Give everything that is wrong with a verdict of a job with these steps."""
    if not isinstance(verdict, ExitCodeRequest | LogRequest):
        return
    if verdict.step is not None and verdict.step not in step_names:
        yield ("verdict", "step"), "no step has this name"
    if isinstance(verdict, ExitCodeRequest):
        return
    if verdict.parser not in known_parsers:
        known = ", ".join(sorted(known_parsers))
        yield ("verdict", "parser"), f"no such parser; there are: {known}"
    failing = frozenset(verdict.fail_to_pass)
    for number, test in enumerate(verdict.pass_to_pass):
        if test in failing:
            yield (
                ("verdict", "pass_to_pass", number),
                "is in fail_to_pass too: a test has one state before the patch",
            )


def _check_rules(retry: RetryRequest) -> Iterator[Finding]:
    """Refuse rules that can never do anything: whoever wrote them expects them to."""
    budgets = {"task": retry.task.max, "infra": retry.infra.max}
    catch_all: int | None = None
    for number, rule in enumerate(retry.rules):
        when = rule.when
        if catch_all is not None:
            yield (
                ("retry", "rules", number),
                f"is never reached: retry.rules[{catch_all}] matches every failure",
            )
            continue
        if when.exit_code and when.signal:
            yield (
                ("retry", "rules", number, "when"),
                "no failure has both an exit code and a signal: use two rules",
            )
        room = max(budgets[name] for name in when.failure_class or budgets)
        if rule.action == "retry" and room == 0:
            names = " and ".join(f"retry.{name}.max" for name in when.failure_class or sorted(budgets))
            yield (
                ("retry", "rules", number, "action"),
                f"allows no retry: {names} is 0, which no rule exceeds",
            )
        elif rule.max is not None and rule.max > room:
            yield ("retry", "rules", number, "max"), f"is more than the budget of the class, which is {room}"
        if not (when.failure_class or when.code or when.exit_code or when.signal):
            catch_all = number
