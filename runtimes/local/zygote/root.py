"""The zygote's executor of a plan's mounts: from a process in a new mount namespace to one that sees nothing else."""

import errno
import os
import stat
from collections.abc import Sequence
from typing import Final

from runtimes import linux
from runtimes.local.inode_limits import inodes_for
from runtimes.local.plan import (
    Bind,
    DeviceFolder,
    Directory,
    Mount,
    Overlay,
    Plan,
    ProcFolder,
    ReadOnly,
    Symlink,
    TextFile,
    Tmpfs,
)
from runtimes.local.zygote.ahead import AheadMounts, mount_proc
from runtimes.local.zygote.disks import is_written
from runtimes.local.zygote.ids import mapped_namespace
from runtimes.local.zygote.prepared import READ_ONLY

__all__ = ["BadRootError", "enter_folder", "enter_root"]

_SAFE: Final = linux.MOUNT_ATTR_NOSUID | linux.MOUNT_ATTR_NODEV

_FAULTS_OF_AN_IMAGE: Final = {errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.ENOTDIR, errno.EROFS}
"""What the kernel says where an image has files, or links, in the place of folders."""

_FAULTS_IN_PROC: Final = {errno.ENOENT, errno.EACCES, errno.EPERM}
"""And where a link of its leads to the kernel's folders, in which nothing can be made."""


class BadRootError(Exception):
    """The files below a sandbox leave no place for what it needs; the message names the path."""


def enter_root(
    plan: Plan,
    *,
    ahead: AheadMounts,
    staging: str,
    disk: int,
    written: Sequence[int],
    generation: int,
    first_id: int,
) -> None:
    """Build what the plan says and make it the root of this process; the host's own is out of reach afterwards.

    For real root in a mount namespace of its own. staging: a folder to mount the root on. disk: a mount that is nowhere
    yet, to write to, in the folder of the generation. written: mounts, nowhere yet, of those layers of the root that
    sandboxes wrote, in their order. first_id: host id of 0 inside. Raises BadRootError, OSError.
    """
    # Sources are opened while the host is still in sight, and put in their places when it no longer is: whatever links
    # an image has, they lead to places inside of it.
    root, *rest = plan.mounts
    proc, done_with_it = ahead.take_proc(rest)
    rest = [mount for mount in rest if mount not in done_with_it or isinstance(mount, ProcFolder)]
    sources = {mount: ahead.take_bind(mount) for mount in rest if isinstance(mount, Bind)}
    builder = _Builder(first_id, plan, sources, proc, ahead.take_devices())
    ahead.close()
    layers = _open_layers(root, written) if isinstance(root, Overlay) else []
    linux.attach(disk, staging)
    os.chdir(staging)
    builder.enter_generation(generation)
    if isinstance(root, Overlay):
        builder.make_overlay(root, layers)
    else:
        builder.make_plain()
    linux.detach_root()
    for mount in rest:
        try:
            builder.add(mount)
        except OSError as error:
            is_made = isinstance(mount, Directory | TextFile)
            if error.errno not in (_FAULTS_OF_AN_IMAGE | _FAULTS_IN_PROC if is_made else _FAULTS_OF_AN_IMAGE):
                raise
            raise BadRootError(f"{mount.path}: {error}") from error


def _open_layers(root: Overlay, written: Sequence[int]) -> list[int]:
    rest = iter(written)
    return [
        next(rest) if is_written(owner) else linux.clone_mount(layer, recursive=False)
        for layer, owner in zip(root.layers, root.owners, strict=True)
    ]


def enter_folder(path: str) -> None:
    """Make a folder of the sandbox the working directory.

    Links are followed by their text alone: one like /proc/self/fd/9 leads to whatever is open, which may be the host's.
    Raises OSError.
    """
    os.chdir(os.path.realpath(path))


class _Builder:
    """first_id: host id of 0 inside. sources, devices: mounts that are nowhere yet, the second a /dev.

    proc: one of a /proc with all that covers parts of it; None: there is none.
    """

    def __init__(
        self, first_id: int, plan: Plan, sources: dict[Bind, int], proc: int | None, devices: int
    ) -> None:
        self._first_id = first_id
        self._uid, self._gid = first_id + plan.uid, first_id + plan.gid
        self._sources = sources
        self._proc = proc
        self._devices = devices

    def enter_generation(self, generation: int) -> None:
        """Make the folders of a generation, on the disk that is the working directory, and go there."""
        name = str(generation)
        if not os.path.isdir(name):
            os.mkdir(name, 0o755)
        os.chdir(name)
        for folder in ("upper", "work", "root", "layers"):
            if not os.path.isdir(folder):
                os.mkdir(folder, 0o755)

    def make_plain(self) -> None:
        """Have the root on the disk itself, with nothing below, and make it the working directory."""
        os.chown("upper", self._uid, self._gid)
        linux.attach(linux.clone_mount("upper"), "root")
        os.chdir("root")

    def make_overlay(self, root: Overlay, layers: list[int]) -> None:
        """Stack the layers, owners shifted to the sandbox's ids, below the disk; make it the working directory."""
        shifts: dict[int, int] = {}
        for number, (layer, owner) in enumerate(zip(layers, root.owners, strict=True)):
            if owner != self._first_id and owner not in shifts:
                shifts[owner] = mapped_namespace(self._first_id, seen_as=owner)
            linux.change_mount(layer, READ_ONLY, ids=shifts.get(owner))
            # Short names: the kernel takes one page of options.
            os.makedirs(f"layers/{number:x}", exist_ok=True)
            linux.attach(layer, f"layers/{number:x}")
        for namespace in shifts.values():
            os.close(namespace)
        self._look_like("upper", "layers/0")
        names = ":".join(f"layers/{number:x}" for number in range(len(layers)))
        # Volatile: never written back for the sake of a later mount, since there is none.
        # Without an index: a fork starts on the upper folder of one that stands still.
        options = f"lowerdir={names},upperdir=upper,workdir=work,volatile,index=off"
        linux.mount("overlay", "root", "overlay", linux.MS_NOSUID | linux.MS_NODEV, options)
        os.chdir("root")

    def _look_like(self, folder: str, model: str) -> None:
        """Give a folder the owner and mode of another."""
        found = os.stat(model)
        os.chown(folder, found.st_uid, found.st_gid)
        os.chmod(folder, stat.S_IMODE(found.st_mode))

    def add(self, mount: Mount) -> None:
        """Add one mount below the root, which is this process's."""
        match mount:
            case Tmpfs(path, _, _):
                self._mount_point(path)
                linux.attach(self._tmpfs(mount), path)
            case Bind():
                self._bind(mount)
            case Directory(path, mode):
                self._folder(path, mode)
            case Symlink(target, path):
                os.symlink(target, path)
            case TextFile(path, text):
                self._write(path, text)
            case ProcFolder(path):
                self._mount_proc(path)
            case DeviceFolder(path):
                self._mount_point(path)
                linux.attach(self._devices, path)
            case ReadOnly(path):
                linux.change_mount(path, linux.MOUNT_ATTR_RDONLY)
            case Overlay():
                raise ValueError("an overlay can only be the root")

    def _tmpfs(self, mount: Tmpfs) -> int:
        options = {
            "size": str(mount.size_bytes),
            "nr_inodes": str(inodes_for(mount.size_bytes)),
            "mode": f"{mount.mode:o}",
            "uid": str(self._uid),
            "gid": str(self._gid),
        }
        return linux.new_mount("tmpfs", options, _SAFE)

    def _bind(self, mount: Bind) -> None:
        source = self._sources[mount]
        if stat.S_ISDIR(os.fstat(source).st_mode):
            self._mount_point(mount.path)
        else:
            self._empty_file(mount.path)
        linux.attach(source, mount.path)

    def _mount_proc(self, path: str) -> None:
        self._mount_point(path)
        if self._proc is None:
            mount_proc(path)
        else:
            linux.attach(self._proc, path)

    def _mount_point(self, path: str) -> None:
        """Have a folder at this very path: the sandbox could put another in the place of a link to it."""
        if os.path.realpath(path) != path:
            raise BadRootError(f"{path}: it is a link, and has to be a folder")
        self._folder(path)

    def _folder(self, path: str, mode: int = 0o755) -> str:
        """Make a folder, where links lead to, and its parents where they are missing; new ones are the sandbox's own.

        Gives its path without links.
        """
        resolved = path = os.path.realpath(path)
        missing = []
        while not os.path.lexists(path):
            missing.append(path)
            path = os.path.dirname(path)
        for folder in reversed(missing):
            os.mkdir(folder)
            self._own(folder, mode if folder is missing[0] else 0o755)
        if not os.path.isdir(resolved):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), resolved)
        return resolved

    def _empty_file(self, path: str) -> None:
        """Have something to mount a file on."""
        self._folder(os.path.dirname(path))
        if not os.path.lexists(path):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))

    def _write(self, path: str, text: str) -> None:
        """Put a file in the place of whatever is there."""
        path = f"{self._folder(os.path.dirname(path))}/{os.path.basename(path)}"
        if os.path.lexists(path):
            os.unlink(path)
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
        self._own(path, 0o644)

    def _own(self, path: str, mode: int) -> None:
        os.chown(path, self._uid, self._gid)
        os.chmod(path, mode)
