"""What a sandbox becomes as a container: the settings for the engine, as plain data."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.errors import BadImageError, SpecInvalidError
from runtimes.base import EXECD_PORT, SandboxSpec, VolumeMount
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
from runtimes.oci_runtimes import DEFAULT_FAMILY, OciFamily
from runtimes.raw_engine import LABEL_PREFIX
from runtimes.reserved_folders import reserved_folder

__all__ = [
    "DISK_LABEL",
    "SANDBOX_LABEL",
    "VOLUMES_LABEL",
    "ContainerImage",
    "ContainerRules",
    "check_mount_paths",
    "container_settings",
    "folders_to_look_for",
    "folders_to_make",
    "labels_of",
    "own_user",
    "user_of",
]

SANDBOX_LABEL = "sandmill.sandbox"
"""Label of every container of this runtime; its value is the sandbox's name."""

DISK_LABEL = "sandmill.disk-bytes"
"""On containers whose disk limit is watched from outside; its value is the limit."""

VOLUMES_LABEL = "sandmill.volumes"
"""Names of the volumes that go with the container, with commas between."""

_USER_NAME = "sandbox"
_PERIOD_US = 100_000
_FIRST_USER = 1_879_048_192
"""The first of 2^24 numbers that no distribution and no systemd gives to anybody (0x70000000)."""

_FIRST_REMAPPED_USER, _REMAPPED_USERS = 10_000, 50_000
"""Those of the 65,536 that a remapping engine has by default which images leave alone."""

_ROOT_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID")
"""What package managers and `su` need, and ending what they started. Never NET_RAW: see docs/decisions."""

_SHARED_FOLDER_MODE = 0o1777
_TMP = "/tmp"  # noqa: S108 -- the container's own

_BYTES_PER_INODE = 4096
"""A file system of n bytes may hold n / 4096 files: as many as if each had one block."""

_MAX_VOLUMES = 16
"""Real images have one or two."""

_MASKED_PATHS = (
    *(f"/proc/{name}" for name in (*HIDDEN_PROC_FILES, *HIDDEN_PROC_FOLDERS)),
    *(f"/sys/{name}" for name in HIDDEN_SYS_FOLDERS),
)

_LOG_LIMIT = {"max-size": "64k", "max-file": "1"}
"""execd's own few lines, for the error message when it does not start. Output of commands never goes there."""


@dataclass(frozen=True, slots=True)
class ContainerImage:
    """What matters of an image. environment: its ENV. user: (uid, gid) of its USER, None for root or none.

    written_user: its USER as it stands there. folders: those of the ones that were looked for which it has.
    volumes: paths of its VOLUME. entrypoint: its ENTRYPOINT and CMD.
    """

    id: str
    workdir: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    user: tuple[int, int] | None = None
    written_user: str = ""
    folders: frozenset[str] = frozenset()
    volumes: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ContainerRules:
    """Guards that hold for all containers of this runtime. seccomp: JSON profile.

    default_user: (uid, gid) in the place of an image's root; None: others for each sandbox, see `own_user`.
    root_capabilities: of writable sandboxes only. environment: of all. open_files_limit: at most.
    apparmor: name of the profile, where the host has it. is_remapped, limits_disk: see `EngineFacts`.
    """

    seccomp: str
    default_user: tuple[int, int] | None = None
    is_root_writable: bool = False
    oci_runtime: str | None = None
    family: OciFamily = DEFAULT_FAMILY
    drop_capabilities: tuple[str, ...] = ("ALL",)
    root_capabilities: tuple[str, ...] = _ROOT_CAPABILITIES
    no_new_privileges: bool = True
    network: str = "none"
    apparmor: str | None = None
    is_remapped: bool = False
    limits_disk: bool = False
    open_files_limit: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


def container_settings(
    spec: SandboxSpec,
    image: ContainerImage,
    rules: ContainerRules,
    bundle: Bundle,
    *,
    token: str,
    mounts: Sequence[Mapping[str, Any]] = (),
    removed_volumes: Sequence[str] = (),
) -> dict[str, Any]:
    """Give the body of the engine's create call. token: what execd will demand of its clients.

    mounts, removed_volumes: see `PreparedMounts`. Raises SpecInvalidError for what no container can have, BadImageError
    for what no image may.
    """
    workdir = _workdir(spec, image)
    check_mount_paths(spec.volumes)
    command = (*bundle.command, "--host", "127.0.0.1", "--port", str(EXECD_PORT), *sealing_flags(spec))
    uid, gid = user_of(spec, image, rules)
    labels = {SANDBOX_LABEL: spec.name}
    if spec.is_writable and not rules.limits_disk:
        labels[DISK_LABEL] = str(spec.limits.disk_bytes)
    if removed_volumes:
        labels[VOLUMES_LABEL] = ",".join(removed_volumes)
    return {
        "Image": image.id,
        "Hostname": spec.hostname or "sandbox",
        # A writable one has the image's own user, with the groups that the image gives it.
        "User": image.written_user if spec.is_writable else f"{uid}:{gid}",
        "WorkingDir": workdir,
        "Entrypoint": list(command),
        "Cmd": [],
        "Env": [
            *_environment(spec, image, rules, changes_user=not spec.is_writable and image.user is None),
            f"{TOKEN_VARIABLE}={token}",
        ],
        "Labels": {**labels, **{LABEL_PREFIX + key: value for key, value in spec.labels.items()}},
        # Then runc sets up the loopback device, which is quicker than the engine; others leave it down.
        "NetworkDisabled": rules.network == "none" and rules.family.shares_kernel,
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {
            **_host_config(spec, rules, bundle),
            "Mounts": [dict(mount) for mount in mounts],
            "Tmpfs": _memory_file_systems(
                spec.limits.disk_bytes, (uid, gid), _places_in_memory(spec, image, workdir)
            ),
        },
    }


def user_of(spec: SandboxSpec, image: ContainerImage, rules: ContainerRules) -> tuple[int, int]:
    """Give (uid, gid) of execd in a sandbox, as the sandbox sees them."""
    if spec.is_writable:
        return image.user or (0, 0)
    return image.user or rules.default_user or own_user(spec.name, is_remapped=rules.is_remapped)


def check_mount_paths(volumes: Sequence[VolumeMount]) -> None:
    """Refuse volumes that would cover what is the kernel's or execd's. Raises SpecInvalidError."""
    for volume in volumes:
        owner = reserved_folder(volume.mount_path)
        if owner:
            volume.refuse(
                "mount_path", f"{volume.mount_path} is in {owner}, which is the kernel's or execd's"
            )


def folders_to_look_for(spec: SandboxSpec) -> list[str]:
    """Say what has to be known about the folders of the image before `container_settings` and `folders_to_make`."""
    names = [name for name in (spec.workdir or "").split("/") if name not in ("", ".")]
    if not spec.is_writable:
        return ["/" + "/".join(names)] if names and ".." not in names else []
    paths = ["/" + "/".join(names[:depth]) for depth in range(1, len(names) + 1)]
    return [_TMP, *(path for path in paths if ".." not in names and path != _TMP)]


def folders_to_make(
    spec: SandboxSpec, image: ContainerImage, rules: ContainerRules
) -> dict[str, tuple[int, int, int]]:
    """Give the folders that a writable sandbox needs and its image has not: (uid, gid, mode) by path, top first.

    The engine would make them for root alone.
    """
    if not spec.is_writable:
        return {}
    owner = user_of(spec, image, rules)
    missing = [path for path in folders_to_look_for(spec) if path not in image.folders]
    return {path: (0, 0, _SHARED_FOLDER_MODE) if path == _TMP else (*owner, 0o755) for path in missing}


def own_user(name: str, *, is_remapped: bool = False) -> tuple[int, int]:
    """Give the (uid, gid) of a sandbox: always the same for its name, and hardly ever that of another.

    is_remapped: the engine shifts users, and has few of them.

    What the kernel counts by user whatever the container (inotify instances, pending signals, message queues, pages in
    pipes) would else be used up for all sandboxes by one.
    """
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:3], "big")
    if is_remapped:
        number = _FIRST_REMAPPED_USER + number % _REMAPPED_USERS
        return number, number
    return _FIRST_USER + number, _FIRST_USER + number


def labels_of(labels: Mapping[str, str]) -> dict[str, str]:
    """Give back the sandbox's labels from the container's."""
    return {
        key.removeprefix(LABEL_PREFIX): value for key, value in labels.items() if key.startswith(LABEL_PREFIX)
    }


def _workdir(spec: SandboxSpec, image: ContainerImage) -> str:
    """Give where commands start. Raises SpecInvalidError for a path that is none or would cover a kernel's folder."""
    workdir = (image.workdir or _TMP) if spec.workdir is None else spec.workdir
    if not workdir.startswith("/") or "\0" in workdir or ".." in workdir.split("/"):
        message = f"workdir {workdir!r} is not an absolute path without '..'"
        raise SpecInvalidError(message, field="workdir")
    owner = reserved_folder(workdir)
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
        if reserved_folder(path) or not path.strip("/."):
            raise BadImageError(f"volume {path!r} of the image would cover what is the kernel's or execd's")
    return sorted(image.volumes)


def _host_config(spec: SandboxSpec, rules: ContainerRules, bundle: Bundle) -> dict[str, Any]:
    """Give limits and isolation."""
    limits = spec.limits
    options = ["no-new-privileges:true"] if rules.no_new_privileges else []
    if rules.apparmor:
        options.append(f"apparmor={rules.apparmor}")
    is_writable = spec.is_writable or rules.is_root_writable
    oci_runtime = spec.oci_runtime or rules.oci_runtime
    more: dict[str, Any] = {}
    if spec.is_writable and rules.root_capabilities:
        more["CapAdd"] = list(rules.root_capabilities)
    if is_writable and rules.limits_disk:
        more["StorageOpt"] = {"size": str(limits.disk_bytes)}
    if limits.gpu:
        more["DeviceRequests"] = [{"Driver": "", "Count": limits.gpu, "Capabilities": [["gpu"]]}]
    if oci_runtime:
        more["Runtime"] = oci_runtime
    return {
        "NetworkMode": rules.network,
        "Binds": [f"{bundle.path}:{BUNDLE_MOUNT}:ro"],
        "ReadonlyRootfs": not is_writable,
        "ShmSize": min(limits.disk_bytes, limits.memory_bytes // 2),
        "CapDrop": list(rules.drop_capabilities),
        "SecurityOpt": [*options, f"seccomp={rules.seccomp}"],
        "Memory": limits.memory_bytes,
        "MemorySwap": limits.memory_bytes,
        "PidsLimit": limits.pids + rules.family.extra_pids,
        "Ulimits": _rlimits(spec, rules),
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
        **more,
    }


def _places_in_memory(spec: SandboxSpec, image: ContainerImage, workdir: str) -> list[str]:
    """Give the folders that are a file system in memory: of a writable sandbox only its image's volumes."""
    places = [] if spec.is_writable else [_TMP]
    if not spec.is_writable and spec.workdir is not None and _plain(workdir) not in image.folders:
        places.append(workdir)
    covered = {_plain(volume.mount_path) for volume in spec.volumes} | {"/"}
    paths = [_plain(path) for path in (*places, *_volumes(image))]
    return [path for path in dict.fromkeys(paths) if path not in covered]


def _plain(path: str) -> str:
    return "/" + "/".join(name for name in path.split("/") if name not in ("", "."))


def _memory_file_systems(disk_bytes: int, user: tuple[int, int], places: Sequence[str]) -> dict[str, str]:
    """Give file systems in memory and their options. They share what the sandbox was given evenly.

    The user owns them: the engine gives a mount the mode of the folder that was there, and for a workdir it makes that
    folder itself, for root.
    """
    if not places:
        return {}
    size = disk_bytes // len(places)
    inodes = max(64, size // _BYTES_PER_INODE)
    owner = "uid={},gid={}".format(*user)
    options = f"rw,exec,nosuid,nodev,mode=1777,{owner},size={size},nr_inodes={inodes}"
    return dict.fromkeys(places, options)


def _environment(
    spec: SandboxSpec, image: ContainerImage, rules: ContainerRules, *, changes_user: bool
) -> list[str]:
    """Give all variables as NAME=value. Raises SpecInvalidError for names no environment can carry."""
    check_environment(spec.env)
    # The home of the image's root is not ours to write to; and no image knows the user, whom some programs ask for.
    home = {"HOME": _TMP} if changes_user else {}
    names = {"USER": _USER_NAME, "LOGNAME": _USER_NAME} if changes_user else {}
    check_environment(rules.environment)
    merged = {**names, **without_settings(image.environment), **home, **rules.environment, **spec.env}
    merged.pop(TOKEN_VARIABLE, None)
    return [f"{name}={value}" for name, value in shield_loader_variables(merged).items()]


def _rlimits(spec: SandboxSpec, rules: ContainerRules) -> list[dict[str, Any]]:
    """Give limits per process. No nproc: without a user namespace it would count the whole host's."""
    files = min(spec.limits.open_files, rules.open_files_limit or spec.limits.open_files)
    values = {"nofile": files, "core": 0, "fsize": spec.limits.disk_bytes}
    return [{"Name": name, "Soft": value, "Hard": value} for name, value in values.items()]
