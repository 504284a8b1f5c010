"""What a sandbox may see and do, as data. An executor turns it into system calls or a bwrap command line."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

__all__ = [
    "ALL_NAMESPACES",
    "SANDBOX_UID",
    "Bind",
    "DeviceFolder",
    "Directory",
    "Mount",
    "Namespace",
    "Overlay",
    "Plan",
    "ProcFolder",
    "ReadOnly",
    "Symlink",
    "TextFile",
    "Tmpfs",
]

Namespace = Literal["user", "mount", "pid", "ipc", "uts", "net", "cgroup"]

ALL_NAMESPACES: frozenset[Namespace] = frozenset({"user", "mount", "pid", "ipc", "uts", "net", "cgroup"})

SANDBOX_UID = 1000
"""User and group inside: the first ordinary user of most distributions, so that tools find nothing odd."""


@dataclass(frozen=True, slots=True)
class Tmpfs:
    """A file system in memory, nosuid and nodev, owned by the sandbox user."""

    path: str
    size_bytes: int
    mode: int = 0o755


@dataclass(frozen=True, slots=True)
class Overlay:
    """The root: layers, the topmost first, below a writable one of a given size.

    owners: for each layer, the user number on its disk that is user 0 in the sandbox; group numbers alike.
    """

    path: str
    layers: tuple[str, ...]
    owners: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Bind:
    """A file or folder of the host, read-only, nosuid, nodev. source: as the executor sees it."""

    source: str
    path: str


@dataclass(frozen=True, slots=True)
class Directory:
    """A folder on whatever file system is there; parents are made."""

    path: str
    mode: int = 0o755


@dataclass(frozen=True, slots=True)
class Symlink:
    """A symbolic link at path."""

    target: str
    path: str


@dataclass(frozen=True, slots=True)
class TextFile:
    """A file of the sandbox's own with this text, in the place of one that is there."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class ProcFolder:
    """The process file system of the sandbox's own process namespace."""

    path: str = "/proc"


@dataclass(frozen=True, slots=True)
class DeviceFolder:
    """null, zero, full, random, urandom, tty and a private pts; nothing else of the host's devices."""

    path: str = "/dev"


@dataclass(frozen=True, slots=True)
class ReadOnly:
    """Make the file system mounted at path read-only from here on; not what is mounted below it."""

    path: str


Mount = Tmpfs | Overlay | Bind | Directory | Symlink | TextFile | ProcFolder | DeviceFolder | ReadOnly


@dataclass(frozen=True, slots=True)
class Plan:
    """One sandbox. mounts: in order, from an empty root. argv: becomes process 1.

    environment: all of it; nothing of the host's is passed on. seccomp: encoded filter, None for an architecture
    without numbers. nested_user_namespaces: whether programs inside may make more of them.
    """

    mounts: tuple[Mount, ...]
    argv: tuple[str, ...]
    workdir: str
    environment: Mapping[str, str] = field(default_factory=dict)
    namespaces: frozenset[Namespace] = ALL_NAMESPACES
    uid: int = SANDBOX_UID
    gid: int = SANDBOX_UID
    hostname: str = "sandbox"
    seccomp: bytes | None = None
    keep_capabilities: bool = False
    nested_user_namespaces: bool = False
    new_session: bool = True
