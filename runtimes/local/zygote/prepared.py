"""Mounts that are the same in all sandboxes, made once by the zygote; a sandbox copies each by one system call."""

import os
from collections.abc import Mapping, Sequence
from typing import Final

from runtimes import linux
from runtimes.local.plan import Bind, Mount

__all__ = ["READ_ONLY", "Prepared"]

READ_ONLY: Final = linux.MOUNT_ATTR_RDONLY | linux.MOUNT_ATTR_NOSUID | linux.MOUNT_ATTR_NODEV

_DEVICES: Final = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_LINKS: Final = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}


class Prepared:
    """staging: where a sandbox mounts its root. devices: a /dev to copy, with everything below it. usual: as given."""

    def __init__(self, folder: str, usual: Sequence[Mount]) -> None:
        """Cover the folder, in this process's mount namespace, and make everything in it. Raises OSError.

        usual: the mounts of a sandbox like most, in order. Those of the host's files and folders are made here; one
        that is missing is left out.
        """
        self.usual = usual
        sources = sorted({mount.source for mount in usual if isinstance(mount, Bind)})
        linux.attach(linux.new_mount("tmpfs", {"size": "1m", "mode": "700"}, linux.MOUNT_ATTR_NOSUID), folder)
        self.staging = f"{folder}/root"
        self.devices = f"{folder}/dev"
        os.mkdir(self.staging)
        os.mkdir(self.devices)
        self._binds = self._bind_all(folder, sources)
        self._make_devices()

    def copy(self, source: str) -> int:
        """Give a read-only mount of a file or folder of the host, which is nowhere yet."""
        prepared = self._binds.get(source)
        if prepared is not None:
            return linux.clone_mount(prepared)
        descriptor = linux.clone_mount(source)
        linux.change_mount(descriptor, READ_ONLY, recursive=True)
        return descriptor

    def _bind_all(self, folder: str, sources: Sequence[str]) -> Mapping[str, str]:
        binds = {}
        for number, source in enumerate(sources):
            if not os.path.exists(source):
                continue
            place = f"{folder}/{number}"
            if os.path.isdir(source):
                os.mkdir(place)
            else:
                os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC))
            descriptor = linux.clone_mount(source)
            linux.change_mount(descriptor, READ_ONLY, recursive=True)
            linux.attach(descriptor, place)
            binds[source] = place
        return binds

    def _make_devices(self) -> None:
        # Programs open the devices; the folder itself is closed to new ones, since it is not theirs.
        attributes = linux.MOUNT_ATTR_NOSUID | linux.MOUNT_ATTR_NOEXEC
        linux.attach(linux.new_mount("tmpfs", {"size": "65536", "mode": "755"}, attributes), self.devices)
        for name in _DEVICES:
            place = f"{self.devices}/{name}"
            os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC))
            device = linux.clone_mount(f"/dev/{name}", recursive=False)
            linux.change_mount(device, attributes)
            linux.attach(device, place)
        for name, target in _DEVICE_LINKS.items():
            os.symlink(target, f"{self.devices}/{name}")
        for name in ("pts", "shm"):
            os.mkdir(f"{self.devices}/{name}", 0o755)
            os.chmod(f"{self.devices}/{name}", 0o755)
