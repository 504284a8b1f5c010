"""The file systems that sandboxes write to, mounted where only the zygote and its children see them.

Each has a folder per generation, with `upper` in it: what the sandbox wrote. When that becomes a layer of other
sandboxes, the next generation begins. A file system lives until the last sandbox that uses a layer of it is gone.
"""

import os

from runtimes import linux
from runtimes.local.inode_limits import inodes_for
from runtimes.local.plan import Mount, Overlay, Plan, Tmpfs
from runtimes.local.zygote.orders import Disk

__all__ = ["DISKS", "Disks", "is_written", "open_written_layers", "upper_of"]

DISKS = "disks"
"""Name of their folder in the zygote's."""

_SAFE = linux.MOUNT_ATTR_NOSUID | linux.MOUNT_ATTR_NODEV


def upper_of(folder: str, name: str, generation: int) -> str:
    """Give the path, in the zygote's sight, of what a sandbox wrote in a generation. folder: the zygote's own."""
    return f"{folder}/{DISKS}/{name}/{generation}/upper"


def is_written(owner: int) -> bool:
    """Say whether a layer with this owner (see `Overlay`) is on a sandbox's disk, where only the zygote sees it."""
    return owner != 0


def open_written_layers(root: Mount) -> list[int]:
    """Give, for each layer that is on the disk of a sandbox, a mount of it that is nowhere yet. Raises OSError."""
    opened: list[int] = []
    if not isinstance(root, Overlay):
        return opened
    try:
        for layer, owner in zip(root.layers, root.owners, strict=True):
            if is_written(owner):
                opened.append(linux.clone_mount(layer, recursive=False))
    except BaseException:
        for descriptor in opened:
            os.close(descriptor)
        raise
    return opened


class Disks:
    """Those of one zygote."""

    def __init__(self, folder: str) -> None:
        """folder: in this process's own mount namespace."""
        self._folder = f"{folder}/{DISKS}"
        os.mkdir(self._folder)
        # A mount of its own, so that a fork can let go of all of them at once.
        linux.attach(linux.new_mount("tmpfs", {"size": "1m", "mode": "700"}, _SAFE), self._folder)

    def open(self, disk: Disk, plan: Plan) -> int:
        """Give a mount of the disk that is nowhere yet; it is made unless it is there. Raises OSError."""
        place = f"{self._folder}/{disk.name}"
        if not os.path.isdir(place):
            os.mkdir(place)
            try:
                linux.attach(_new_file_system(disk, plan), place)
            except BaseException:
                os.rmdir(place)
                raise
        return linux.clone_mount(place)

    def drop(self, name: str) -> None:
        """Let go of a sandbox's disk. Idempotent."""
        place = f"{self._folder}/{name}"
        if os.path.isdir(place):
            linux.unmount(place)
            os.rmdir(place)

    def keep(self, names: set[str]) -> None:
        """Let go of all but these."""
        for name in os.listdir(self._folder):
            if name not in names:
                self.drop(name)

    def leave(self) -> None:
        """Let go of all of them, in a fork that will not need them and may wait for long."""
        linux.unmount(self._folder)


def _new_file_system(disk: Disk, plan: Plan) -> int:
    if disk.device is not None:
        return linux.new_mount("ext4", {"source": disk.device}, _SAFE)
    size = next(mount.size_bytes for mount in plan.mounts if isinstance(mount, Tmpfs | Overlay))
    options = {"size": str(size), "nr_inodes": str(inodes_for(size)), "mode": "700"}
    return linux.new_mount("tmpfs", options, _SAFE)
