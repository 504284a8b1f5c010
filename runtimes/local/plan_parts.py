"""What the plans of all images have in common: the kernel's folders, the environment, the working directory."""

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from core.errors import SpecInvalidError
from runtimes.base import ResourceLimits
from runtimes.bundle import check_environment, shield_loader_variables
from runtimes.hidden_paths import HIDDEN_PROC_FILES, HIDDEN_PROC_FOLDERS
from runtimes.local.plan import Bind, DeviceFolder, Mount, ProcFolder, ReadOnly, Tmpfs

__all__ = [
    "DEFAULT_PATH",
    "EMPTY_FOLDER",
    "Sources",
    "checked_workdir",
    "environment",
    "is_below",
    "kernel_mounts",
    "proc_masks",
]

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

EMPTY_FOLDER = ".none"
"""In our /etc: what is shown in the place of folders of /proc that are hidden."""

_MAX_VARIABLES, _MAX_ENVIRONMENT = 1_000, 100_000
"""bwrap takes 9,000 words in all; Linux takes 128 KiB in one variable, of which a character may need four bytes."""


class Sources:
    """Where the executor finds the folders of the host, which may differ from where the host has them.

    etc: the folder `write_etc` filled. bundle: execd's. extra: path in the sandbox to source.
    """

    def __init__(self, *, etc: str, bundle: str, extra: Mapping[str, str] | None = None) -> None:
        """Keep the three."""
        self.etc = etc
        self.bundle = bundle
        self.extra = dict(extra or {})


def kernel_mounts(limits: ResourceLimits, sources: Sources) -> list[Mount]:
    """/dev with /dev/shm, and /proc without what it shows of the host."""
    # Half the memory, as Linux does, and never more than the disk the job was given.
    shared_memory = min(limits.disk_bytes, limits.memory_bytes // 2)
    return [
        DeviceFolder(),
        Tmpfs("/dev/shm", shared_memory, 0o1777),  # noqa: S108 -- the sandbox's own
        ReadOnly("/dev"),
        ProcFolder(),
        *proc_masks(sources),
    ]


@cache
def proc_masks(sources: Sources) -> tuple[Bind, ...]:
    """Cover what /proc shows of the host: files by a device node that cannot be opened, folders by an empty one.

    What only root may open needs no cover: the sandbox's user is not root, whatever it does.
    """
    files = [name for name in HIDDEN_PROC_FILES if _is_open_to_all(Path("/proc", name))]
    folders = [name for name in HIDDEN_PROC_FOLDERS if _is_open_to_all(Path("/proc", name))]
    return (
        *(Bind("/dev/null", f"/proc/{name}") for name in files),
        *(Bind(f"{sources.etc}/{EMPTY_FOLDER}", f"/proc/{name}") for name in folders),
    )


def checked_workdir(workdir: str) -> str:
    """Give the normal form of the path. Raises SpecInvalidError if it is not absolute or no path at all."""
    if not workdir.startswith("/") or "\0" in workdir:
        message = f"workdir {workdir!r} is not an absolute path"
        raise SpecInvalidError(message, field="workdir")
    return "/" + os.path.normpath(workdir).lstrip("/")


def environment(base: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    """Build the whole environment of the sandbox. Raises SpecInvalidError for what no program can be started with.

    base: of the image. extra: what the job asked for.
    """
    check_environment(extra)
    if (
        sum(len(name) + len(value) for name, value in extra.items()) > _MAX_ENVIRONMENT
        or len(extra) > _MAX_VARIABLES
    ):
        message = (
            f"the environment is larger than {_MAX_VARIABLES} variables or {_MAX_ENVIRONMENT} characters"
        )
        raise SpecInvalidError(message, field="env")
    return shield_loader_variables({**base, **extra})


def is_below(path: str, folders: set[str]) -> bool:
    """Say whether a normalised path is one of the folders or inside one, by whole components."""
    normal = os.path.normpath(path)
    return any(normal == folder or normal.startswith(folder.rstrip("/") + "/") for folder in folders)


def _is_open_to_all(path: Path) -> bool:
    try:
        return bool(path.stat().st_mode & 0o006)
    except OSError:
        return False
