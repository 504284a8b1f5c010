"""The image `host`: the host's own read-only /usr in an otherwise empty root.

Everything else is one memory file system of the size the job asked for, so absolute paths such as /testbed or /eval.sh
can be written. What must not change is its own mount: a mount point can be neither renamed nor removed, whoever owns
the folder it is in.
"""

import hashlib
import os
import shutil
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from core.errors import SpecInvalidError
from runtimes.base import SandboxSpec
from runtimes.bundle import BUNDLE_MOUNT
from runtimes.local.images.locking import lock_file
from runtimes.local.images.names import HOST_IMAGE
from runtimes.local.plan import SANDBOX_UID, Bind, Directory, Mount, Overlay, Plan, Tmpfs
from runtimes.local.plan_parts import (
    DEFAULT_PATH,
    EMPTY_FOLDER,
    Sources,
    checked_workdir,
    environment,
    is_below,
    kernel_mounts,
)
from runtimes.local.roots import Root

__all__ = ["HOST_IMAGE", "build_plan", "shared_etc", "write_etc"]

_HOME = "/home/sandbox"

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
    (folder / EMPTY_FOLDER).mkdir()
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)


def shared_etc(state: Path) -> Path:
    """Give the folder shown as /etc, made anew when the host's has changed. Sandboxes that use an old one keep it."""
    with (
        lock_file(state / "etc.lock"),
        TemporaryDirectory(prefix="etc-new-", dir=state, ignore_cleanup_errors=True) as temporary,
    ):
        for leftover in state.glob("etc-new-*"):  # of one that was killed here
            if leftover != Path(temporary):
                shutil.rmtree(leftover, ignore_errors=True)
        made = Path(temporary) / "etc"
        made.mkdir()
        write_etc(made)
        digest = hashlib.sha256()
        for path in sorted(made.rglob("*")):
            content = (
                str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else None
            )
            digest.update(repr((str(path.relative_to(made)), content)).encode())
        place = state / f"etc-{digest.hexdigest()[:16]}"
        if not place.is_dir():
            # Another process may have been quicker with the same content: then rename refuses, and all is well.
            with suppress(OSError):
                made.rename(place)
        return place


def _unreadable(folder: str, names: list[str]) -> list[str]:
    """Leave out what not everyone may read: it is none of the sandboxes' business either."""
    paths = {name: Path(folder, name) for name in names}
    return [name for name, path in paths.items() if not path.is_symlink() and not path.stat().st_mode & 0o004]


def build_plan(
    spec: SandboxSpec, root: Root, sources: Sources, argv: tuple[str, ...], seccomp: bytes | None
) -> Plan:
    """Plan a sandbox of the image `host`. Raises SpecInvalidError for a workdir or environment it cannot have.

    root: without layers, or with what sandboxes of this image wrote.
    """
    home, user = root.home or _HOME, "sandbox" if root.uid else "root"
    workdir = home if spec.workdir is None else checked_workdir(spec.workdir)
    system = _system_mounts(sources)
    # Said by the plan alone: what the host has there is none of the sandbox's business.
    if is_below(workdir, {mount.path for mount in system} | _NO_WORKDIR):
        message = f"workdir {workdir} cannot be made: it is in a read-only system folder"
        raise SpecInvalidError(message, field="workdir")
    size = spec.limits.disk_bytes
    mounts: list[Mount] = [Overlay("/", root.layers, root.owners, size) if root.layers else Tmpfs("/", size)]
    mounts += [*system, Bind(sources.etc, "/etc"), Bind(sources.bundle, BUNDLE_MOUNT)]
    mounts += [Directory("/tmp", 0o1777), Directory("/var/tmp", 0o1777)]  # noqa: S108 -- the sandbox's own
    mounts += [Directory("/run"), Directory(_HOME), Directory("/mnt"), Directory("/opt"), Directory("/root")]
    mounts += [*kernel_mounts(spec.limits, sources), Directory(workdir)]
    base = {
        "PATH": DEFAULT_PATH,
        "HOME": home,
        "USER": user,
        "LOGNAME": user,
        "LANG": "C.UTF-8",
        "PWD": workdir,
    }
    return Plan(
        mounts=tuple(mounts),
        argv=argv,
        workdir=workdir,
        environment=environment(base, spec.env),
        seccomp=seccomp,
        uid=root.uid,
        gid=root.gid,
    )


@cache
def _system_mounts(sources: Sources) -> tuple[Bind, ...]:
    """/usr and its siblings. Links such as /bin -> usr/bin become mounts: a link could be replaced by the sandbox."""
    mounts = [Bind("/usr", "/usr")]
    for folder in _SYSTEM_FOLDERS:
        with suppress(OSError):
            mounts.append(Bind(os.path.realpath(folder, strict=True), folder))
    mounts += [Bind(source, path) for path, source in sources.extra.items()]
    return tuple(mounts)
