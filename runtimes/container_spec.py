"""What a sandbox becomes as a container: the settings for the engine, as plain data."""

import errno
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from core.errors import SpecInvalidError
from runtimes.base import EXECD_PORT, SandboxSpec
from runtimes.bundle import BUNDLE_MOUNT, Bundle, shield_loader_variables
from runtimes.local.seccomp import CLONE_NEW, PERSONALITIES, SOCKET_FAMILIES, TERMINAL_REQUESTS
from runtimes.local.syscalls import SyscallTable

__all__ = ["SANDBOX_LABEL", "ContainerImage", "ContainerRules", "container_settings", "labels_of", "seccomp_profile"]

SANDBOX_LABEL = "sandmill.sandbox"
"""Label of every container of this runtime; its value is the sandbox's name."""

_LABEL_PREFIX = "sandmill.label."
_PERIOD_US = 100_000
_BYTES_PER_INODE = 4096
"""A file system of n bytes may hold n / 4096 files: as many as if each had one block."""

_LOG_LIMIT = {"max-size": "64k", "max-file": "1"}
"""execd's own few lines, for the error message when it does not start. Output of commands never goes there."""


@dataclass(frozen=True, slots=True)
class ContainerImage:
    """What the engine says about an image. environment: its ENV. user: as written in it, maybe empty."""

    id: str
    user: str
    workdir: str
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ContainerRules:
    """Guards that hold for all containers of this runtime. seccomp: JSON profile."""

    seccomp: str
    default_user: str
    is_root_writable: bool = False
    oci_runtime: str | None = None
    drop_capabilities: tuple[str, ...] = ("ALL",)
    no_new_privileges: bool = True
    network: str = "none"


def container_settings(
    spec: SandboxSpec, image: ContainerImage, rules: ContainerRules, bundle: Bundle, *, is_workdir_in_image: bool
) -> dict[str, Any]:
    """Give the body of the engine's create call. Raises SpecInvalidError for what no container can have."""
    workdir = spec.workdir or image.workdir or "/tmp"  # noqa: S108 -- the container's own
    if not workdir.startswith("/") or "\0" in workdir or ".." in workdir.split("/"):
        message = f"workdir {workdir!r} is not an absolute path without '..'"
        raise SpecInvalidError(message, field="workdir")
    command = (*bundle.command, "--host", "127.0.0.1", "--port", str(EXECD_PORT), *_rlimits(spec))
    user, changes_user = _user(image, rules)
    return {
        "Image": image.id,
        "Hostname": "sandbox",
        "User": user,
        "WorkingDir": workdir,
        "Entrypoint": list(command),
        "Cmd": [],
        "Env": _environment(spec, image, changes_user=changes_user),
        "Labels": {SANDBOX_LABEL: spec.name, **{_LABEL_PREFIX + key: value for key, value in spec.labels.items()}},
        "NetworkDisabled": rules.network == "none",
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": _host_config(spec, rules, bundle, "" if is_workdir_in_image else workdir),
    }


def labels_of(labels: Mapping[str, str]) -> dict[str, str]:
    """Give back the sandbox's labels from the container's."""
    return {
        key.removeprefix(_LABEL_PREFIX): value for key, value in labels.items() if key.startswith(_LABEL_PREFIX)
    }


def seccomp_profile(table: SyscallTable) -> str:
    """Give the same rules as the filter of local sandboxes, in the form engines take."""
    conditional = {"clone", "ioctl", "socket", "personality"}
    allow = "SCMP_ACT_ALLOW"
    rules: list[dict[str, Any]] = [
        {"names": sorted(set(table.allowed) - conditional), "action": allow},
        {"names": ["clone"], "action": allow, "args": [_argument(0, CLONE_NEW, "SCMP_CMP_MASKED_EQ")]},
        {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.ENOSYS},
        # Every comparison of one rule must hold: not the one and not the other.
        {
            "names": ["ioctl"],
            "action": allow,
            "args": [_argument(1, request, "SCMP_CMP_NE") for request in TERMINAL_REQUESTS],
        },
    ]
    rules += [
        {"names": [name], "action": allow, "args": [_argument(0, value, "SCMP_CMP_EQ")]}
        for name, values in (("socket", SOCKET_FAMILIES), ("personality", PERSONALITIES))
        for value in values
    ]
    architecture = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}[table.machine]
    return json.dumps({"defaultAction": "SCMP_ACT_ERRNO", "architectures": [architecture], "syscalls": rules})


def _argument(index: int, value: int, comparison: str) -> dict[str, Any]:
    """Give one condition on an argument. For MASKED_EQ value is the mask, and what it leaves must be zero."""
    return {"index": index, "value": value, "valueTwo": 0, "op": comparison}


def _host_config(spec: SandboxSpec, rules: ContainerRules, bundle: Bundle, fresh_workdir: str) -> dict[str, Any]:
    """Give limits, isolation and mounts. fresh_workdir: a folder to make as a memory file system, or empty."""
    limits = spec.limits
    options = ["no-new-privileges:true"] if rules.no_new_privileges else []
    return {
        "NetworkMode": rules.network,
        "Binds": [f"{bundle.path}:{BUNDLE_MOUNT}:ro"],
        "ReadonlyRootfs": not rules.is_root_writable,
        "Tmpfs": _memory_file_systems(limits.disk_bytes, fresh_workdir),
        "ShmSize": min(limits.disk_bytes, limits.memory_bytes // 2),
        "CapDrop": list(rules.drop_capabilities),
        "SecurityOpt": [*options, f"seccomp={rules.seccomp}"],
        "Memory": limits.memory_bytes,
        "MemorySwap": limits.memory_bytes,
        "MemorySwappiness": None,
        "PidsLimit": limits.pids,
        "CpuPeriod": _PERIOD_US,
        "CpuQuota": max(1_000, limits.cpu_millicores * _PERIOD_US // 1000),
        "IpcMode": "private",
        "CgroupnsMode": "private",
        "Privileged": False,
        "PublishAllPorts": False,
        "AutoRemove": False,
        "Init": False,
        "RestartPolicy": {"Name": "no"},
        "LogConfig": {"Type": "json-file", "Config": _LOG_LIMIT},
        **({"Runtime": rules.oci_runtime} if rules.oci_runtime else {}),
    }


def _memory_file_systems(disk_bytes: int, fresh_workdir: str) -> dict[str, str]:
    """Give the writable places and their options. They share what the job was given evenly."""
    places = ["/tmp", *([fresh_workdir] if fresh_workdir.rstrip("/") not in ("", "/tmp") else [])]  # noqa: S108
    size = disk_bytes // len(places)
    inodes = max(64, size // _BYTES_PER_INODE)
    return {
        place: f"rw,exec,nosuid,nodev,mode=1777,size={size},nr_inodes={inodes}" for place in places
    }


def _user(image: ContainerImage, rules: ContainerRules) -> tuple[str, bool]:
    """Give the user to run as, and whether that is ours: the image's own unless that is root."""
    name = image.user.partition(":")[0]
    if name in ("", "root") or (name.isdigit() and int(name) == 0):
        return rules.default_user, True
    return image.user, False


def _environment(spec: SandboxSpec, image: ContainerImage, *, changes_user: bool) -> list[str]:
    """Give all variables as NAME=value. Raises SpecInvalidError for names no environment can carry."""
    for name, value in spec.env.items():
        if not name or "=" in name or "\0" in name + value:
            message = f"environment variable {name!r}: the name is empty or has '=', or there is a NUL in it"
            raise SpecInvalidError(message, field="env")
    # The home of the image's root is not ours to write to.
    ours = {"HOME": "/tmp"} if changes_user else {}  # noqa: S108
    merged = {**image.environment, **ours, **spec.env}
    return [f"{name}={value}" for name, value in shield_loader_variables(merged).items()]


def _rlimits(spec: SandboxSpec) -> list[str]:
    """Give execd's flags for limits per process. No nproc: without a user namespace it would count the whole host's."""
    values = {"nofile": spec.limits.open_files, "core": 0, "fsize": spec.limits.disk_bytes}
    return [word for name, value in values.items() for word in ("--rlimit", f"{name}={value}")]
