"""What a sandbox becomes as a container: the settings for the engine, as plain data."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.errors import BadImageError, SpecInvalidError
from runtimes.base import EXECD_PORT, SandboxSpec
from runtimes.bundle import (
    BUNDLE_MOUNT,
    TOKEN_VARIABLE,
    Bundle,
    check_environment,
    sealing_flags,
    shield_loader_variables,
    without_settings,
)
from runtimes.hidden_paths import HIDDEN_PROC_FILES, HIDDEN_PROC_FOLDERS, HIDDEN_SYS_FOLDERS

__all__ = [
    "SANDBOX_LABEL",
    "ContainerImage",
    "ContainerRules",
    "container_settings",
    "labels_of",
    "own_user",
]

SANDBOX_LABEL = "sandmill.sandbox"
"""Label of every container of this runtime; its value is the sandbox's name."""

_LABEL_PREFIX = "sandmill.label."
_USER_NAME = "sandbox"
_PERIOD_US = 100_000
_FIRST_USER = 1_879_048_192
"""The first of 2^24 numbers that no distribution and no systemd gives to anybody (0x70000000)."""

_BYTES_PER_INODE = 4096
"""A file system of n bytes may hold n / 4096 files: as many as if each had one block."""

_MAX_VOLUMES = 16
"""Real images have one or two."""

_NO_WORKDIR = {"/dev", "/proc", "/sys", BUNDLE_MOUNT}

_MASKED_PATHS = (
    *(f"/proc/{name}" for name in (*HIDDEN_PROC_FILES, *HIDDEN_PROC_FOLDERS)),
    *(f"/sys/{name}" for name in HIDDEN_SYS_FOLDERS),
)

_LOG_LIMIT = {"max-size": "64k", "max-file": "1"}
"""execd's own few lines, for the error message when it does not start. Output of commands never goes there."""


@dataclass(frozen=True, slots=True)
class ContainerImage:
    """What matters of an image. environment: its ENV. user: (uid, gid) of its USER, None for root or none.

    has_workdir: whether the workdir a job asked for is a folder of the image. volumes: paths of its VOLUME.
    """

    id: str
    workdir: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    user: tuple[int, int] | None = None
    has_workdir: bool = False
    volumes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ContainerRules:
    """Guards that hold for all containers of this runtime. seccomp: JSON profile.

    default_user: (uid, gid) in the place of an image's root; None: others for each sandbox, see `own_user`.
    """

    seccomp: str
    default_user: tuple[int, int] | None = None
    is_root_writable: bool = False
    oci_runtime: str | None = None
    drop_capabilities: tuple[str, ...] = ("ALL",)
    no_new_privileges: bool = True
    network: str = "none"


def container_settings(
    spec: SandboxSpec, image: ContainerImage, rules: ContainerRules, bundle: Bundle, *, token: str
) -> dict[str, Any]:
    """Give the body of the engine's create call. token: what execd will demand of its clients.

    Raises SpecInvalidError for what no container can have, BadImageError for what no image may.
    """
    workdir = _workdir(spec, image)
    command = (*bundle.command, "--host", "127.0.0.1", "--port", str(EXECD_PORT), *sealing_flags(spec))
    user = image.user or rules.default_user or own_user(spec.name)
    return {
        "Image": image.id,
        "Hostname": "sandbox",
        "User": "{}:{}".format(*user),
        "WorkingDir": workdir,
        "Entrypoint": list(command),
        "Cmd": [],
        "Env": [
            *_environment(spec, image, changes_user=image.user is None),
            f"{TOKEN_VARIABLE}={token}",
        ],
        "Labels": {
            SANDBOX_LABEL: spec.name,
            **{_LABEL_PREFIX + key: value for key, value in spec.labels.items()},
        },
        "NetworkDisabled": rules.network == "none",
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {
            **_host_config(spec, rules, bundle),
            "Tmpfs": _memory_file_systems(
                spec.limits.disk_bytes,
                user,
                [*(() if spec.workdir is None or image.has_workdir else (workdir,)), *_volumes(image)],
            ),
        },
    }


def own_user(name: str) -> tuple[int, int]:
    """Give the (uid, gid) of a sandbox: always the same for its name, and hardly ever that of another.

    What the kernel counts by user whatever the container (inotify instances, pending signals, message queues, pages in
    pipes) would else be used up for all sandboxes by one.
    """
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:3], "big")
    return _FIRST_USER + number, _FIRST_USER + number


def labels_of(labels: Mapping[str, str]) -> dict[str, str]:
    """Give back the sandbox's labels from the container's."""
    return {
        key.removeprefix(_LABEL_PREFIX): value
        for key, value in labels.items()
        if key.startswith(_LABEL_PREFIX)
    }


def _workdir(spec: SandboxSpec, image: ContainerImage) -> str:
    """Give where commands start. Raises SpecInvalidError for a path that is none or would cover a kernel's folder."""
    workdir = (image.workdir or "/tmp") if spec.workdir is None else spec.workdir  # noqa: S108 -- the container's own
    if not workdir.startswith("/") or "\0" in workdir or ".." in workdir.split("/"):
        message = f"workdir {workdir!r} is not an absolute path without '..'"
        raise SpecInvalidError(message, field="workdir")
    owner = _owner_of(workdir)
    if owner:
        message = f"workdir {workdir} is in {owner}, which belongs to the kernel or to execd"
        raise SpecInvalidError(message, field="workdir")
    return workdir


def _volumes(image: ContainerImage) -> list[str]:
    """Give the paths of an image's volumes, each of which is covered by a place in memory.

    The engine would put a folder of the host there: without a limit, with devices and setuid programs, and, in the
    bundle, with files of the image. Raises BadImageError.
    """
    if len(image.volumes) > _MAX_VOLUMES:
        raise BadImageError(f"the image has {len(image.volumes)} volumes; at most {_MAX_VOLUMES} are covered")
    for path in image.volumes:
        if not path.startswith("/") or "\0" in path or ":" in path or ".." in path.split("/"):
            raise BadImageError(f"volume {path!r} of the image is not an absolute path without '..' and ':'")
        if _owner_of(path) or not path.strip("/."):
            raise BadImageError(f"volume {path!r} of the image would cover what is the kernel's or execd's")
    return sorted(image.volumes)


def _owner_of(path: str) -> str:
    """Give the first folder of a path if it is the kernel's or execd's, else nothing."""
    first = "/" + next((name for name in path.split("/") if name not in ("", ".")), "")
    return first if first in _NO_WORKDIR else ""


def _host_config(spec: SandboxSpec, rules: ContainerRules, bundle: Bundle) -> dict[str, Any]:
    """Give limits and isolation."""
    limits = spec.limits
    options = ["no-new-privileges:true"] if rules.no_new_privileges else []
    return {
        "NetworkMode": rules.network,
        "Binds": [f"{bundle.path}:{BUNDLE_MOUNT}:ro"],
        "ReadonlyRootfs": not rules.is_root_writable,
        "ShmSize": min(limits.disk_bytes, limits.memory_bytes // 2),
        "CapDrop": list(rules.drop_capabilities),
        "SecurityOpt": [*options, f"seccomp={rules.seccomp}"],
        "Memory": limits.memory_bytes,
        "MemorySwap": limits.memory_bytes,
        "PidsLimit": limits.pids,
        "Ulimits": _rlimits(spec),
        "CpuPeriod": _PERIOD_US,
        "CpuQuota": max(1_000, limits.cpu_millicores * _PERIOD_US // 1000),
        "IpcMode": "private",
        "CgroupnsMode": "private",
        "MaskedPaths": list(_MASKED_PATHS),
        "ReadonlyPaths": ["/proc/sys"],
        "Privileged": False,
        "PublishAllPorts": False,
        "AutoRemove": False,
        "Init": False,
        "RestartPolicy": {"Name": "no"},
        "LogConfig": {"Type": "json-file", "Config": _LOG_LIMIT},
        **({"Runtime": rules.oci_runtime} if rules.oci_runtime else {}),
    }


def _memory_file_systems(disk_bytes: int, user: tuple[int, int], more: Sequence[str]) -> dict[str, str]:
    """Give the writable places and their options. They share what the job was given evenly.

    more: folders beside /tmp. The user owns them: the engine gives a mount the mode of the folder that was there, and
    for a workdir it makes that folder itself, for root.
    """
    more = ["/" + "/".join(name for name in path.split("/") if name not in ("", ".")) for path in more]
    places = [place for place in dict.fromkeys(["/tmp", *more]) if place != "/"]  # noqa: S108 -- the container's own
    size = disk_bytes // len(places)
    inodes = max(64, size // _BYTES_PER_INODE)
    owner = "uid={},gid={}".format(*user)
    options = f"rw,exec,nosuid,nodev,mode=1777,{owner},size={size},nr_inodes={inodes}"
    return dict.fromkeys(places, options)


def _environment(spec: SandboxSpec, image: ContainerImage, *, changes_user: bool) -> list[str]:
    """Give all variables as NAME=value. Raises SpecInvalidError for names no environment can carry."""
    check_environment(spec.env)
    # The home of the image's root is not ours to write to; and no image knows the user, whom some programs ask for.
    home = {"HOME": "/tmp"} if changes_user else {}  # noqa: S108
    names = {"USER": _USER_NAME, "LOGNAME": _USER_NAME} if changes_user else {}
    merged = {**names, **without_settings(image.environment), **home, **spec.env}
    merged.pop(TOKEN_VARIABLE, None)
    return [f"{name}={value}" for name, value in shield_loader_variables(merged).items()]


def _rlimits(spec: SandboxSpec) -> list[dict[str, Any]]:
    """Give limits per process. No nproc: without a user namespace it would count the whole host's."""
    values = {"nofile": spec.limits.open_files, "core": 0, "fsize": spec.limits.disk_bytes}
    return [{"Name": name, "Soft": value, "Hard": value} for name, value in values.items()]
