"""What a client says about a job. `api/schemas/convert.py` turns it into the value the rest works with."""

import base64
import binascii
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
    OctalMode,
    ParserName,
    RewardKey,
    ScriptText,
    StepName,
    StepRef,
    TestId,
    WorkPath,
)

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
    """Seconds."""

    queue: float = Field(default=86400.0, gt=0, le=30 * 86400, description="Accepted to first start.")
    start: Seconds = Field(default=120.0, description="Dispatch to running.")
    total: Seconds = Field(default=7200.0, description="Over all attempts.")
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

    count: int = Field(default=1, ge=1, le=1000)
    seed: int | None = Field(default=None, ge=0, le=1 << 62)


class BackoffRequest(RequestSchema):
    """Seconds."""

    initial: float = Field(default=1.0, ge=0, le=3600)
    factor: float = Field(default=2.0, ge=1, le=10)
    max: float = Field(default=60.0, ge=0, le=86400)


class InfraRetryRequest(RequestSchema):
    """Extra attempts after failures that are not the job's fault."""

    max: int = Field(default=3, ge=0, le=10)
    backoff: BackoffRequest = BackoffRequest()


class TaskRetryRequest(RequestSchema):
    """Extra attempts after failures that are the job's own. 0 keeps samples independent."""

    max: int = Field(default=0, ge=0, le=10)


class RetryRequest(RequestSchema):
    """Two budgets, apart."""

    infra: InfraRetryRequest = InfraRetryRequest()
    task: TaskRetryRequest = TaskRetryRequest()


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
    retry: RetryRequest = RetryRequest()


class JobRequestInBatch(JobRequest):
    """The same inside a batch, where each job needs its own key."""

    key: JobKey = Field(description="The client's name for it, unique in the batch.")
