"""The job specification as a value: immutable, small, and the same in API, database and worker.

`api/schemas` parses and checks what a client sends; what passes is turned into these dataclasses, stored as JSON in
`jobs.spec` by `to_json`, and read back by `from_json` on the worker. Times are seconds, sizes bytes.
Source: `docs/jobs.md`.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from pydantic_core import to_jsonable_python

__all__ = [
    "ArtifactRule",
    "Backoff",
    "ExitCodeVerdict",
    "Input",
    "JobSpec",
    "JunitVerdict",
    "LogVerdict",
    "Need",
    "PatchStep",
    "Resources",
    "RetryBudget",
    "RetryRule",
    "RewardVerdict",
    "Step",
    "StepRole",
    "Timeouts",
    "TrialPlan",
    "Verdict",
    "digest_of",
    "verdict_from_json",
]


class StepRole(StrEnum):
    """Says who is to blame when the step fails, and what runs after it."""

    SETUP = "setup"
    RUN = "run"
    VERIFY = "verify"


@dataclass(frozen=True, slots=True)
class Resources:
    """Limits of the sandbox; the scheduler counts cpu, memory and GPUs."""

    cpu_millicores: int = 1000
    memory_bytes: int = 512 << 20
    disk_bytes: int = 1 << 30
    pids: int = 256
    gpu: int = 0


@dataclass(frozen=True, slots=True)
class Input:
    """One file put into the sandbox: text or blob (digest `sha256:<hex>`), exactly one.

    before: None = before the first step; else the name of the step before which it appears, and not earlier.
    """

    path: str
    text: str | None = None
    blob: str | None = None
    mode: int = 0o644
    before: str | None = None


@dataclass(frozen=True, slots=True)
class PatchStep:
    """A unified diff, read from `path` in the sandbox, applied to the files below `cwd` (None: workdir)."""

    path: str
    strip: int = 1
    on_reject: Literal["fail", "continue"] = "fail"


@dataclass(frozen=True, slots=True)
class Step:
    """One action: exactly one of run (shell text), argv and patch. timeout in seconds."""

    name: str
    role: StepRole = StepRole.RUN
    run: str | None = None
    argv: tuple[str, ...] | None = None
    patch: PatchStep | None = None
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_seconds: float = 600.0
    merge_streams: bool = False
    blame_infra: bool = False


@dataclass(frozen=True, slots=True)
class ExitCodeVerdict:
    """Passed when the step (None: the last one) ended with one of these codes."""

    kind: Literal["exit_code"] = "exit_code"
    step: str | None = None
    pass_codes: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True)
class RewardVerdict:
    """A file holding a finite number, or a JSON object with one under `key`; passed from `pass_at` on."""

    path: str
    kind: Literal["reward"] = "reward"
    key: str = "reward"
    pass_at: float = 1.0


@dataclass(frozen=True, slots=True)
class JunitVerdict:
    """A JUnit XML file; passed when nothing failed and every name in `require` passed."""

    path: str
    kind: Literal["junit"] = "junit"
    require: tuple[str, ...] = ()
    allow_skip: bool = True


@dataclass(frozen=True, slots=True)
class LogVerdict:
    """Test statuses read by a named parser from the stored output of the step (None: the last verify step).

    Passed when every id of fail_to_pass and of pass_to_pass passed; with both empty: when at least one test ran and
    none failed.
    """

    parser: str
    kind: Literal["log"] = "log"
    step: str | None = None
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()


Verdict = ExitCodeVerdict | RewardVerdict | JunitVerdict | LogVerdict


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds, all enforced by the server.

    Of the trial: queue, accepted to first start; total, first start to end, over all attempts. Of each attempt: start,
    dispatch to running, pulling the image included; run, running to the end of its steps; idle, how long a step may
    neither print nor compute. grace: TERM to KILL. None: no such limit.
    """

    queue: float = 86400.0
    start: float = 120.0
    total: float = 7200.0
    grace: float = 10.0
    run: float | None = None
    idle: float | None = None


@dataclass(frozen=True, slots=True)
class ArtifactRule:
    """Files to keep: `path` is absolute, its last part may be a glob, `/**` takes the whole tree."""

    path: str
    max_bytes: int = 50 << 20
    when: Literal["always", "passed", "failed"] = "always"


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """How many samples, and the seed from which sample i gets TRIAL_SEED = seed + i.

    stop: which outcome of one ends the others; other than `never`, estimates from them are biased.
    """

    count: int = 1
    seed: int | None = None
    stop: Literal["never", "first_pass", "first_fail"] = "never"


@dataclass(frozen=True, slots=True)
class Need:
    """Another job of the batch, by key, that has to end so before this one may start."""

    job: str
    outcome: Literal["passed", "failed", "finished"] = "passed"


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds to wait before the next try: at most initial * factor ** tries used, and never more than cap."""

    initial: float = 1.0
    factor: float = 2.0
    cap: float = 60.0


@dataclass(frozen=True, slots=True)
class RetryRule:
    """What to do about failures that match in every respect it names; an empty one is not looked at.

    classes: of FailureClass. exit_codes: ranges, both ends included. signals: numbers. retry False: end the trial.
    max: most retries by this rule, within the budget of the failure's class. backoff None: that of the policy.
    """

    classes: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()
    exit_codes: tuple[tuple[int, int], ...] = ()
    signals: tuple[int, ...] = ()
    retry: bool = True
    max: int | None = None
    backoff: Backoff | None = None


@dataclass(frozen=True, slots=True)
class RetryBudget:
    """Extra attempts. infra failures and task failures have budgets apart. Seconds for the backoff.

    rules: the first that matches a failure decides about it; without one its class does. avoid_node: after an infra
    failure, prefer other nodes.
    """

    infra_max: int = 3
    task_max: int = 0
    initial_seconds: float = 1.0
    factor: float = 2.0
    cap_seconds: float = 60.0
    avoid_node: bool = True
    rules: tuple[RetryRule, ...] = ()

    @property
    def backoff(self) -> Backoff:
        """Of every retry whose rule has none of its own."""
        return Backoff(self.initial_seconds, self.factor, self.cap_seconds)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "RetryBudget":
        """Read `retry` of a stored spec. Raises KeyError or TypeError on anything else."""
        return cls(**{**value, "rules": tuple(_rule(rule) for rule in value.get("rules", ()))})


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One unit of work. `digest` covers all that decides the result, so neither names nor whose turn it is.

    queue: named queue. node_labels: those that the node must have. preemptible: may be stopped and run again later
    to make room.
    """

    key: str
    image: str
    steps: tuple[Step, ...]
    kind: Literal["run"] = "run"
    runtime: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0
    queue: str = "default"
    preemptible: bool = False
    node_labels: Mapping[str, str] = field(default_factory=dict)
    resources: Resources = Resources()
    workdir: str = "/workspace"
    env: Mapping[str, str] = field(default_factory=dict)
    inputs: tuple[Input, ...] = ()
    timeouts: Timeouts = Timeouts()
    artifacts: tuple[ArtifactRule, ...] = ()
    verdict: Verdict = ExitCodeVerdict()
    trials: TrialPlan = TrialPlan()
    needs: tuple[Need, ...] = ()
    retry: RetryBudget = RetryBudget()

    @property
    def digest(self) -> str:
        """`sha256:<hex>` over the canonical JSON of what decides the result."""
        return digest_of(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Give plain JSON values, as stored in `jobs.spec`."""
        # A fifth of the time of dataclasses.asdict, which was most of the cost of accepting a large batch.
        value: dict[str, Any] = to_jsonable_python(self)
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "JobSpec":
        """Read what `to_json` wrote. Raises KeyError or TypeError on anything else."""
        rest = dict(value)
        return cls(
            steps=tuple(_step(step) for step in rest.pop("steps")),
            resources=Resources(**rest.pop("resources")),
            inputs=tuple(Input(**item) for item in rest.pop("inputs")),
            timeouts=Timeouts(**rest.pop("timeouts")),
            artifacts=tuple(ArtifactRule(**item) for item in rest.pop("artifacts")),
            verdict=verdict_from_json(rest.pop("verdict")),
            trials=TrialPlan(**rest.pop("trials")),
            needs=tuple(Need(**need) for need in rest.pop("needs", ())),
            retry=RetryBudget.from_json(rest.pop("retry")),
            **rest,
        )


_NOT_IN_DIGEST = frozenset({"key", "labels", "priority", "queue", "preemptible", "needs"})


def digest_of(spec: Mapping[str, Any]) -> str:
    """Give `JobSpec.digest` for a spec that is at hand as JSON values already."""
    body = {name: value for name, value in spec.items() if name not in _NOT_IN_DIGEST}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _step(value: Mapping[str, Any]) -> Step:
    rest = dict(value)
    patch = rest.pop("patch")
    argv = rest.pop("argv")
    return Step(
        role=StepRole(rest.pop("role")),
        patch=None if patch is None else PatchStep(**patch),
        argv=None if argv is None else tuple(argv),
        **rest,
    )


def _rule(value: Mapping[str, Any]) -> RetryRule:
    rest = dict(value)
    backoff = rest.pop("backoff")
    return RetryRule(
        classes=tuple(rest.pop("classes")),
        codes=tuple(rest.pop("codes")),
        exit_codes=tuple((low, high) for low, high in rest.pop("exit_codes")),
        signals=tuple(rest.pop("signals")),
        backoff=None if backoff is None else Backoff(**backoff),
        **rest,
    )


def verdict_from_json(value: Mapping[str, Any]) -> Verdict:
    """Read a verdict as `to_json` of its job wrote it. Raises KeyError or TypeError on anything else."""
    # JSON has lists where the value has tuples.
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in value.items()}
    match fields["kind"]:
        case "exit_code":
            return ExitCodeVerdict(**fields)
        case "reward":
            return RewardVerdict(**fields)
        case "junit":
            return JunitVerdict(**fields)
        case _:
            return LogVerdict(**fields)
