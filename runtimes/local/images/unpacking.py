"""Unpacks one layer into a folder of its own. The archive is hostile; nothing of it is looked up by a whole path."""

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from core.errors import BadImageError, ImageStoreFullError
from runtimes.local.images.confined import ConfinedFolder, PathParts, split_path
from runtimes.local.images.limits import MAX_ID, ImageLimits
from runtimes.local.images.stacking import find_in_layers
from runtimes.local.images.tar_stream import TarEntry, TarKind, TarReader
from runtimes.local.images.whiteouts import Whiteouts

__all__ = ["UnpackedLayer", "check_space", "unpack_layer"]

_SPACE_CHECK_BYTES = 64 << 20
_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True)
class UnpackedLayer:
    """What is in a layer. size_bytes: of its files. dropped: devices, FIFOs and sets of extended attributes."""

    size_bytes: int = 0
    entries: int = 0
    dropped: int = 0
    whiteouts: Whiteouts = field(default_factory=Whiteouts)


def unpack_layer(
    reader: TarReader, folder: Path, lowers: Sequence[Path], limits: ImageLimits, *, as_root: bool
) -> UnpackedLayer:
    """Unpack an archive into an empty folder.

    lowers: the layers below, topmost first; folders that the archive implies only are made as they are there.
    as_root: owners are kept, and whiteouts written for overlay; else all is the caller's own, who can read all of it.
    Modes are kept, set-user-id bits too: mounts of sandboxes are nosuid. Extended attributes, file capabilities among
    them, devices and FIFOs are dropped and counted.

    Raises BadImageError that names the entry; ImageStoreFullError; OSError.
    """
    unpacker = _Unpacker(folder, lowers, limits, as_root=as_root)
    with unpacker.tree:
        return unpacker.unpack(reader)


def check_space(folder: Path | int, limits: ImageLimits, *, needed_bytes: int = 0) -> None:
    """Raise ImageStoreFullError unless so many bytes fit in and the reserve stays free."""
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if free < needed_bytes + limits.reserve_bytes or (disk.f_files and disk.f_favail == 0):
        raise ImageStoreFullError(free_bytes=free, needed_bytes=needed_bytes + limits.reserve_bytes)


class _Unpacker:
    def __init__(self, folder: Path, lowers: Sequence[Path], limits: ImageLimits, *, as_root: bool) -> None:
        self.tree = ConfinedFolder(folder, on_new=self._imply_folder)
        self._lowers = lowers
        self._limits = limits
        self._as_root = as_root
        self._layer = UnpackedLayer()
        self._times: dict[PathParts, float] = {}
        self._unchecked_bytes = 0

    def unpack(self, reader: TarReader) -> UnpackedLayer:
        self._imply_folder((), self.tree.open(()))
        for entry in reader:
            self._layer.entries += 1
            if self._layer.entries > self._limits.max_entries:
                raise BadImageError(f"the layer has more than {self._limits.max_entries} entries")
            try:
                self._add(entry, reader)
            except BadImageError as error:
                shown = entry.name[:200].decode("utf-8", "backslashreplace")
                raise BadImageError(f"{entry.kind.value} {shown!r}: {error.message}") from error
        self._layer.whiteouts.settle(self.tree)
        if self._as_root:
            self._layer.whiteouts.write_for_overlay(self.tree, self._lowers)
        self._set_times()
        return self._layer

    def _add(self, entry: TarEntry, reader: TarReader) -> None:
        path = split_path(entry.name, max_depth=self._limits.max_depth)
        if self._layer.whiteouts.take(path):
            return
        if self._as_root and not (entry.uid <= MAX_ID and entry.gid <= MAX_ID):
            raise BadImageError(
                f"it belongs to {entry.uid}:{entry.gid}; sandboxes have the ids up to {MAX_ID}"
            )
        if entry.kind is TarKind.SPECIAL:
            # A device is a way out, a FIFO a trap for whoever reads the layer from outside.
            self._layer.dropped += 1
            return
        self._layer.dropped += entry.has_attributes
        if entry.kind is TarKind.FOLDER:
            self._add_folder(path, entry)
        elif not path:
            raise BadImageError("it stands for the root folder")
        elif entry.kind is TarKind.FILE:
            self._add_file(path, entry, reader)
        elif entry.kind is TarKind.SYMLINK:
            self._add_symlink(path, entry)
        else:
            self._add_hardlink(path, entry)

    def _add_folder(self, path: PathParts, entry: TarEntry) -> None:
        found = self.tree.stat(path)
        if found is not None and not stat.S_ISDIR(found.st_mode):
            self.tree.clear(path)
        handle = self.tree.open(path)
        self._set_owner(handle, entry)
        os.fchmod(handle, entry.mode if self._as_root else entry.mode | 0o700)
        self._times[path] = entry.mtime

    def _add_file(self, path: PathParts, entry: TarEntry, reader: TarReader) -> None:
        self.tree.clear(path)
        handle = os.open(path[-1], _FILE_FLAGS, 0o600, dir_fd=self.tree.open(path[:-1]))
        try:
            for piece in reader.content():
                self._count(len(piece), handle)
                _write_all(handle, piece)
            self._set_owner(handle, entry)
            # After the owner, whose change clears set-user-id bits.
            os.fchmod(handle, entry.mode if self._as_root else entry.mode | 0o400)
            os.utime(handle, ns=_nanoseconds(entry.mtime))
        finally:
            os.close(handle)

    def _add_symlink(self, path: PathParts, entry: TarEntry) -> None:
        if not entry.link or b"\0" in entry.link or len(entry.link) > 4095:
            raise BadImageError("its target is empty, has a NUL in it or is longer than 4095 bytes")
        self.tree.clear(path)
        parent = self.tree.open(path[:-1])
        os.symlink(entry.link, path[-1], dir_fd=parent)
        if self._as_root:
            os.chown(path[-1], entry.uid, entry.gid, dir_fd=parent, follow_symlinks=False)
        os.utime(path[-1], ns=_nanoseconds(entry.mtime), dir_fd=parent, follow_symlinks=False)

    def _add_hardlink(self, path: PathParts, entry: TarEntry) -> None:
        target = split_path(entry.link, max_depth=self._limits.max_depth)
        if target == path:
            raise BadImageError("it is a link to itself")
        self.tree.clear(path)
        found = self.tree.stat(target) if target else None
        if found is None or not (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)):
            shown = entry.link[:200].decode("utf-8", "backslashreplace")
            raise BadImageError(f"its target {shown!r} is no file of the same layer")
        source = os.dup(self.tree.open(target[:-1]))
        try:
            parent = self.tree.open(path[:-1])
            os.link(target[-1], path[-1], src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
        finally:
            os.close(source)

    def _set_owner(self, handle: int, entry: TarEntry) -> None:
        if self._as_root:
            os.fchown(handle, entry.uid, entry.gid)

    def _count(self, size: int, handle: int) -> None:
        self._layer.size_bytes += size
        self._unchecked_bytes += size
        if self._unchecked_bytes > _SPACE_CHECK_BYTES:
            self._unchecked_bytes = 0
            check_space(handle, self._limits)

    def _imply_folder(self, path: PathParts, handle: int) -> None:
        """Make a folder that is not described as it is below: overlay shows owner and mode of the topmost one."""
        below = find_in_layers(self._lowers, path)
        if below is not None and not stat.S_ISDIR(below.st_mode):
            below = None
        if self._as_root:
            os.fchown(handle, below.st_uid if below else 0, below.st_gid if below else 0)
        os.fchmod(handle, stat.S_IMODE(below.st_mode) if below else 0o755)
        self._times[path] = below.st_mtime if below else 0

    def _set_times(self) -> None:
        """Set the times of folders, which changed with every entry in them."""
        for path in sorted(self._times):
            found = self.tree.stat(path)
            if found is not None and stat.S_ISDIR(found.st_mode):
                os.utime(self.tree.open(path), ns=_nanoseconds(self._times[path]))


def _write_all(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def _nanoseconds(seconds: float) -> tuple[int, int]:
    nanoseconds = int(seconds * 1_000_000_000)
    return nanoseconds, nanoseconds
