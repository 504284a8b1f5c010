"""Between the wire and the domain value, both ways."""

import base64
import contextlib
import hashlib
from typing import Any, assert_never

from api.schemas.jobs import (
    ExitCodeRequest,
    InputRequest,
    JobRequest,
    JunitRequest,
    LogRequest,
    RetryRequest,
    RetryRuleRequest,
    RewardRequest,
    StepRequest,
    VerdictRequest,
)
from api.schemas.webhooks import OnCompleteRequest
from services.batch_webhooks import BatchWebhook
from services.jobspec import (
    ArtifactRule,
    Backoff,
    ExitCodeVerdict,
    Input,
    JobSpec,
    JunitVerdict,
    LogVerdict,
    Need,
    PatchStep,
    Resources,
    RetryBudget,
    RetryRule,
    RewardVerdict,
    Step,
    StepRole,
    Timeouts,
    TrialPlan,
    Verdict,
)
from services.webhook_events import WebhookEvent

__all__ = ["resolve_step", "to_batch_webhook", "to_spec", "to_verdict", "to_wire", "verdict_to_wire"]

MIB = 1 << 20


def to_spec(job: JobRequest, *, priority: int, files: dict[str, bytes]) -> JobSpec:
    """Make the value the rest works with from a checked job.

    priority: of the batch, for a job that names none. files: gets the bytes of inputs that came as base64, by digest;
    they are to be stored as blobs.
    """
    return JobSpec(
        key=job.key,
        image=job.image.ref,
        runtime=job.runtime,
        labels=job.labels,
        priority=priority if job.priority is None else job.priority,
        resources=Resources(
            cpu_millicores=round(job.resources.cpu.limit * 1000),
            memory_bytes=job.resources.memory_mb.limit * MIB,
            disk_bytes=job.resources.disk_mb * MIB,
            pids=job.resources.pids,
            gpu=job.resources.gpu,
        ),
        queue=job.queue,
        preemptible=job.preemptible,
        node_labels=job.placement.labels,
        workdir=job.workdir,
        env=job.env,
        inputs=tuple(_to_input(item, job, files) for item in job.inputs),
        steps=tuple(_to_step(step) for step in job.steps),
        timeouts=Timeouts(**job.timeouts.model_dump()),
        artifacts=tuple(ArtifactRule(rule.path, rule.max_bytes, rule.when) for rule in job.artifacts),
        verdict=to_verdict(job.verdict),
        trials=TrialPlan(job.trials.count, job.trials.seed, job.trials.stop),
        needs=tuple(Need(need.job, need.outcome) for need in job.needs),
        retry=_to_retry(job.retry),
    )


def to_batch_webhook(wanted: OnCompleteRequest | None) -> BatchWebhook | None:
    """Make the value of a batch's own receiver."""
    if wanted is None:
        return None
    hook = wanted.webhook
    return BatchWebhook(hook.url, hook.secret_ref, tuple(WebhookEvent(name) for name in hook.events))


def resolve_step(job: JobRequest, name: str) -> str | None:
    """Find the step a `before` means: the one of that name, else the first one of that role."""
    by_name = [step.name for step in job.steps if step.name == name]
    by_role = [step.name for step in job.steps if step.role == name]
    return next(iter(by_name + by_role), None)


def _to_input(item: InputRequest, job: JobRequest, files: dict[str, bytes]) -> Input:
    text, blob = item.text, item.blob
    if item.base64 is not None:
        data = base64.b64decode(item.base64)
        text = _as_text(data)
        if text is None:
            blob = f"sha256:{hashlib.sha256(data).hexdigest()}"
            files[blob] = data
    before = None if item.before is None else resolve_step(job, item.before)
    return Input(item.path, text=text, blob=blob, mode=int(item.mode, 8), before=before)


def _as_text(data: bytes) -> str | None:
    """Read the bytes as text that the spec can hold itself, which spares a file in the store."""
    with contextlib.suppress(UnicodeDecodeError):
        text = data.decode("utf-8")
        return None if "\0" in text else text
    return None


def _to_step(step: StepRequest) -> Step:
    return Step(
        name=step.name,
        role=StepRole(step.role),
        run=step.run,
        argv=None if step.argv is None else tuple(step.argv),
        patch=None
        if step.patch is None
        else PatchStep(step.patch.path, step.patch.strip, step.patch.on_reject),
        cwd=step.cwd,
        env=step.env,
        timeout_seconds=step.timeout,
        merge_streams=step.streams == "merged",
        blame_infra=step.blame == "infra",
    )


def to_verdict(verdict: VerdictRequest) -> Verdict:
    """Make the value of a checked verdict."""
    match verdict:
        case ExitCodeRequest():
            return ExitCodeVerdict(step=verdict.step, pass_codes=tuple(verdict.pass_codes))
        case RewardRequest():
            return RewardVerdict(path=verdict.path, key=verdict.key, pass_at=verdict.pass_at)
        case JunitRequest():
            return JunitVerdict(
                path=verdict.path, require=tuple(verdict.require), allow_skip=verdict.allow_skip
            )
        case LogRequest():
            return LogVerdict(
                parser=verdict.parser,
                step=verdict.step,
                fail_to_pass=tuple(verdict.fail_to_pass),
                pass_to_pass=tuple(verdict.pass_to_pass),
            )
        case _:
            assert_never(verdict)


def _to_retry(retry: RetryRequest) -> RetryBudget:
    backoff = retry.infra.backoff
    return RetryBudget(
        infra_max=retry.infra.max,
        task_max=retry.task.max,
        initial_seconds=backoff.initial,
        factor=backoff.factor,
        cap_seconds=backoff.max,
        avoid_node=retry.infra.avoid_node,
        rules=tuple(_to_rule(rule) for rule in retry.rules),
    )


def _to_rule(rule: RetryRuleRequest) -> RetryRule:
    backoff = rule.backoff
    return RetryRule(
        classes=rule.when.failure_class,
        codes=rule.when.code,
        exit_codes=rule.when.exit_code,
        signals=rule.when.signal,
        retry=rule.action == "retry",
        max=rule.max,
        backoff=None if backoff is None else Backoff(backoff.initial, backoff.factor, backoff.max),
    )


def to_wire(spec: JobSpec) -> dict[str, Any]:
    """Write a spec as a client would send it; what the client left out is filled in."""
    resources, retry = spec.resources, spec.retry
    return {
        "key": spec.key,
        "kind": spec.kind,
        "image": {"ref": spec.image},
        "runtime": spec.runtime,
        "labels": dict(spec.labels),
        "priority": spec.priority,
        "queue": spec.queue,
        "preemptible": spec.preemptible,
        "placement": {"labels": dict(spec.node_labels)},
        "resources": {
            "cpu": resources.cpu_millicores / 1000,
            "memory_mb": resources.memory_bytes // MIB,
            "disk_mb": resources.disk_bytes // MIB,
            "pids": resources.pids,
            "gpu": resources.gpu,
        },
        "network": {"mode": "none"},
        "workdir": spec.workdir,
        "env": dict(spec.env),
        "inputs": [_input_to_wire(item) for item in spec.inputs],
        "steps": [_step_to_wire(step) for step in spec.steps],
        "timeouts": {
            "queue": spec.timeouts.queue,
            "start": spec.timeouts.start,
            "run": spec.timeouts.run,
            "idle": spec.timeouts.idle,
            "total": spec.timeouts.total,
            "grace": spec.timeouts.grace,
        },
        "artifacts": [{"path": r.path, "max_bytes": r.max_bytes, "when": r.when} for r in spec.artifacts],
        "verdict": verdict_to_wire(spec.verdict),
        "trials": {"count": spec.trials.count, "seed": spec.trials.seed, "stop": spec.trials.stop},
        "needs": [{"job": need.job, "outcome": need.outcome} for need in spec.needs],
        "retry": {
            "infra": {
                "max": retry.infra_max,
                "backoff": _backoff_to_wire(retry.backoff),
                "avoid_node": retry.avoid_node,
            },
            "task": {"max": retry.task_max},
            "rules": [_rule_to_wire(rule) for rule in retry.rules],
        },
    }


def _backoff_to_wire(backoff: Backoff) -> dict[str, Any]:
    return {"initial": backoff.initial, "factor": backoff.factor, "max": backoff.cap}


def _rule_to_wire(rule: RetryRule) -> dict[str, Any]:
    when = {
        "class": list(rule.classes),
        "code": list(rule.codes),
        "exit_code": [low if low == high else f"{low}-{high}" for low, high in rule.exit_codes],
        "signal": list(rule.signals),
    }
    return {
        "when": {name: values for name, values in when.items() if values},
        "action": "retry" if rule.retry else "fail",
        "max": rule.max,
        "backoff": None if rule.backoff is None else _backoff_to_wire(rule.backoff),
    }


def _input_to_wire(item: Input) -> dict[str, Any]:
    source = {"text": item.text} if item.text is not None else {"blob": item.blob}
    return {"path": item.path, **source, "mode": f"{item.mode:04o}", "before": item.before}


def _step_to_wire(step: Step) -> dict[str, Any]:
    action: dict[str, Any]
    if step.patch is not None:
        patch = step.patch
        action = {"patch": {"path": patch.path, "strip": patch.strip, "on_reject": patch.on_reject}}
    elif step.argv is not None:
        action = {"argv": list(step.argv)}
    else:
        action = {"run": step.run}
    return {
        "name": step.name,
        "role": step.role.value,
        **action,
        "cwd": step.cwd,
        "env": dict(step.env),
        "timeout": step.timeout_seconds,
        "streams": "merged" if step.merge_streams else "split",
        "blame": "infra" if step.blame_infra else "task",
    }


def verdict_to_wire(verdict: Verdict) -> dict[str, Any]:
    """Write a verdict as a client would send it."""
    match verdict:
        case ExitCodeVerdict():
            return {"from": "exit_code", "step": verdict.step, "pass": list(verdict.pass_codes)}
        case RewardVerdict():
            return {"from": "reward", "path": verdict.path, "key": verdict.key, "pass_at": verdict.pass_at}
        case JunitVerdict():
            return {
                "from": "junit",
                "path": verdict.path,
                "require": list(verdict.require),
                "allow_skip": verdict.allow_skip,
            }
        case LogVerdict():
            return {
                "from": "log",
                "parser": verdict.parser,
                "step": verdict.step,
                "fail_to_pass": list(verdict.fail_to_pass),
                "pass_to_pass": list(verdict.pass_to_pass),
            }
        case _:
            assert_never(verdict)
