"""What a client says about a job. `api/schemas/convert.py` turns it into the value the rest works with."""

import base64
import binascii
import re
from difflib import get_close_matches
from signal import Signals
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from api.schemas.base import RequestSchema
from api.schemas.fields import (
    ArgText,
    ArtifactPath,
    BlobDigest,
    EnvMap,
    FilePath,
    FileText,
    ImageRef,
    JobKey,
    Labels,
    NodeLabels,
    OctalMode,
    ParserName,
    QueueName,
    RewardKey,
    ScriptText,
    StepName,
    StepRef,
    TestId,
    WorkPath,
)
from services.failure_codes import ALL_CODES, RULE_CODES

__all__ = ["OFFERED_RUNTIMES", "JobRequest", "JobRequestInBatch", "VerdictRequest"]

MAX_SECONDS = 7 * 86400
"""One week: no step, trial or wait is longer. What never ends hides a mistake in the caller's units."""

Seconds = Annotated[float, Field(gt=0, le=MAX_SECONDS)]


def _check_base64(text: str) -> str:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        message = "must be base64 (RFC 4648, padded)"
        raise ValueError(message) from error
    return text


class ImageRequest(RequestSchema):
    """Where the files of the sandbox come from."""

    ref: ImageRef = Field(description="`host`, or an image name the runtime knows.")


class AmountRequest(RequestSchema):
    """What is counted when placing, and what is enforced."""

    request: float
    limit: float

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.request > self.limit:
            message = "request must not exceed limit"
            raise ValueError(message)
        return self


class CpuAmount(AmountRequest):
    """Cores. Today the limit is also what is counted when placing."""

    request: float = Field(ge=0.01, le=256)
    limit: float = Field(ge=0.01, le=256)


class MemoryAmount(AmountRequest):
    """MiB. Today the limit is also what is counted when placing."""

    request: int = Field(ge=16, le=1 << 20)
    limit: int = Field(ge=16, le=1 << 20)


def _to_amount(value: Any) -> Any:
    """Read a plain number as request and limit in one."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {"request": value, "limit": value}
    if not isinstance(value, dict | AmountRequest):
        raise PydanticCustomError("amount_type", "must be a number, or an object with request and limit")
    return value


# The wire also takes a plain number: said in the published schema, done by the validator in front.
Cpu = Annotated[CpuAmount, BeforeValidator(_to_amount, json_schema_input_type=float | CpuAmount)]
Memory = Annotated[MemoryAmount, BeforeValidator(_to_amount, json_schema_input_type=int | MemoryAmount)]


class ResourcesRequest(RequestSchema):
    """Hard limits of the sandbox. Every one has a default; none can be unlimited."""

    cpu: Cpu = Field(
        default=CpuAmount(request=1, limit=1), description="Cores: a number, or request and limit."
    )
    memory_mb: Memory = Field(default=MemoryAmount(request=512, limit=512), description="MiB.")
    disk_mb: int = Field(default=1024, ge=1, le=1 << 20, description="MiB that can be written.")
    pids: int = Field(default=256, ge=8, le=65536, description="Processes and threads at a time.")
    gpu: int = Field(
        default=0, ge=0, le=64, description="Whole GPUs; only nodes that have some take the job."
    )


class PlacementRequest(RequestSchema):
    """Which nodes may take the job."""

    labels: NodeLabels = Field(
        default={}, description="Labels that the node must have, each with this value."
    )


class NetworkRequest(RequestSchema):
    """What the sandbox can reach."""

    mode: Literal["none"] = "none"


class InputRequest(RequestSchema):
    """One file put into the sandbox. Exactly one of text, blob and base64."""

    path: FilePath
    text: FileText | None = None
    blob: BlobDigest | None = Field(default=None, description="Digest of a blob stored before.")
    base64: Annotated[str, Field(max_length=2 << 20), AfterValidator(_check_base64)] | None = None
    mode: OctalMode = "0644"
    before: StepRef | None = Field(
        default=None,
        description="Name or role of the step before which the file appears; until then it is not there.",
    )

    @model_validator(mode="after")
    def _check_one_source(self) -> Self:
        if sum(value is not None for value in (self.text, self.blob, self.base64)) != 1:
            message = "needs exactly one of text, blob and base64"
            raise ValueError(message)
        return self


class PatchRequest(RequestSchema):
    """A unified diff that lies in the sandbox, applied below `cwd`."""

    path: FilePath
    strip: int = Field(default=1, ge=0, le=32)
    on_reject: Literal["fail", "continue"] = "fail"


class StepRequest(RequestSchema):
    """One action. Exactly one of run, argv and patch."""

    name: StepName
    role: Literal["setup", "run", "verify"] = "run"
    run: ScriptText | None = Field(default=None, description="Shell text, for bash where the image has it.")
    argv: Annotated[list[ArgText], Field(min_length=1, max_length=1000)] | None = None
    patch: PatchRequest | None = None
    cwd: WorkPath | None = None
    env: EnvMap = Field(default={})
    timeout: Seconds = Field(default=600.0, description="Seconds.")
    streams: Literal["split", "merged"] = "split"
    blame: Literal["task", "infra"] = "task"

    @model_validator(mode="after")
    def _check_one_action(self) -> Self:
        if sum(value is not None for value in (self.run, self.argv, self.patch)) != 1:
            message = "needs exactly one of run, argv and patch"
            raise ValueError(message)
        if self.argv is not None and not self.argv[0]:
            message = "argv[0] must not be empty"
            raise ValueError(message)
        return self


class TimeoutsRequest(RequestSchema):
    """Seconds. queue and total are the trial's, over all attempts; start, run and idle are of each attempt."""

    queue: float = Field(default=86400.0, gt=0, le=30 * 86400, description="Accepted to first start.")
    start: Seconds = Field(default=120.0, description="Dispatch to running, pulling the image included.")
    run: Seconds | None = Field(
        default=None, description="Running to the end of the steps. Default: no limit but total."
    )
    idle: Seconds | None = Field(
        default=None,
        description="How long a step may neither print nor use the CPU. Default: as long as it likes.",
    )
    total: Seconds = Field(default=7200.0, description="From the first start to the end, over all attempts.")
    grace: float = Field(default=10.0, ge=0, le=300, description="TERM to KILL.")


class ArtifactRequest(RequestSchema):
    """Files to keep. The last part may be a pattern, `/**` takes the whole tree."""

    path: ArtifactPath
    max_bytes: int = Field(default=50 << 20, ge=1, le=1 << 30)
    when: Literal["always", "passed", "failed"] = "always"


ExitCode = Annotated[int, Field(ge=0, le=255)]
TestIds = Annotated[list[TestId], Field(max_length=50_000)]


class ExitCodeRequest(RequestSchema):
    """Passed when the step (default: the last one) ended with one of the codes."""

    kind: Literal["exit_code"] = Field(alias="from")
    step: StepRef | None = None
    pass_codes: Annotated[list[ExitCode], Field(min_length=1, max_length=256)] = Field(
        default=[0], alias="pass"
    )


class RewardRequest(RequestSchema):
    """Reads a finite number from a file, plain or under `key` of a JSON object."""

    kind: Literal["reward"] = Field(alias="from")
    path: FilePath
    key: RewardKey = "reward"
    pass_at: float = 1.0


class JunitRequest(RequestSchema):
    """Reads a JUnit XML file."""

    kind: Literal["junit"] = Field(alias="from")
    path: FilePath
    require: TestIds = Field(default=[])
    allow_skip: bool = True


class LogRequest(RequestSchema):
    """Reads test results from the output of a step (default: the last verify step) with a named parser."""

    kind: Literal["log"] = Field(alias="from")
    parser: ParserName
    step: StepRef | None = None
    fail_to_pass: TestIds = Field(default=[])
    pass_to_pass: TestIds = Field(default=[])


VerdictRequest = Annotated[
    ExitCodeRequest | RewardRequest | JunitRequest | LogRequest,
    Field(discriminator="kind"),
]


class TrialsRequest(RequestSchema):
    """How many samples. Sample i finds TRIAL_INDEX = i and TRIAL_SEED = seed + i in its environment."""

    count: int = Field(default=1, ge=1, le=100_000)
    seed: int | None = Field(default=None, ge=0, le=1 << 62)
    stop: Literal["never", "first_pass", "first_fail"] = Field(
        default="never",
        description="Which outcome of one trial ends the others. Other than `never`, the report is biased.",
    )


class NeedRequest(RequestSchema):
    """Another job of the batch that has to end before this one may start."""

    job: JobKey = Field(description="Its key. With a matrix, the key without suffix means the same values.")
    outcome: Literal["passed", "failed", "finished"] = Field(
        default="passed",
        description="How it has to end; `finished` is any end. If it cannot any more, this job is skipped.",
    )


def _to_list(value: Any) -> Any:
    """Read one value as a list of it. An empty list would match everything, which is not what it looks like."""
    if value == []:
        raise PydanticCustomError("empty_match", "must not be empty: leave the field out to match everything")
    return tuple(value) if isinstance(value, list) else (value,)


def _check_class(value: Any) -> Any:
    if value in {"task", "infra"}:
        return value
    raise PydanticCustomError(
        "retry_class",
        "must be 'task' or 'infra'; failures of class spec, quota and cancelled are never retried",
    )


def _check_code(value: Any) -> Any:
    if not isinstance(value, str) or value in RULE_CODES:
        return value
    if value in ALL_CODES:
        raise PydanticCustomError("retry_code", "no rule decides about this failure: it is never retried")
    near = get_close_matches(value[:100], RULE_CODES, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "docs/jobs.md lists them"
    raise PydanticCustomError("retry_code", "no failure has this code; {hint}", {"hint": hint})


_RANGE = re.compile(r"([0-9]{1,3})-([0-9]{1,3})")


def _check_exit_code(value: Any) -> tuple[int, int]:
    """Read a code or a range as its two ends. 0 is no failure by itself."""
    ends = (value, value)
    if isinstance(value, str) and (match := _RANGE.fullmatch(value)):
        ends = (int(match[1]), int(match[2]))
    if not all(type(end) is int and 0 <= end <= 255 for end in ends) or ends[0] > ends[1]:
        raise PydanticCustomError(
            "exit_code", "must be an exit code from 0 to 255, or a range, as in '64-78'"
        )
    return ends


def _check_signal(value: Any) -> int:
    """Read a signal's number or name, with or without SIG."""
    name = value.upper() if isinstance(value, str) else ""
    number = _SIGNALS.get(name.removeprefix("SIG")) if name else value
    if type(number) is not int or not 1 <= number <= 64:
        raise PydanticCustomError(
            "signal", "must be a signal's name, as in 'SIGKILL', or its number, 1 to 64"
        )
    return number


_SIGNALS = {item.name.removeprefix("SIG"): item.value for item in Signals}

RetryClass = Annotated[
    Literal["task", "infra"], BeforeValidator(_check_class, json_schema_input_type=Literal["task", "infra"])
]
FailureCode = Annotated[str, BeforeValidator(_check_code, json_schema_input_type=str)]
ExitRange = Annotated[
    tuple[int, int],
    BeforeValidator(_check_exit_code, json_schema_input_type=ExitCode | str),
]
SignalNumber = Annotated[
    int, BeforeValidator(_check_signal, json_schema_input_type=Annotated[int, Field(ge=1, le=64)] | str)
]


class BackoffRequest(RequestSchema):
    """Seconds."""

    initial: float = Field(default=1.0, ge=0, le=3600)
    factor: float = Field(default=2.0, ge=1, le=10)
    max: float = Field(default=60.0, ge=0, le=86400)


class InfraRetryRequest(RequestSchema):
    """Extra attempts after failures that are not the job's fault."""

    max: int = Field(default=3, ge=0, le=10)
    backoff: BackoffRequest = BackoffRequest()
    avoid_node: bool = Field(default=True, description="Prefer nodes on which the trial did not fail so.")


class TaskRetryRequest(RequestSchema):
    """Extra attempts after failures that are the job's own. 0 keeps samples independent."""

    max: int = Field(default=0, ge=0, le=10)


class RetryMatch(RequestSchema):
    """What a failure has to be like, in all that is named; one of the values is enough. Empty: every failure."""

    failure_class: Annotated[
        tuple[RetryClass, ...],
        BeforeValidator(_to_list, json_schema_input_type=RetryClass | list[RetryClass]),
    ] = Field(default=(), alias="class", max_length=2, description="Who is to blame: one, or a list.")
    code: Annotated[
        tuple[FailureCode, ...],
        BeforeValidator(_to_list, json_schema_input_type=FailureCode | list[FailureCode]),
    ] = Field(default=(), max_length=50, description="Codes of failures: one, or a list.")
    exit_code: Annotated[
        tuple[ExitRange, ...], BeforeValidator(_to_list, json_schema_input_type=ExitRange | list[ExitRange])
    ] = Field(default=(), max_length=50, description="Exit codes, or ranges as in '64-78': one, or a list.")
    signal: Annotated[
        tuple[SignalNumber, ...],
        BeforeValidator(_to_list, json_schema_input_type=SignalNumber | list[SignalNumber]),
    ] = Field(default=(), max_length=64, description="Numbers or names, as in 'SIGKILL': one, or a list.")


class RetryRuleRequest(RequestSchema):
    """What to do about the failures that match."""

    when: RetryMatch = RetryMatch()
    action: Literal["retry", "fail"]
    max: int | None = Field(
        default=None, ge=1, le=10, description="Most retries by this rule, within the budget of the class."
    )
    backoff: BackoffRequest | None = Field(default=None, description="Default: that of infra.")

    @model_validator(mode="after")
    def _check_action(self) -> Self:
        if self.action == "fail" and (self.max is not None or self.backoff is not None):
            message = "action fail takes neither max nor backoff"
            raise ValueError(message)
        return self


class RetryRequest(RequestSchema):
    """Two budgets, apart, and rules within them: the first that matches a failure decides."""

    infra: InfraRetryRequest = InfraRetryRequest()
    task: TaskRetryRequest = TaskRetryRequest()
    rules: Annotated[list[RetryRuleRequest], Field(max_length=20)] = Field(default=[])


def _to_image(value: Any) -> Any:
    """Read a plain string as the image's name."""
    if not isinstance(value, str | dict | ImageRequest):
        raise PydanticCustomError("image_type", "must be a name, or an object with ref")
    return {"ref": value} if isinstance(value, str) else value


def _check_runtime(value: Any, info: ValidationInfo) -> Any:
    """Refuse what is no runtime; of those there are, name the ones that the validation's context says to offer."""
    if value in _RUNTIMES or value is None:
        return value
    offered = (info.context or {}).get("runtimes", OFFERED_RUNTIMES)
    raise PydanticCustomError("runtime", "must be {names}", {"names": " or ".join(map(repr, offered))})


_RUNTIMES = ("local", "docker", "fake")
OFFERED_RUNTIMES = ("local", "docker")
"""`fake` runs nothing: it is for tests, and is told only where a server is set up to offer it."""

RuntimeName = Annotated[
    Literal["local", "docker", "fake"],
    BeforeValidator(_check_runtime, json_schema_input_type=Literal["local", "docker"]),
]


class JobRequest(RequestSchema):
    """One unit of work: image, inputs, steps, limits and verdict."""

    key: JobKey = Field(default="job", description="The client's name for it.")
    kind: Literal["run"] = "run"
    image: Annotated[ImageRequest, BeforeValidator(_to_image, json_schema_input_type=str | ImageRequest)]
    runtime: RuntimeName | None = Field(
        default=None, description="Default: the one the installation is set to."
    )
    labels: Labels = Field(default={})
    priority: int | None = Field(default=None, ge=-100, le=100, description="Default: the batch's.")
    queue: QueueName = Field(default="default", description="A named queue, which operators pause and cap.")
    preemptible: bool = Field(
        default=False,
        description="May be stopped, and run again later, to make room for a tenant below its guaranteed share.",
    )
    placement: PlacementRequest = PlacementRequest()
    resources: ResourcesRequest = ResourcesRequest()
    network: NetworkRequest = NetworkRequest()
    workdir: WorkPath = "/workspace"
    env: EnvMap = Field(default={})
    inputs: Annotated[list[InputRequest], Field(max_length=1000)] = Field(default=[])
    steps: Annotated[list[StepRequest], Field(min_length=1, max_length=100)]
    timeouts: TimeoutsRequest = TimeoutsRequest()
    artifacts: Annotated[list[ArtifactRequest], Field(max_length=100)] = Field(default=[])
    verdict: VerdictRequest = ExitCodeRequest.model_validate({"from": "exit_code"})
    trials: TrialsRequest = TrialsRequest()
    needs: Annotated[list[NeedRequest], Field(max_length=100)] = Field(default=[])
    retry: RetryRequest = RetryRequest()


class JobRequestInBatch(JobRequest):
    """The same inside a batch, where each job needs its own key."""

    key: JobKey = Field(description="The client's name for it, unique in the batch.")
