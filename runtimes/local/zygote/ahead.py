"""Mounts that most sandboxes have, made by a process before it knows which sandbox it will be."""

import os
from collections.abc import Sequence
from typing import Final

from runtimes import linux
from runtimes.local.plan import Bind, Mount, ProcFolder
from runtimes.local.zygote.prepared import Prepared

__all__ = ["AheadMounts", "mount_proc"]

_SAFE: Final = linux.MOUNT_ATTR_NOSUID | linux.MOUNT_ATTR_NODEV | linux.MOUNT_ATTR_NOEXEC


class AheadMounts:
    """They are nowhere yet. What is taken is the taker's; close the rest before following any path of an image."""

    def __init__(self, prepared: Prepared) -> None:
        """Make them, in mount and process namespaces of this process's own. Raises OSError."""
        self._prepared = prepared
        self._usual_proc = _proc_and_covers(prepared.usual)
        self._proc = self._make_proc() if self._usual_proc else -1
        self._devices = self._make_devices()
        others = [mount for mount in prepared.usual if mount not in self._usual_proc]
        self._binds = {mount: prepared.copy(mount.source) for mount in others if isinstance(mount, Bind)}

    def take_proc(self, mounts: Sequence[Mount]) -> tuple[int | None, Sequence[Mount]]:
        """Give a /proc, and all of the mounts that are done with it; None and none if another is wanted."""
        if self._proc < 0 or _proc_and_covers(mounts) != self._usual_proc:
            return None, ()
        proc, self._proc = self._proc, -1
        return proc, self._usual_proc

    def take_bind(self, mount: Bind) -> int:
        """Give a read-only mount of its source, also if nobody has thought of it. Raises OSError."""
        taken = self._binds.pop(mount, None)
        return self._prepared.copy(mount.source) if taken is None else taken

    def take_devices(self) -> int:
        """Give a /dev with a pts of its own; once."""
        devices, self._devices = self._devices, -1
        return devices

    def close(self) -> None:
        """Let go of what was not taken."""
        for descriptor in (*self._binds.values(), self._proc, self._devices):
            if descriptor >= 0:
                os.close(descriptor)
        self._binds.clear()
        self._proc = self._devices = -1

    def _make_proc(self) -> int:
        place = self._prepared.staging
        mount_proc(place)
        for cover in self._usual_proc:
            if isinstance(cover, Bind):
                where = place + cover.path.removeprefix("/proc")
                linux.attach(self._prepared.copy(cover.source), where)
        return _take_off(place)

    def _make_devices(self) -> int:
        place = self._prepared.staging
        linux.attach(linux.clone_mount(self._prepared.devices), place)
        attributes = linux.MOUNT_ATTR_NOSUID | linux.MOUNT_ATTR_NOEXEC
        pts = {"newinstance": None, "ptmxmode": "666", "mode": "620"}
        linux.attach(linux.new_mount("devpts", pts, attributes), f"{place}/pts")
        return _take_off(place)


def mount_proc(place: str) -> None:
    """Mount the process file system of this process's namespace, its settings read-only. Raises OSError."""
    linux.attach(linux.new_mount("proc", {}, _SAFE), place)
    settings = linux.clone_mount(f"{place}/sys", recursive=False)
    linux.change_mount(settings, _SAFE | linux.MOUNT_ATTR_RDONLY)
    linux.attach(settings, f"{place}/sys")


def _take_off(place: str) -> int:
    """Give what is mounted at a place with all below it, and have it there no more."""
    descriptor = linux.clone_mount(place)
    linux.unmount(place)
    return descriptor


def _proc_and_covers(mounts: Sequence[Mount]) -> tuple[Mount, ...]:
    """Give the mount of /proc and those right behind it that are bound over parts of it; none if there is no /proc."""
    start = next((n for n, mount in enumerate(mounts) if mount == ProcFolder("/proc")), len(mounts))
    end = start + 1
    while end < len(mounts) and isinstance(cover := mounts[end], Bind) and cover.path.startswith("/proc/"):
        end += 1
    return tuple(mounts[start:end])
