"""What the end of a step means: whether the next one runs, and whether it decides the trial before any verdict.

A setup step that fails leaves nothing to judge: `error`. A run step that fails does not stop a later verify step: an
agent that ran out of time may have solved the task, and the verdict decides. Any other step that fails before the
verdict's own step fails the trial, except that a verify step which timed out or could not start says nothing about
the submission: `error`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from core.errors import FailureClass
from services.jobspec import ExitCodeVerdict, JobSpec, LogVerdict, Step, StepRole
from services.outcomes import Failure, Outcome, StepResult

__all__ = ["Decision", "decide_before_verdict", "physical_failure", "should_continue", "verdict_step"]


_SAYS_NOTHING = frozenset({"idle_timeout", "step_not_started", "step_timeout"})
"""Codes of a verify step that tell nothing about the submission."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What the steps before the verdict say.

    outcome: set when they decide the trial, with `failure`; None when the verdict is to be computed. `failure` is then
    the first failure on the way (a run step's, or the verdict's step out of memory): the likely cause, should the
    verdict be negative.
    """

    outcome: Outcome | None = None
    failure: Failure | None = None


def should_continue(step: Step, result: StepResult, spec: JobSpec) -> bool:
    """Say whether the step after this one runs. With a later verify step, steps in between run as well."""
    if _is_blocking_reject(step, result):
        return False
    if not _has_failed(result):
        return True
    if step.role is StepRole.SETUP:
        return False
    if step.name == verdict_step(spec).name and not _is_cut_short(result):
        return True  # what its exit code means is the verdict's business
    return step.role is StepRole.RUN and _verify_follows(step, spec)


def verdict_step(spec: JobSpec) -> Step:
    """Give the step the verdict is about: the one it names, else the last verify step, else the last step.

    An exit code verdict without a name is about the last step, whatever its role.
    """
    verdict = spec.verdict
    if isinstance(verdict, ExitCodeVerdict | LogVerdict) and verdict.step is not None:
        return next((step for step in spec.steps if step.name == verdict.step), spec.steps[-1])
    if isinstance(verdict, ExitCodeVerdict):
        return spec.steps[-1]
    return next((step for step in reversed(spec.steps) if step.role is StepRole.VERIFY), spec.steps[-1])


def decide_before_verdict(spec: JobSpec, results: Mapping[str, StepResult]) -> Decision:
    """Look at the steps up to the verdict's own. results: by step name; steps that were not run are absent."""
    target = verdict_step(spec)
    cause: Failure | None = None
    for step in spec.steps:
        result = results.get(step.name)
        if result is None:
            if cause is not None:
                return Decision(Outcome.FAILED, cause)
            return Decision(Outcome.ERROR, _not_run(step))
        decision = _decide_step(step, result, spec, is_target=step is target)
        if decision.outcome is not None:
            return decision
        cause = cause or decision.failure
        if step is target:
            break
    return Decision(failure=cause)


def physical_failure(step: Step, result: StepResult) -> Failure:
    """Describe how a step failed, by its first cause: not started, out of time, out of memory, exit code or signal."""
    if result.error is not None:
        code, text = "step_not_started", f"could not be started: {result.error}"
    elif result.is_idle:
        code, text = "idle_timeout", "was killed after it neither printed nor computed for timeouts.idle"
    elif result.timed_out:
        code, text = "step_timeout", f"was killed after its timeout of {step.timeout_seconds:g} s"
    elif result.oom:
        code, text = "oom_limit", "was killed at the sandbox's own memory limit"
    elif result.signal is not None:
        code, text = "nonzero_exit", f"was killed by signal {result.signal}"
    else:
        code, text = "nonzero_exit", f"exited with {result.exit_code}"
    blames_infra = step.role is StepRole.SETUP and step.blame_infra
    return Failure(
        FailureClass.INFRA if blames_infra else FailureClass.TASK,
        "setup_failed" if step.role is StepRole.SETUP and code == "nonzero_exit" else code,
        f"step {step.name} {text}",
        step=step.name,
        exit_code=result.exit_code,
        signal=result.signal,
        oom=result.oom,
        timed_out=result.timed_out,
        retryable=blames_infra,
    )


def _decide_step(step: Step, result: StepResult, spec: JobSpec, *, is_target: bool) -> Decision:
    if _is_blocking_reject(step, result):
        failure = Failure(
            FailureClass.TASK, "patch_rejected", f"step {step.name}: the patch does not apply", step=step.name
        )
        return Decision(Outcome.FAILED, failure)
    if not _has_failed(result) or (
        is_target and not _is_cut_short(result) and step.role is not StepRole.SETUP
    ):
        return Decision()
    failure = physical_failure(step, result)
    if step.role is StepRole.SETUP:
        return Decision(Outcome.ERROR, failure)
    if step.role is StepRole.RUN and not is_target and _verify_follows(step, spec):
        return Decision(failure=failure)
    says_nothing = step.role is StepRole.VERIFY and failure.code in _SAYS_NOTHING
    return Decision(Outcome.ERROR if says_nothing else Outcome.FAILED, failure)


def _is_blocking_reject(step: Step, result: StepResult) -> bool:
    return result.patch_rejected and (step.patch is None or step.patch.on_reject == "fail")


def _has_failed(result: StepResult) -> bool:
    # A patch step with on_reject "continue" ends with exit code 0 although `patch_rejected` is set.
    return result.exit_code != 0 or result.timed_out or result.error is not None


def _is_cut_short(result: StepResult) -> bool:
    """Tell a step that something ended from one that ended with a code of its own choice."""
    return result.timed_out or result.error is not None


def _verify_follows(step: Step, spec: JobSpec) -> bool:
    later = spec.steps[spec.steps.index(step) + 1 :]
    return any(other.role is StepRole.VERIFY for other in later)


def _not_run(step: Step) -> Failure:
    message = f"step {step.name} was not run, though nothing before it failed"
    return Failure(FailureClass.INFRA, "step_not_run", message, step=step.name, retryable=True)
