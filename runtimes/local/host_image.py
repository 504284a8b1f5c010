"""The image `host`: the host's own read-only /usr in an otherwise empty root.

Everything else is one memory file system of the size the job asked for, so absolute paths such as /testbed or /eval.sh
can be written. What must not change is its own mount: a mount point can be neither renamed nor removed, whoever owns
the folder it is in.
"""

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from core.errors import SpecInvalidError
from runtimes.base import ResourceLimits, SandboxSpec
from runtimes.bundle import BUNDLE_MOUNT, check_environment, shield_loader_variables
from runtimes.hidden_paths import HIDDEN_PROC_FILES, HIDDEN_PROC_FOLDERS
from runtimes.local.plan import (
    SANDBOX_UID,
    Bind,
    DeviceFolder,
    Directory,
    Mount,
    Plan,
    ProcFolder,
    ReadOnly,
    Tmpfs,
)

__all__ = ["HOST_IMAGE", "Sources", "build_plan", "shown_by_all", "write_etc"]

HOST_IMAGE = "host"
_HOME = "/home/sandbox"

_MAX_VARIABLES, _MAX_ENVIRONMENT = 1_000, 100_000
"""bwrap takes 9,000 words in all; Linux takes 128 KiB in one variable, of which a character may need four bytes."""

_NO_WORKDIR = {"/etc", "/dev", "/proc", "/sys", BUNDLE_MOUNT}
"""Besides the folders that are the host's."""

_SYSTEM_FOLDERS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")

_ETC_FROM_HOST = (
    # Links of update-alternatives, the loader's cache, trusted certificates, names of services, the time zone: what
    # programs in /usr need to start. No accounts, no host name, no configuration of the host.
    "alternatives",
    "ld.so.cache",
    "ssl/certs",
    "pki/tls/certs",
    "pki/ca-trust/extracted",
    "services",
    "protocols",
    "localtime",
    "mime.types",
)

_EMPTY_FOLDER = ".none"
"""In our /etc: what is shown in the place of folders of /proc that are hidden."""

_ETC = {
    "passwd": (
        f"root:x:0:0:root:/root:/bin/sh\nsandbox:x:{SANDBOX_UID}:{SANDBOX_UID}:sandbox:{_HOME}:/bin/sh\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/bin/false\n"
    ),
    "group": f"root:x:0:\nsandbox:x:{SANDBOX_UID}:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "hostname": "sandbox\n",
    # Without dns in it a lookup fails at once instead of waiting for a server that no sandbox can reach.
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\nservices: files\nprotocols: files\n",
}


class Sources:
    """Where the executor finds the folders of the host, which may differ from where the host has them.

    etc: the folder `write_etc` filled. bundle: execd's. extra: path in the sandbox to source.
    """

    def __init__(self, *, etc: str, bundle: str, extra: Mapping[str, str] | None = None) -> None:
        """Keep the three."""
        self.etc = etc
        self.bundle = bundle
        self.extra = dict(extra or {})


def write_etc(folder: Path) -> None:
    """Fill an empty folder with the sandbox's /etc: own accounts, and copies of what programs need of the host's.

    Copies, since each mount costs a start 0.3 ms and more.
    """
    for name, text in _ETC.items():
        (folder / name).write_text(text)
    for name in _ETC_FROM_HOST:
        source, target = Path("/etc") / name, folder / name
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True, ignore=_unreadable, ignore_dangling_symlinks=True)
        elif source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    if Path("/usr/lib/os-release").exists():
        (folder / "os-release").symlink_to("../usr/lib/os-release")
    (folder / _EMPTY_FOLDER).mkdir()
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)


def _unreadable(folder: str, names: list[str]) -> list[str]:
    """Leave out what not everyone may read: it is none of the sandboxes' business either."""
    paths = {name: Path(folder, name) for name in names}
    return [name for name, path in paths.items() if not path.is_symlink() and not path.stat().st_mode & 0o004]


def build_plan(spec: SandboxSpec, sources: Sources, argv: tuple[str, ...], seccomp: bytes | None) -> Plan:
    """Plan a sandbox of the image `host`. Raises SpecInvalidError for a workdir or environment it cannot have."""
    workdir = _checked_workdir(spec.workdir)
    fixed = _fixed_mounts(sources)
    # Said by the plan alone: what the host has there is none of the sandbox's business.
    protected = {mount.path for mount in fixed.system} | _NO_WORKDIR
    mounts: list[Mount] = [Tmpfs("/", spec.limits.disk_bytes), *fixed.system]
    mounts += [Bind(sources.etc, "/etc"), Bind(sources.bundle, BUNDLE_MOUNT)]
    mounts += [Directory("/tmp", 0o1777), Directory("/var/tmp", 0o1777)]  # noqa: S108 -- the sandbox's own
    mounts += [Directory("/run"), Directory(_HOME), Directory("/mnt"), Directory("/opt"), Directory("/root")]
    mounts += [DeviceFolder(), Tmpfs("/dev/shm", _shared_memory(spec.limits), 0o1777), ReadOnly("/dev")]  # noqa: S108
    mounts += [ProcFolder(), *fixed.masks]
    if _is_below(workdir, protected):
        message = f"workdir {workdir} cannot be made: it is in a read-only system folder"
        raise SpecInvalidError(message, field="workdir")
    return Plan(
        mounts=(*mounts, Directory(workdir)),
        argv=argv,
        workdir=workdir,
        environment=_environment(spec.env, workdir),
        seccomp=seccomp,
    )


def shown_by_all(sources: Sources) -> list[str]:
    """Give the files and folders of the host that every sandbox of this image sees."""
    fixed = _fixed_mounts(sources)
    binds = [*fixed.system, *(mount for mount in fixed.masks if isinstance(mount, Bind))]
    return sorted({mount.source for mount in binds} | {sources.etc, sources.bundle})


@dataclass(frozen=True, slots=True)
class _Fixed:
    """Mounts that depend on the host alone, looked up once."""

    system: tuple[Bind, ...]
    masks: tuple[Mount, ...]


@cache
def _fixed_mounts(sources: Sources) -> _Fixed:
    return _Fixed(tuple(_system_mounts(sources)), tuple(_proc_masks(sources)))


def _checked_workdir(workdir: str | None) -> str:
    """Give the normal form of the path. Raises SpecInvalidError if it is not absolute or no path at all."""
    if workdir is None:
        return _HOME
    if not workdir.startswith("/") or "\0" in workdir:
        message = f"workdir {workdir!r} is not an absolute path"
        raise SpecInvalidError(message, field="workdir")
    return "/" + os.path.normpath(workdir).lstrip("/")


def _system_mounts(sources: Sources) -> list[Bind]:
    """/usr and its siblings. Links such as /bin -> usr/bin become mounts: a link could be replaced by the sandbox."""
    mounts = [Bind("/usr", "/usr")]
    for folder in _SYSTEM_FOLDERS:
        with suppress(OSError):
            real = os.path.realpath(folder, strict=True)
            mounts.append(Bind(real, folder))
    mounts += [Bind(source, path) for path, source in sources.extra.items()]
    return mounts


def _proc_masks(sources: Sources) -> list[Mount]:
    """Cover what /proc shows of the host: files by a device node that cannot be opened, folders by an empty one.

    What only root may open needs no cover: the sandbox's user is not root, whatever it does.
    """
    files = [name for name in HIDDEN_PROC_FILES if _is_open_to_all(Path("/proc", name))]
    folders = [name for name in HIDDEN_PROC_FOLDERS if _is_open_to_all(Path("/proc", name))]
    return [
        *(Bind("/dev/null", f"/proc/{name}") for name in files),
        *(Bind(f"{sources.etc}/{_EMPTY_FOLDER}", f"/proc/{name}") for name in folders),
    ]


def _is_open_to_all(path: Path) -> bool:
    try:
        return bool(path.stat().st_mode & 0o006)
    except OSError:
        return False


def _shared_memory(limits: ResourceLimits) -> int:
    """Size of /dev/shm: half the memory, as Linux does, and never more than the disk the job was given."""
    return min(limits.disk_bytes, limits.memory_bytes // 2)


def _environment(extra: Mapping[str, str], workdir: str) -> dict[str, str]:
    """Build the whole environment of the sandbox. Raises SpecInvalidError for what no program can be started with."""
    check_environment(extra)
    if (
        sum(len(name) + len(value) for name, value in extra.items()) > _MAX_ENVIRONMENT
        or len(extra) > _MAX_VARIABLES
    ):
        message = (
            f"the environment is larger than {_MAX_VARIABLES} variables or {_MAX_ENVIRONMENT} characters"
        )
        raise SpecInvalidError(message, field="env")
    base = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": _HOME,
        "USER": "sandbox",
        "LOGNAME": "sandbox",
        "LANG": "C.UTF-8",
        "PWD": workdir,
    }
    return shield_loader_variables({**base, **extra})


def _is_below(path: str, folders: set[str]) -> bool:
    """Say whether a normalised path is one of the folders or inside one, by whole components."""
    normal = os.path.normpath(path)
    return any(normal == folder or normal.startswith(folder.rstrip("/") + "/") for folder in folders)
