"""Turns what a client asks for into a sandbox that can be made, or says which field is wrong and with what code."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import get_args
from urllib.parse import parse_qsl
from uuid import UUID

from api.schemas.fields import RESERVED_ENV_PREFIXES
from api.wire.schemas import CreateSandboxRequest, NetworkPolicyRequest, VolumeRequest
from core.config import RuntimeName
from core.errors import SpecInvalidError
from core.ids import read_id
from models.live_sandboxes import WireState
from runtimes.local.images.names import ImageName
from runtimes.reserved_folders import reserved_folder
from services.jobspec import Resources
from services.live_sandboxes import MAX_METADATA, NewSandbox
from services.sandbox_caps import SandboxCaps
from services.sandbox_errors import SnapshotMissingError, WireInvalidError, WireUnsupportedError
from services.session_spec import IDLE_ENTRYPOINT, IDLE_ENTRYPOINTS, SessionSpec, Volume

__all__ = [
    "DEFAULT_RESOURCES",
    "POOL_KEY",
    "RUNTIME_KEYS",
    "check_extensions",
    "check_labels",
    "check_metadata_patch",
    "default_resources",
    "parse_metadata_filter",
    "parse_renew_seconds",
    "parse_resources",
    "parse_states",
    "to_new_sandbox",
]

DEFAULT_RESOURCES = Resources(cpu_millicores=1000, memory_bytes=2 << 30, disk_bytes=1 << 30, pids=1024, gpu=0)
"""Of a sandbox that names no limit of a kind: nothing is ever unlimited. See `default_resources`."""

_INVALID = "SANDBOX::INVALID_PARAMETER"
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_OURS = "opensandbox.io/"
_ENV_NAME = re.compile(r"[^=\0]{1,256}")
_VOLUME_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_CLAIM_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)")
_UNITS = {
    "": 1, "b": 1,
    "k": 10**3, "kb": 10**3, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9, "t": 10**12, "tb": 10**12,
    "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40,
}  # fmt: skip
_STATES_OF_OTHERS = frozenset({"unknown", "allocated"})
"""The protocol has them and clients may ask for them; no sandbox is ever in one here."""
_RENEW_SECONDS = range(300, 86_401)
_RUNTIME_KEY, _OCI_KEY, _RENEW_KEY = (
    "sandmill.runtime",
    "sandmill.oci-runtime",
    "access.renew.extend.seconds",
)
_OWN_PREFIX = "sandmill."
_RUNTIMES = get_args(RuntimeName)
POOL_KEY = "poolRef"
"""The extension by which a create names a pool."""
RUNTIME_KEYS = frozenset({_RUNTIME_KEY, _OCI_KEY})
"""Extensions that say how a sandbox is made."""
_PLATFORMS = {"os": ("linux", "windows"), "arch": ("amd64", "arm64")}


def default_resources(caps: SandboxCaps) -> Resources:
    """Give what a sandbox has that names no limit, where there are these caps."""
    return replace(DEFAULT_RESOURCES, pids=min(DEFAULT_RESOURCES.pids, caps.pids))


def to_new_sandbox(request: CreateSandboxRequest, default: Resources = DEFAULT_RESOURCES) -> NewSandbox:
    """Check a create and give the sandbox. default: of limits that it does not name.

    Raises WireInvalidError, WireUnsupportedError, SnapshotMissingError.
    """
    _refuse_what_is_missing(request)
    _check_sources(request)
    if request.resource_limits is None:
        raise WireInvalidError(
            _INVALID, 'is required, e.g. {"cpu": "1", "memory": "2Gi"}', field="resourceLimits"
        )
    extensions = request.extensions or {}
    entrypoint = _entrypoint(request)
    platform = _platform(request)
    spec = SessionSpec(
        image=_image(request),
        resources=parse_resources(request.resource_limits, default),
        entrypoint=() if entrypoint in IDLE_ENTRYPOINTS else entrypoint,
        env=_environment(request.env or {}),
        volumes=_volumes(request.volumes or ()),
        oci_runtime=extensions.get(_OCI_KEY),
        platform=None if platform is None else f"{platform['os']}/{platform['arch']}",
    )
    image = request.image
    runtime = extensions.get(_RUNTIME_KEY)
    if runtime is not None and runtime not in _RUNTIMES:
        raise WireInvalidError(
            _INVALID, f"must be one of {', '.join(_RUNTIMES)}", field=f"extensions.{_RUNTIME_KEY}"
        )
    return NewSandbox(
        spec=spec,
        image=image.uri if image else None,
        entrypoint=entrypoint,
        timeout_seconds=request.timeout,
        runtime=runtime,
        snapshot_id=_snapshot(request.snapshot_id),
        platform=platform,
        metadata=check_labels(request.metadata or {}),
        extensions=extensions,
        renew_seconds=parse_renew_seconds(extensions),
        auth=None if image is None or image.auth is None else (image.auth.username, image.auth.password),
        is_secure=bool(request.secure_access),
    )


def check_metadata_patch(patch: Mapping[str, object]) -> dict[str, str | None]:
    """Check a merge patch. Raises WireInvalidError."""
    checked: dict[str, str | None] = {}
    for key, value in patch.items():
        if value is not None and not isinstance(value, str):
            raise WireInvalidError("SANDBOX::INVALID_METADATA_LABEL", "must be text or null", field=key)
        _check_label(key, value or "")
        checked[key] = value
    return checked


def parse_metadata_filter(text: str | None) -> dict[str, str] | None:
    """Read `k=v&k2=v2`, in which names and values are encoded once more. Raises WireInvalidError."""
    if not text:
        return None
    try:
        pairs = parse_qsl(
            text, keep_blank_values=True, strict_parsing=True, max_num_fields=64, errors="strict"
        )
    except ValueError as error:
        raise WireInvalidError(
            "INVALID_METADATA_FORMAT", "must be name=value, several joined by '&'", field="metadata"
        ) from error
    wanted = dict(pairs)
    if len(wanted) < len(set(pairs)) or any("\0" in part for pair in pairs for part in pair):
        message = "names a name twice with different values, or holds NUL: nothing can match it"
        raise WireInvalidError("INVALID_METADATA_FORMAT", message, field="metadata")
    return wanted


def parse_states(texts: Sequence[str] | None) -> list[WireState] | None:
    """Read the states of a filter, in any case; None: all. Raises WireInvalidError for what is no state at all."""
    if texts is None:
        return None
    by_name = {state.lower(): state for state in WireState}
    unknown = next((text for text in texts if text.lower() not in by_name.keys() | _STATES_OF_OTHERS), None)
    if unknown is not None:
        raise WireInvalidError(
            _INVALID, f"{unknown[:100]!r} is none of {', '.join(WireState)}", field="state"
        )
    return [by_name[text.lower()] for text in texts if text.lower() in by_name]


def _refuse_what_is_missing(request: CreateSandboxRequest) -> None:
    """Say of what this release does not do that it does not, rather than leaving it out in silence."""
    if request.template_id is not None:
        raise WireUnsupportedError("FSB::API_NOT_SUPPORTED", "templateId: there are no templates here")
    if request.lifecycle is not None:
        raise WireInvalidError(_INVALID, "hooks are not run in this release; leave it out", field="lifecycle")
    _refuse_ways_out(request.network_policy)
    if request.credential_proxy is not None and request.credential_proxy.enabled:
        raise WireInvalidError(
            _INVALID,
            "credentials are not put into requests in this release; leave it out",
            field="credentialProxy",
        )


def _refuse_ways_out(policy: NetworkPolicyRequest | None) -> None:
    """Take a policy that denies everything: it is what every sandbox has. Never take one that would not be held to."""
    if policy is None:
        return
    allowed = next((rule.target for rule in policy.egress or () if rule.action == "allow"), None)
    if policy.default_action != "allow" and allowed is None:
        return
    what = "defaultAction allow" if allowed is None else f"a rule that allows {allowed[:100]}"
    raise WireUnsupportedError(
        "SANDBOX::API_NOT_SUPPORTED",
        f"networkPolicy: {what} needs a way out, which sandboxes do not have in this release: deny all, or leave "
        "it out",
    )


def _check_sources(request: CreateSandboxRequest) -> None:
    if request.image is not None and request.snapshot_id is not None:
        raise WireInvalidError(_INVALID, "give either image or snapshotId, not both", field="snapshotId")
    if request.image is not None and request.image.uri.startswith("snapshot:"):
        # What runtimes call them knows no tenants.
        raise WireInvalidError(_INVALID, "is no image: give snapshotId for a snapshot", field="image.uri")
    if request.image is None and request.snapshot_id is None:
        raise WireInvalidError(_INVALID, "give image or snapshotId", field="image")


def _image(request: CreateSandboxRequest) -> str:
    """Give the image's name, or nothing for a snapshot's sandbox. What it says of a registry is looked at elsewhere."""
    if request.image is None:
        return ""
    name = request.image.uri
    try:
        parsed = ImageName.parse(name)
    except SpecInvalidError as error:
        raise WireInvalidError(_INVALID, error.message, field="image.uri") from error
    # Whose snapshot it is decides the database, so the runtime's own way to name one is not for clients.
    if parsed.registry == "docker.io" and parsed.repository == "library/snapshot":
        raise WireInvalidError(_INVALID, "a snapshot is named by snapshotId", field="image.uri")
    return name


def _snapshot(text: str | None) -> UUID | None:
    if text is None:
        return None
    snapshot_id = read_id(text)
    if snapshot_id is None:
        raise SnapshotMissingError(text[:100])
    return snapshot_id


def _entrypoint(request: CreateSandboxRequest) -> tuple[str, ...]:
    words = request.entrypoint
    if words is None:
        if request.image is not None:
            raise WireInvalidError(
                _INVALID, 'is required with image, e.g. ["tail", "-f", "/dev/null"]', field="entrypoint"
            )
        return IDLE_ENTRYPOINT
    if len(words) == 1 and " " in words[0].strip():
        try:
            words = shlex.split(words[0])
        except ValueError as error:
            raise WireInvalidError("DOCKER::INVALID_ENTRYPOINT", str(error), field="entrypoint") from error
    if not words or not words[0].strip() or any("\0" in word for word in words):
        raise WireInvalidError(
            "DOCKER::INVALID_ENTRYPOINT", "its first word names no program", field="entrypoint"
        )
    return tuple(words)


def parse_resources(limits: Mapping[str, str], default: Resources = DEFAULT_RESOURCES) -> Resources:
    """Read resourceLimits; what is not named is as in default. Raises WireInvalidError."""
    found = default
    for key, text in limits.items():
        field = f"resourceLimits.{key}"
        match key:
            case "cpu":
                found = replace(found, cpu_millicores=_cpu(text, field))
            case "memory":
                found = replace(found, memory_bytes=_bytes(text, field, low=16 << 20))
            case "disk" | "ephemeral-storage":
                found = replace(found, disk_bytes=_bytes(text, field, low=1 << 20))
            case "gpu":
                found = replace(found, gpu=_gpus(text, field))
            case "pids":
                found = replace(found, pids=_count(text, field, low=4, high=4_194_304))
            case _:
                raise WireInvalidError(
                    _INVALID, "is not known; there are cpu, memory, disk, gpu and pids", field=field
                )
    return found


def _cpu(text: str, field: str) -> int:
    match = re.fullmatch(r"([0-9]{1,9})m|([0-9]{1,6}(?:\.[0-9]{1,9})?)", text.strip())
    if match is not None:
        millicores = int(match[1]) if match[1] else round(float(match[2]) * 1000)
        if 10 <= millicores <= 1_000_000:
            return millicores
    raise WireInvalidError(_INVALID, 'must be cores as in "0.5" or "500m", from 10m to 1000', field=field)


def _bytes(text: str, field: str, *, low: int) -> int:
    match = _QUANTITY.fullmatch(text.strip())
    unit = _UNITS.get(match[2].lower()) if match is not None and len(match[1]) <= 18 else None
    if match is not None and unit is not None:
        size = int(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit
        if low <= size <= 1 << 50:
            return size
    message = f'must be a size as in "512Mi" or "2G", from {low >> 20}Mi to 1024Ti'
    raise WireInvalidError(_INVALID, message, field=field)


def _gpus(text: str, field: str) -> int:
    if text.strip() == "all":
        raise WireInvalidError(_INVALID, "'all' is not offered: say how many", field=field)
    return _count(text, field, high=64)


def _count(text: str, field: str, *, low: int = 0, high: int) -> int:
    if re.fullmatch(r"[0-9]{1,9}", text.strip()) and low <= int(text) <= high:
        return int(text)
    raise WireInvalidError(_INVALID, f"must be a whole number from {low} to {high}", field=field)


def _environment(env: Mapping[str, str | None]) -> dict[str, str]:
    kept = {}
    for name, value in env.items():
        field = f"env.{name[:100]}"
        if not _ENV_NAME.fullmatch(name):
            raise WireInvalidError(_INVALID, "is no name of a variable", field=field)
        if name.startswith("OPENSANDBOX_EGRESS_") or name == "OPENSANDBOX_LIFECYCLE":
            raise WireInvalidError(_INVALID, "is reserved", field=field)
        if name.startswith(RESERVED_ENV_PREFIXES):
            raise WireInvalidError(_INVALID, "is set by Sandmill itself: choose another name", field=field)
        if value is not None:
            if "\0" in value:
                raise WireInvalidError(_INVALID, "must not contain NUL", field=field)
            kept[name] = value
    return kept


def _platform(request: CreateSandboxRequest) -> dict[str, str] | None:
    if request.platform is None:
        return None
    platform = {"os": request.platform.os, "arch": request.platform.arch}
    for name, known in _PLATFORMS.items():
        if platform[name] not in known:
            raise WireInvalidError(_INVALID, f"must be one of {', '.join(known)}", field=f"platform.{name}")
    if platform["os"] == "windows":
        raise WireInvalidError(_INVALID, "windows sandboxes are not offered here", field="platform.os")
    return platform


def check_labels(metadata: Mapping[str, str]) -> dict[str, str]:
    """Hold metadata to the rules of labels. Raises WireInvalidError."""
    if len(metadata) > MAX_METADATA:
        raise WireInvalidError(
            "SANDBOX::INVALID_METADATA_LABEL", f"may have at most {MAX_METADATA} entries", field="metadata"
        )
    for key, value in metadata.items():
        _check_label(key, value)
    return dict(metadata)


def _check_label(key: str, value: str) -> None:
    """Hold a name and a value to the rules of Kubernetes labels."""
    field = f"metadata.{key[:100]}"
    if key.startswith(_OURS):
        raise WireInvalidError(
            "INVALID_METADATA_LABEL", f"names that begin with {_OURS} are reserved", field=field
        )
    prefix, slash, name = key.rpartition("/")
    has_good_prefix = not slash or (len(prefix) <= 253 and _LABEL_PREFIX.fullmatch(prefix))
    if not has_good_prefix or not _LABEL_NAME.fullmatch(name):
        raise WireInvalidError(
            "SANDBOX::INVALID_METADATA_LABEL",
            "a name has at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends, and may "
            "have a DNS name and '/' before it",
            field=field,
        )
    if not _LABEL_VALUE.fullmatch(value):
        raise WireInvalidError(
            "SANDBOX::INVALID_METADATA_LABEL",
            "a value has at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends",
            field=field,
        )


def check_extensions(extensions: Mapping[str, str]) -> None:
    """Refuse what looks like ours and is none: it would be without effect. Raises WireInvalidError."""
    for name in sorted(extensions.keys() - RUNTIME_KEYS):
        if name.lower().startswith(_OWN_PREFIX):
            known = ", ".join(sorted(RUNTIME_KEYS))
            raise WireInvalidError(
                _INVALID, f"is none of a sandbox: there are {known}", field=f"extensions.{name[:100]}"
            )


def parse_renew_seconds(extensions: Mapping[str, str]) -> int | None:
    """Read how far a use moves the expiry on. Raises WireInvalidError."""
    text = extensions.get(_RENEW_KEY)
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,6}", text) or int(text) not in _RENEW_SECONDS:
        raise WireInvalidError(
            _INVALID, "must be a number of seconds from 300 to 86400", field=f"extensions.{_RENEW_KEY}"
        )
    return int(text)


def _volumes(requests: "list[VolumeRequest] | tuple[VolumeRequest, ...]") -> tuple[Volume, ...]:
    names: set[str] = set()
    volumes = []
    for number, request in enumerate(requests):
        field = f"volumes[{number}]"
        if not _VOLUME_NAME.fullmatch(request.name):
            raise WireInvalidError(
                "VOLUME::INVALID_NAME", "must be at most 63 of a-z, 0-9 and '-'", field=f"{field}.name"
            )
        if request.name in names:
            raise WireInvalidError(
                "VOLUME::DUPLICATE_NAME", "another volume has this name", field=f"{field}.name"
            )
        names.add(request.name)
        volumes.append(_volume(request, field))
    return tuple(volumes)


def _volume(request: VolumeRequest, field: str) -> Volume:
    backends = [name for name in ("host", "pvc", "ossfs") if getattr(request, name) is not None]
    if len(backends) != 1:
        raise WireInvalidError(
            "VOLUME::INVALID_BACKEND", "needs exactly one of host, pvc and ossfs", field=field
        )
    if request.ossfs is not None:
        raise WireInvalidError(
            "VOLUME::UNSUPPORTED_BACKEND", "ossfs is not offered here", field=f"{field}.ossfs"
        )
    path = request.mount_path
    if (
        not path.startswith("/")
        or "\0" in path
        or ".." in path.split("/")
        or ":" in path
        or not path.strip("/.")
    ):
        raise WireInvalidError(
            "VOLUME::INVALID_MOUNT_PATH",
            "must be an absolute path without '..' and ':'",
            field=f"{field}.mountPath",
        )
    reserved = reserved_folder(path)
    if reserved:
        raise WireInvalidError(
            "VOLUME::INVALID_MOUNT_PATH",
            f"is in {reserved}, which is the kernel's or execd's: choose another place",
            field=f"{field}.mountPath",
        )
    below = request.sub_path
    if below and (below.startswith("/") or ".." in below.split("/") or "\0" in below):
        raise WireInvalidError(
            "VOLUME::INVALID_SUB_PATH", "must be a relative path without '..'", field=f"{field}.subPath"
        )
    common = Volume(
        name=request.name, mount_path=path, is_read_only=bool(request.read_only), sub_path=below or None
    )
    if request.host is not None:
        source = request.host.path
        if not source.startswith("/") or "\0" in source or ".." in source.split("/"):
            raise WireInvalidError(
                "VOLUME::INVALID_HOST_PATH",
                "must be an absolute path without '..'",
                field=f"{field}.host.path",
            )
        return replace(common, host_path=source)
    claim = request.pvc
    if claim is None or not _CLAIM_NAME.fullmatch(claim.claim_name):
        raise WireInvalidError(
            "VOLUME::INVALID_PVC_NAME",
            "must be a DNS name of at most 253 characters",
            field=f"{field}.pvc.claimName",
        )
    return replace(
        common,
        claim=claim.claim_name,
        is_made_if_missing=claim.create_if_not_exists is not False,
        is_removed_with_sandbox=bool(claim.delete_on_sandbox_termination),
    )
