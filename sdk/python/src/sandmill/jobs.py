"""What is submitted. Fields left out take the batch's defaults, then the server's; times are seconds.

Each class writes itself with `to_json`; the server checks, and names every field that is wrong.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

__all__ = [
    "Artifact",
    "Concurrency",
    "ExitCodeVerdict",
    "Input",
    "Job",
    "JobDefaults",
    "JunitVerdict",
    "LogVerdict",
    "Need",
    "PatchStep",
    "Placement",
    "Resources",
    "Retry",
    "RetryRule",
    "RewardVerdict",
    "Role",
    "Step",
    "Timeouts",
    "Trials",
    "Verdict",
]

Role = Literal["setup", "run", "verify"]
"""Who is to blame when a step fails: the environment, the submission, or the grader."""


class _Wire:
    """Writes the fields that are not None under their own names."""

    _spelling: ClassVar[Mapping[str, str]] = {}

    def to_json(self) -> dict[str, Any]:
        """Give plain JSON values."""
        found: dict[str, Any] = {}
        for item in fields(self):  # type: ignore[arg-type] # every subclass is a dataclass
            value = getattr(self, item.name)
            if value is not None:
                found[self._spelling.get(item.name, item.name)] = _to_wire(value)
        return found


def _to_wire(value: Any) -> Any:
    if isinstance(value, _Wire):
        return value.to_json()
    if isinstance(value, Mapping):
        return {name: _to_wire(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_to_wire(item) for item in value]
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources(_Wire):
    """Hard limits of the sandbox. cpu: cores. memory_mb, disk_mb: MiB. pids: processes and threads at a time.

    gpu: whole GPUs.
    """

    cpu: float | None = None
    memory_mb: int | None = None
    disk_mb: int | None = None
    pids: int | None = None
    gpu: int | None = None


@dataclass(frozen=True, slots=True)
class Input(_Wire):
    """One file put into the sandbox: exactly one of text, data (bytes, small ones) and blob (a digest).

    mode: octal text such as "0755". before: name or role of the step before which it appears, and not earlier; None:
    before the first step.
    """

    path: str
    text: str | None = None
    data: bytes | None = None
    blob: str | None = None
    mode: str | None = None
    before: str | None = None

    def __post_init__(self) -> None:
        """Raise ValueError unless there is exactly one source."""
        if sum(value is not None for value in (self.text, self.data, self.blob)) != 1:
            raise ValueError(f"input {self.path}: give exactly one of text, data and blob")

    def to_json(self) -> dict[str, Any]:
        """Give plain JSON values; data goes as base64."""
        found = {
            "path": self.path,
            "text": self.text,
            "base64": None if self.data is None else base64.b64encode(self.data).decode(),
            "blob": self.blob,
            "mode": self.mode,
            "before": self.before,
        }
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Step(_Wire):
    """One command: run (shell text) or argv, not both.

    cwd: default is the job's workdir. timeout: seconds. streams: merged puts stdout and stderr into one file
    descriptor, so that their order is exact. blame: infra makes a failing setup step nobody's result.
    """

    name: str
    run: str | None = None
    argv: Sequence[str] | None = None
    role: Role | None = None
    cwd: str | None = None
    env: Mapping[str, str] | None = None
    timeout: float | None = None
    streams: Literal["split", "merged"] | None = None
    blame: Literal["task", "infra"] | None = None

    def __post_init__(self) -> None:
        """Raise ValueError unless there is exactly one command."""
        if (self.run is None) == (self.argv is None):
            raise ValueError(f"step {self.name}: give exactly one of run and argv")
        if isinstance(self.argv, str):
            raise TypeError(f"step {self.name}: argv is a list of words; a line for the shell is run=")


@dataclass(frozen=True, slots=True)
class PatchStep(_Wire):
    """Applies a unified diff that lies at `path` in the sandbox to the files below cwd (default: workdir).

    strip: leading parts to cut from its file names. on_reject: continue applies what can be applied.
    """

    name: str
    path: str
    role: Role | None = None
    strip: int | None = None
    on_reject: Literal["fail", "continue"] | None = None
    cwd: str | None = None
    timeout: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Give plain JSON values."""
        patch = {"path": self.path, "strip": self.strip, "on_reject": self.on_reject}
        found: dict[str, Any] = {
            "name": self.name,
            "role": self.role,
            "patch": {name: value for name, value in patch.items() if value is not None},
            "cwd": self.cwd,
            "timeout": self.timeout,
        }
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts(_Wire):
    """Seconds. Of the trial: queue, accepted to first start; total, first start to end, over all attempts.

    Of each attempt: start, dispatch to running; run, running to the end of its steps; idle, how long a step may neither
    print nor use the CPU. grace: TERM to KILL.
    """

    queue: float | None = None
    start: float | None = None
    run: float | None = None
    idle: float | None = None
    total: float | None = None
    grace: float | None = None


@dataclass(frozen=True, slots=True)
class Artifact(_Wire):
    """Files to keep. path: absolute, its last part may be a pattern, `/**` takes the whole tree."""

    path: str
    max_bytes: int | None = None
    when: Literal["always", "passed", "failed"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitCodeVerdict(_Wire):
    """Passed when the step (default: the last one) ended with one of the codes (default: 0)."""

    _spelling: ClassVar[Mapping[str, str]] = {"pass_codes": "pass", "kind": "from"}

    step: str | None = None
    pass_codes: Sequence[int] | None = None
    kind: Literal["exit_code"] = "exit_code"


@dataclass(frozen=True, slots=True)
class RewardVerdict(_Wire):
    """A file with a finite number, or with a JSON object that has one under `key`; passed from `pass_at` on."""

    _spelling: ClassVar[Mapping[str, str]] = {"kind": "from"}

    path: str
    key: str | None = None
    pass_at: float | None = None
    kind: Literal["reward"] = "reward"


@dataclass(frozen=True, slots=True)
class JunitVerdict(_Wire):
    """A JUnit XML file; passed when nothing failed and every name in `require` passed."""

    _spelling: ClassVar[Mapping[str, str]] = {"kind": "from"}

    path: str
    require: Sequence[str] | None = None
    allow_skip: bool | None = None
    kind: Literal["junit"] = "junit"


@dataclass(frozen=True, slots=True)
class LogVerdict(_Wire):
    """Test results read from the output of a step (default: the last verify step) by a parser, such as unittest.

    Passed when every test of both lists passed; with both empty, when at least one test ran and none failed.
    """

    _spelling: ClassVar[Mapping[str, str]] = {"kind": "from"}

    parser: str
    step: str | None = None
    fail_to_pass: Sequence[str] | None = None
    pass_to_pass: Sequence[str] | None = None
    kind: Literal["log"] = "log"


Verdict = ExitCodeVerdict | RewardVerdict | JunitVerdict | LogVerdict


@dataclass(frozen=True, slots=True)
class Trials(_Wire):
    """How many samples. Sample i finds TRIAL_INDEX = i and TRIAL_SEED = seed + i in its environment.

    stop: which outcome of one trial ends the others; the report is biased then.
    """

    count: int = 1
    seed: int | None = None
    stop: Literal["never", "first_pass", "first_fail"] | None = None


@dataclass(frozen=True, slots=True)
class Need(_Wire):
    """Another job of the batch, by key, that has to end before this one may start; outcome: how (default: passed)."""

    job: str
    outcome: Literal["passed", "failed", "finished"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRule(_Wire):
    """What to do about failures that match in all that is named, by one of its values; with nothing named, all do.

    failure_class: task or infra. exit_code: numbers, or ranges such as "64-78". signal: names or numbers. max: most
    retries by this rule, within the budget of the class. initial, factor, cap: backoff of this rule, in seconds.
    """

    action: Literal["retry", "fail"]
    failure_class: str | Sequence[str] | None = None
    code: str | Sequence[str] | None = None
    exit_code: int | str | Sequence[int | str] | None = None
    signal: int | str | Sequence[int | str] | None = None
    max: int | None = None
    initial: float | None = None
    factor: float | None = None
    cap: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Give plain JSON values."""
        when = {
            "class": self.failure_class,
            "code": self.code,
            "exit_code": self.exit_code,
            "signal": self.signal,
        }
        found = {
            "when": {name: _to_wire(value) for name, value in when.items() if value is not None},
            "action": self.action,
            "max": self.max,
            "backoff": _backoff(self.initial, self.factor, self.cap),
        }
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry(_Wire):
    """Extra attempts, and the seconds between them.

    infra: after failures that are not the job's fault. task: after its own; 0 keeps samples independent.
    avoid_node: after a failure of the first kind, prefer other nodes. rules: the first that matches a failure decides,
    within those budgets.
    """

    infra: int | None = None
    task: int | None = None
    initial: float | None = None
    factor: float | None = None
    cap: float | None = None
    avoid_node: bool | None = None
    rules: Sequence[RetryRule] = ()

    def to_json(self) -> dict[str, Any]:
        """Give plain JSON values."""
        backoff = _backoff(self.initial, self.factor, self.cap)
        infra = {"max": self.infra, "backoff": backoff, "avoid_node": self.avoid_node}
        found = {
            "infra": {name: value for name, value in infra.items() if value is not None},
            "task": {} if self.task is None else {"max": self.task},
            "rules": _to_wire(self.rules),
        }
        return {name: value for name, value in found.items() if value}


def _backoff(initial: float | None, factor: float | None, cap: float | None) -> dict[str, float] | None:
    values = {"initial": initial, "factor": factor, "max": cap}
    return {name: value for name, value in values.items() if value is not None} or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement(_Wire):
    """Which nodes may take a job. labels: that the node must have, each with this value."""

    labels: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Concurrency(_Wire):
    """How many trials of a batch may run at a time.

    max: of the whole batch. per_label: by name of a job's label, of the jobs that have the same value of it.
    """

    max: int | None = None
    per_label: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDefaults(_Wire):
    """Fields that all jobs of a batch share. A job's own field wins; lists are replaced as a whole.

    image: `host` is the node's own read-only system, with nothing to pull. env: of every step. workdir: absolute.
    preemptible: may be stopped and run again later, to make room for others.
    """

    image: str | None = None
    runtime: str | None = None
    labels: Mapping[str, str] | None = None
    priority: int | None = None
    queue: str | None = None
    preemptible: bool | None = None
    placement: Placement | None = None
    resources: Resources | None = None
    workdir: str | None = None
    env: Mapping[str, str] | None = None
    inputs: Sequence[Input] | None = None
    steps: Sequence[Step | PatchStep] | None = None
    timeouts: Timeouts | None = None
    artifacts: Sequence[Artifact] | None = None
    verdict: Verdict | None = None
    trials: Trials | None = None
    needs: Sequence[Need] | None = None
    retry: Retry | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(JobDefaults):
    """One unit of work. key: your name for it, unique in its batch. It needs an image and at least one step."""

    key: str
