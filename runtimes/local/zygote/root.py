"""The zygote's executor of a plan's mounts: from a process in a new mount namespace to one that sees nothing else."""

import os
import stat
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
from runtimes.local.zygote.ids import mapped_namespace
from runtimes.local.zygote.prepared import Prepared

__all__ = ["enter_root"]

_SAFE: Final = linux.MOUNT_ATTR_NOSUID | linux.MOUNT_ATTR_NODEV


def enter_root(plan: Plan, *, prepared: Prepared, first_id: int) -> None:
    """Build what the plan says and make it the root of this process; the host's own is out of reach afterwards.

    For real root in a mount namespace of its own. first_id: host id of 0 inside. Raises OSError.
    """
    # Sources are opened while the host is still in sight, and put in their places when it no longer is: whatever links
    # an image has, they lead to places inside of it.
    sources = {mount: prepared.copy(mount.source) for mount in plan.mounts if isinstance(mount, Bind)}
    devices = linux.clone_mount(prepared.devices)
    builder = _Builder(first_id + plan.uid, first_id + plan.gid, sources, devices)
    root, *rest = plan.mounts
    builder.make_root(root, prepared.staging, first_id)
    linux.detach_root()
    for mount in rest:
        builder.add(mount)


class _Builder:
    """uid, gid: host ids of the sandbox's user. devices: a mount of a /dev, nowhere yet."""

    def __init__(self, uid: int, gid: int, sources: dict[Bind, int], devices: int) -> None:
        self._uid, self._gid = uid, gid
        self._sources = sources
        self._devices = devices

    def make_root(self, root: Mount, staging: str, first_id: int) -> None:
        """Mount the root, and make it the working directory."""
        match root:
            case Tmpfs(path="/"):
                linux.attach(self._tmpfs(root), staging)
                os.chdir(staging)
            case Overlay(path="/"):
                self._overlay(root, staging, first_id)
            case _:
                raise ValueError("the first mount of a plan is its root")

    def add(self, mount: Mount) -> None:
        """Add one mount below the root, which is this process's."""
        match mount:
            case Tmpfs(path, _, _):
                self._folder(path)
                linux.attach(self._tmpfs(mount), path)
            case Bind():
                self._bind(mount)
            case Directory(path, mode):
                self._folder(path)
                self._own(path, mode)
            case Symlink(target, path):
                os.symlink(target, path)
            case TextFile(path, text):
                self._write(path, text)
            case ProcFolder(path):
                self._proc(path)
            case DeviceFolder(path):
                self._dev(path)
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

    def _overlay(self, root: Overlay, staging: str, first_id: int) -> None:
        """Stack the layers, owners shifted to the sandbox's ids, below a writable one of the plan's size."""
        layers = [linux.clone_mount(layer, recursive=False) for layer in root.layers]
        if root.disk is None:
            options = {
                "size": str(root.size_bytes),
                "nr_inodes": str(inodes_for(root.size_bytes)),
                "mode": "700",
            }
            linux.attach(linux.new_mount("tmpfs", options, _SAFE), staging)
        else:
            disk = linux.clone_mount(root.disk, recursive=False)
            linux.change_mount(disk, _SAFE)
            linux.attach(disk, staging)
        os.chdir(staging)
        for folder in ("upper", "work", "root"):
            if not os.path.isdir(folder):
                os.mkdir(folder)
                os.chmod(folder, 0o755)
                os.chown(folder, first_id, first_id)
        os.makedirs("layers", exist_ok=True)
        names = []
        user_namespace = mapped_namespace(first_id) if any(root.are_owners_shifted) else None
        for number, layer in enumerate(layers):
            # Short names: the kernel takes one page of options.
            name = f"layers/{number:x}"
            os.makedirs(name, exist_ok=True)
            ids = user_namespace if root.are_owners_shifted[number] else None
            linux.change_mount(layer, linux.MOUNT_ATTR_RDONLY | _SAFE, ids=ids)
            linux.attach(layer, name)
            names.append(name)
        # Never unmounted cleanly, so never written back for it either: it dies with its sandbox.
        stack = f"lowerdir={':'.join(names)},upperdir=upper,workdir=work" + (
            ",volatile" if root.is_volatile else ""
        )
        linux.mount("overlay", "root", "overlay", linux.MS_NOSUID | linux.MS_NODEV, stack)
        os.chdir("root")

    def _bind(self, mount: Bind) -> None:
        source = self._sources[mount]
        if stat.S_ISDIR(os.fstat(source).st_mode):
            self._folder(mount.path)
        else:
            self._empty_file(mount.path)
        linux.attach(source, mount.path)

    def _proc(self, path: str) -> None:
        self._folder(path)
        attributes = _SAFE | linux.MOUNT_ATTR_NOEXEC
        linux.attach(linux.new_mount("proc", {}, attributes), path)
        settings = linux.clone_mount(f"{path}/sys", recursive=False)
        linux.change_mount(settings, attributes | linux.MOUNT_ATTR_RDONLY)
        linux.attach(settings, f"{path}/sys")

    def _dev(self, path: str) -> None:
        self._folder(path)
        linux.attach(self._devices, path)
        attributes = linux.MOUNT_ATTR_NOSUID | linux.MOUNT_ATTR_NOEXEC
        pts = {"newinstance": None, "ptmxmode": "666", "mode": "620"}
        linux.attach(linux.new_mount("devpts", pts, attributes), f"{path}/pts")

    def _folder(self, path: str) -> None:
        """Make a folder and its parents where they are missing; new ones are the sandbox's own."""
        missing = []
        while not os.path.lexists(path):
            missing.append(path)
            path = os.path.dirname(path)
        for folder in reversed(missing):
            os.mkdir(folder)
            self._own(folder, 0o755)

    def _empty_file(self, path: str) -> None:
        """Have something to mount a file on."""
        self._folder(os.path.dirname(path))
        if not os.path.lexists(path):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))

    def _write(self, path: str, text: str) -> None:
        """Put a file in the place of whatever is there."""
        self._folder(os.path.dirname(path))
        if os.path.lexists(path):
            os.unlink(path)
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
        self._own(path, 0o644)

    def _own(self, path: str, mode: int) -> None:
        os.chown(path, self._uid, self._gid)
        os.chmod(path, mode)
