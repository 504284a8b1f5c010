"""What a create asks of a pool, and what a pool's template says: in a pod's fields, or in those of a create."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from api.schemas.fields import WorkPath
from api.validation import check_schema
from api.wire.requests import (
    DEFAULT_RESOURCES,
    POOL_KEY,
    RUNTIME_KEYS,
    check_labels,
    parse_renew_seconds,
    parse_resources,
    to_new_sandbox,
)
from api.wire.schemas import (
    CapacityRequest,
    ContainerRequest,
    CreateSandboxRequest,
    PlainTemplateRequest,
    PodTemplateRequest,
)
from repositories.pools import PoolRow, PoolTaking
from services.jobspec import Resources
from services.live_sandboxes import NewSandbox
from services.pool_plan import Capacity
from services.pools import PoolTemplate
from services.problems import InvalidFieldsError, Problem
from services.sandbox_errors import WireInvalidError
from services.session_spec import IDLE_ENTRYPOINT, SessionSpec
from services.warm_creates import ANY_POOL, PoolAsk

__all__ = ["check_pool_name", "pool_reference", "to_capacity", "to_pool_ask", "to_pool_template"]

_INVALID = "SANDBOX::INVALID_PARAMETER"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*")
_MAX_NAME = 253
_WORK_PATH = TypeAdapter(WorkPath)
_UNSAID = {"cpu": "1", "memory": "2Gi"}
"""What official SDKs send when their caller names no limits, as they do IDLE_ENTRYPOINT: nobody said it."""
_FOR_KEY, _WORKDIR_KEY = "sandmill.for", "sandmill.workdir"
"""Extensions of a template: who is given its members, and the workdir that those for jobs have."""
_FOR_JOBS, _FOR_SANDBOXES = "jobs", "sandboxes"
_JOB_WORKDIR = "/workspace"
"""Of a job that names none."""
_EXTENSIONS = RUNTIME_KEYS | {_FOR_KEY, _WORKDIR_KEY}
_LIMITS = {
    "cpu": "cpu_millicores",
    "memory": "memory_bytes",
    "disk": "disk_bytes",
    "ephemeral-storage": "disk_bytes",
    "gpu": "gpu",
    "nvidia.com/gpu": "gpu",
    "pids": "pids",
}


def pool_reference(request: CreateSandboxRequest) -> str | None:
    """Give the pool that a create names."""
    return (request.extensions or {}).get(POOL_KEY)


def to_pool_ask(request: CreateSandboxRequest, pool: str) -> PoolAsk:
    """Check a create that names a pool. Raises WireInvalidError."""
    if pool != ANY_POOL and not _is_name(pool):
        raise WireInvalidError(
            _INVALID, "must be the name of a pool, or * for any that fits", field=f"extensions.{POOL_KEY}"
        )
    _refuse_beside_pool(request)
    extensions = request.extensions or {}
    wanted = _wanted(request)

    def differences(row: PoolRow) -> Iterable[Problem]:
        return _differences(wanted, request, row)

    def refuse(row: PoolRow) -> None:
        for problem in differences(row):
            raise WireInvalidError(_INVALID, problem.message, field=problem.field)

    return PoolAsk(
        pool=pool,
        taking=PoolTaking(
            metadata=check_labels(request.metadata or {}),
            extensions=extensions,
            timeout_seconds=request.timeout,
            renew_seconds=parse_renew_seconds(extensions),
            is_secure=bool(request.secure_access),
        ),
        refuse=refuse,
        agrees=lambda row: next(iter(differences(row)), None) is None,
    )


def to_pool_template(sent: Mapping[str, Any], default: Resources = DEFAULT_RESOURCES) -> PoolTemplate:
    """Read a template in either form. default: of limits that it does not name.

    Raises WireInvalidError, InvalidFieldsError: nothing in it is left out.
    """
    if "spec" in sent:
        request = _from_pod(_checked(PodTemplateRequest, sent))
    else:
        plain = _checked(PlainTemplateRequest, sent)
        request = CreateSandboxRequest.model_validate(
            {
                "image": {"uri": plain.image.uri},
                "entrypoint": plain.entrypoint or list(IDLE_ENTRYPOINT),
                "env": plain.env,
                "resourceLimits": plain.resource_limits or _UNSAID,
                "metadata": plain.metadata,
                "extensions": plain.extensions,
            }
        )
        auth = plain.image.auth
        if auth is not None:
            request = request.model_copy(update={"image": plain.image})
    extensions = request.extensions or {}
    for name in extensions.keys() - _EXTENSIONS:
        raise _refused(f"extensions.{name[:100]}", f"there are {', '.join(sorted(_EXTENSIONS))}")
    sandbox = _to_sandbox(request, sent, default)
    whom = extensions.get(_FOR_KEY, _FOR_SANDBOXES)
    if whom == _FOR_JOBS:
        sandbox = _to_job_member(sandbox, request, sent)
    elif whom != _FOR_SANDBOXES:
        raise _refused(f"extensions.{_FOR_KEY}", f"must be {_FOR_JOBS} or {_FOR_SANDBOXES}")
    elif _WORKDIR_KEY in extensions:
        raise _refused(
            f"extensions.{_WORKDIR_KEY}", f"is for members of jobs: give {_FOR_KEY} {_FOR_JOBS}, too"
        )
    return PoolTemplate(sent=_without_auth(sent), sandbox=sandbox)


def to_capacity(request: CapacityRequest) -> Capacity:
    """Give the numbers of a capacitySpec."""
    return Capacity(request.buffer_min, request.buffer_max, request.pool_min, request.pool_max)


def check_pool_name(name: str) -> str:
    """Check the name of a new pool. Raises WireInvalidError."""
    if not _is_name(name):
        raise WireInvalidError(
            _INVALID, "must be a DNS name of at most 253 of a-z, 0-9, '-' and '.'", field="name"
        )
    return name


def _is_name(name: str) -> bool:
    return len(name) <= _MAX_NAME and _NAME.fullmatch(name) is not None


def _refuse_beside_pool(request: CreateSandboxRequest) -> None:
    given = {
        "snapshotId": request.snapshot_id,
        "templateId": request.template_id,
        "lifecycle": request.lifecycle,
        "networkPolicy": request.network_policy,
        "platform": request.platform,
        "volumes": request.volumes,
        "credentialProxy": request.credential_proxy is not None and request.credential_proxy.enabled,
    }
    for field, value in given.items():
        if value:
            raise WireInvalidError(
                _INVALID,
                "cannot be given beside extensions.poolRef: sandboxes of a pool run already",
                field=field,
            )


def _wanted(request: CreateSandboxRequest) -> Mapping[str, int]:
    """Give the limits that somebody has named, by field of Resources."""
    limits = request.resource_limits
    if not limits or limits == _UNSAID:
        return {}
    resources = parse_resources(limits)
    return {_LIMITS[key]: getattr(resources, _LIMITS[key]) for key in limits}


def _differences(
    wanted: Mapping[str, int], request: CreateSandboxRequest, pool: PoolRow
) -> Iterable[Problem]:
    """Say in what a pool is not what a create asks for: it would get something else without being told."""
    spec = SessionSpec.from_json(pool.spec)
    if spec.job_workdir is not None:
        message = (
            f"members of the pool {pool.name} are for jobs, which get them without asking: name another pool"
        )
        yield Problem(f"extensions.{POOL_KEY}", message)
        return
    advice = f"leave it out, name another pool, or change the template of {pool.name}"
    if request.image is not None and request.image.uri != pool.image:
        yield Problem("image.uri", f"the pool {pool.name} makes sandboxes of {pool.image[:200]}; {advice}")
    for name, number in wanted.items():
        if getattr(spec.resources, name) != number:
            yield Problem(
                "resourceLimits",
                f"in the pool {pool.name} {name} is {getattr(spec.resources, name)}, not {number}; {advice}",
            )
    words = tuple(request.entrypoint or IDLE_ENTRYPOINT)
    if words not in {IDLE_ENTRYPOINT, tuple(pool.entrypoint)}:
        yield Problem(
            "entrypoint", f"sandboxes of the pool {pool.name} have started theirs already; {advice}"
        )
    for name, text in (request.env or {}).items():
        if text is not None and spec.env.get(name) != text:
            yield Problem(
                f"env.{name[:100]}",
                f"sandboxes of the pool {pool.name} run already without it: give it with each command, or {advice}",
            )
    extensions = request.extensions or {}
    has = {"sandmill.runtime": pool.runtime, "sandmill.oci-runtime": spec.oci_runtime}
    for key, value in has.items():
        if extensions.get(key, value) != value:
            yield Problem(
                f"extensions.{key}", f"the pool {pool.name} has {value or 'no other than usual'}; {advice}"
            )


def _checked(model: type[Any], sent: Mapping[str, Any]) -> Any:
    try:
        return check_schema(model, sent)
    except InvalidFieldsError as error:
        problems = [Problem(f"template.{problem.field}", problem.message) for problem in error.problems]
        raise InvalidFieldsError(problems) from error


def _from_pod(pod: PodTemplateRequest) -> CreateSandboxRequest:
    container: ContainerRequest = pod.spec.containers[0]
    words = [*(container.command or ()), *(container.args or ())]
    if container.args and not container.command:
        raise WireInvalidError(
            _INVALID, "are arguments of the command: give that, too", field="template.spec.containers.0.args"
        )
    resources = container.resources
    limits = dict(resources.limits or {}) if resources else {}
    if "nvidia.com/gpu" in limits:
        limits["gpu"] = limits.pop("nvidia.com/gpu")
    extensions = dict(pod.metadata.annotations or {}) if pod.metadata else {}
    if pod.spec.runtime_class_name is not None:
        extensions["sandmill.oci-runtime"] = pod.spec.runtime_class_name
    return CreateSandboxRequest.model_validate(
        {
            "image": {"uri": container.image},
            "entrypoint": words or list(IDLE_ENTRYPOINT),
            "env": {variable.name: variable.value for variable in container.env or ()},
            "resourceLimits": limits or _UNSAID,
            "metadata": (pod.metadata.labels or {}) if pod.metadata else {},
            "extensions": extensions,
        }
    )


def _to_sandbox(request: CreateSandboxRequest, sent: Mapping[str, Any], default: Resources) -> NewSandbox:
    """Check it as a create of the same content is checked, so that the two are the same thing."""
    try:
        new = to_new_sandbox(request, default)
    except WireInvalidError as error:
        field = f"template.{error.field}" if error.field else "template"
        message = error.message.removeprefix(f"{error.field}: ")
        raise WireInvalidError(error.code, message, field=field) from error
    if "spec" not in sent:
        return new
    selector = sent["spec"].get("nodeSelector") or {}
    return replace(new, node_labels=dict(selector))


def _to_job_member(sandbox: NewSandbox, request: CreateSandboxRequest, sent: Mapping[str, Any]) -> NewSandbox:
    """Give a member the form of a job's sandbox, with what a job has where nothing is said. Refuses what no job has."""
    extensions = request.extensions or {}
    refusals = {
        "entrypoint": (
            tuple(request.entrypoint or ()) != IDLE_ENTRYPOINT,
            "is not for members of jobs: a job's steps start what they need",
        ),
        "env": (bool(request.env), "is not for members of jobs: a job's own env is there in its steps"),
        "metadata": (bool(request.metadata), "is not for members of jobs: a job has labels"),
        "image.auth": (
            sandbox.auth is not None,
            "is not for members of jobs: images of jobs are fetched with what the node has",
        ),
        "extensions.sandmill.oci-runtime": (
            sandbox.spec.oci_runtime is not None,
            "is not for members of jobs: a job has that of its node",
        ),
    }
    for field, (is_given, message) in refusals.items():
        if is_given:
            raise _refused(field, message)
    workdir = extensions.get(_WORKDIR_KEY, _JOB_WORKDIR)
    try:
        _WORK_PATH.validate_python(workdir)
    except ValidationError as error:
        text = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise _refused(f"extensions.{_WORKDIR_KEY}", text) from error
    limits = _said_limits(sent)
    spec = replace(sandbox.spec, resources=parse_resources(limits, Resources()), job_workdir=workdir)
    return replace(sandbox, spec=spec)


def _said_limits(sent: Mapping[str, Any]) -> Mapping[str, str]:
    """Give the limits of a template, in either form; it is checked already."""
    if "spec" not in sent:
        return sent.get("resourceLimits") or {}
    limits = (sent["spec"]["containers"][0].get("resources") or {}).get("limits") or {}
    return {"gpu" if key == "nvidia.com/gpu" else key: value for key, value in limits.items()}


def _refused(field: str, message: str) -> WireInvalidError:
    return WireInvalidError(_INVALID, message, field=f"template.{field}")


def _without_auth(sent: Mapping[str, Any]) -> dict[str, Any]:
    image = sent.get("image")
    if not isinstance(image, dict) or "auth" not in image:
        return dict(sent)
    return {**sent, "image": {key: value for key, value in image.items() if key != "auth"}}
