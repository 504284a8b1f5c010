"""Copying what a sandbox wrote, with all that overlay needs to have it as a layer."""

import errno
import os
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from runtimes.local.trees import FolderHandle, remove_tree

__all__ = ["copy_layer"]

_CHUNK_BYTES: Final = 8 << 20
_ATTRIBUTES: Final = ("trusted.overlay.", "user.")
_TOO_LARGE: Final = (errno.E2BIG, errno.ERANGE, errno.ENOSPC)
_ROOM_BYTES: Final = 1 << 20
"""Where that much is free, an attribute that found no room is too large in itself."""


def copy_layer(source: Path, target: Path, *, first_id: int | None, is_lowest: bool = False) -> None:
    """Copy a layer: files, links, hard links, holes, attributes, marks of what was deleted; sockets are left out.

    first_id: what is user 0 in the copy; None: owners cannot be kept. is_lowest: nothing will be below it, so it has
    nothing to hide. Nobody writes to the source meanwhile. Follows no link. Raises OSError.
    """
    links = target.with_name(f"{target.name}.links")
    target.mkdir(mode=0o700)
    links.mkdir(mode=0o700)
    try:
        with FolderHandle(source) as here, FolderHandle(target) as there, FolderHandle(links) as linked:
            _Copy(here, there, linked.number, first_id, is_lowest).run(source, target)
    finally:
        remove_tree(links)


@dataclass(slots=True)
class _Copy:
    """One copy, which moves two handles in step. linked: folder with the first copy of each file of several names."""

    here: FolderHandle
    there: FolderHandle
    linked: int
    first_id: int | None
    is_lowest: bool
    known: set[int] = field(default_factory=set)

    def run(self, source: Path, target: Path) -> None:
        """Copy all. source, target: the paths of both folders."""
        # For each level from the top to where the handles are: its name, and the folders in it that are left to do.
        levels = [("", self._copy_files())]
        while True:
            name, left = levels[-1]
            if left:
                below = left.pop()
                os.mkdir(below, 0o700, dir_fd=self.there.number)
                self.here.enter(below)
                self.there.enter(below)
                levels.append((below, self._copy_files()))
                continue
            levels.pop()
            if not levels:
                break
            self.here.leave()
            self.there.leave()
            # Only now: filling a folder changes its times.
            self._copy_facts(name, os.lstat(name, dir_fd=self.here.number))
        self._copy_facts_of_root(source, target)

    def _copy_files(self) -> list[str]:
        """Copy all but the folders of where the handles are, and give the names of these."""
        folders, others = self.here.entries()
        for name in others:
            status = os.lstat(name, dir_fd=self.here.number)
            if status.st_nlink == 1:
                self._copy_one(name, status)
            elif not self._link(name, status.st_ino):
                self._copy_one(name, status)
                self._remember(name, status.st_ino)
        return folders

    def _link(self, name: str, inode: int) -> bool:
        """Make another name of a file that was copied before; False if it was not, or has no room for names."""
        if inode not in self.known:
            return False
        try:
            os.link(
                str(inode),
                name,
                src_dir_fd=self.linked,
                dst_dir_fd=self.there.number,
                follow_symlinks=False,
            )
        except OSError as error:
            if error.errno != errno.EMLINK:
                raise
            os.unlink(str(inode), dir_fd=self.linked)
            return False
        return True

    def _remember(self, name: str, inode: int) -> None:
        with suppress(FileNotFoundError):  # a socket
            os.link(
                name,
                str(inode),
                src_dir_fd=self.there.number,
                dst_dir_fd=self.linked,
                follow_symlinks=False,
            )
            self.known.add(inode)

    def _copy_one(self, name: str, status: os.stat_result) -> None:
        there = self.there.number
        if stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(name, dir_fd=self.here.number), name, dir_fd=there)
        elif stat.S_ISREG(status.st_mode):
            self._copy_content(name, status.st_size)
        elif stat.S_ISCHR(status.st_mode) and status.st_rdev == 0 and not self.is_lowest:
            os.mknod(name, stat.S_IFCHR, os.makedev(0, 0), dir_fd=there)  # overlay's mark of what was deleted
        elif stat.S_ISFIFO(status.st_mode):
            os.mkfifo(name, dir_fd=there)
        else:
            # A socket is worth nothing without the program that listened.
            return
        self._copy_facts(name, status)

    def _copy_content(self, name: str, size: int) -> None:
        flags = os.O_NOFOLLOW | os.O_CLOEXEC
        reading = os.open(name, os.O_RDONLY | os.O_NONBLOCK | flags, dir_fd=self.here.number)
        try:
            made = os.O_WRONLY | os.O_CREAT | os.O_EXCL | flags
            writing = os.open(name, made, 0o600, dir_fd=self.there.number)
            try:
                _copy_data(reading, writing, size)
            finally:
                os.close(writing)
        finally:
            os.close(reading)

    def _copy_facts(self, name: str, status: os.stat_result) -> None:
        there = self.there.number
        if self.first_id is not None:
            owner = (self._own(status.st_uid), self._own(status.st_gid))
            os.chown(name, *owner, dir_fd=there, follow_symlinks=False)
        _copy_attributes(self.here.path_of(name), self.there.path_of(name), name)
        if not stat.S_ISLNK(status.st_mode):
            os.chmod(name, stat.S_IMODE(status.st_mode), dir_fd=there)
        times = (status.st_atime_ns, status.st_mtime_ns)
        os.utime(name, ns=times, dir_fd=there, follow_symlinks=False)

    def _copy_facts_of_root(self, source: Path, target: Path) -> None:
        status = os.fstat(self.here.number)
        if self.first_id is not None:
            os.fchown(self.there.number, self._own(status.st_uid), self._own(status.st_gid))
        _copy_attributes(str(source), str(target), "/")
        os.fchmod(self.there.number, stat.S_IMODE(status.st_mode))
        os.utime(self.there.number, ns=(status.st_atime_ns, status.st_mtime_ns))

    def _own(self, number: int) -> int:
        first = self.first_id or 0
        return number - first if number >= first else number


def _copy_data(reading: int, writing: int, size: int) -> None:
    """Copy data and leave holes holes."""
    os.truncate(writing, size)
    position = 0
    while position < size:
        try:
            start = os.lseek(reading, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                return
            raise
        end = os.lseek(reading, start, os.SEEK_HOLE)
        os.lseek(reading, start, os.SEEK_SET)
        os.lseek(writing, start, os.SEEK_SET)
        while start < end:
            count = os.sendfile(writing, reading, None, min(end - start, _CHUNK_BYTES))
            if count == 0:
                return
            start += count
        position = end


def _copy_attributes(source: str, target: str, name: str) -> None:
    for attribute in os.listxattr(source, follow_symlinks=False):
        if not attribute.startswith(_ATTRIBUTES):
            continue
        value = os.getxattr(source, attribute, follow_symlinks=False)
        try:
            os.setxattr(target, attribute, value, follow_symlinks=False)
        except OSError as error:
            found = os.statvfs(target)
            if error.errno in _TOO_LARGE and found.f_bavail * found.f_frsize > _ROOM_BYTES:
                message = (
                    f"the attribute {attribute} ({len(value)} bytes) is larger than the disk here can keep"
                )
                raise OSError(errno.E2BIG, message, name) from error
            raise
