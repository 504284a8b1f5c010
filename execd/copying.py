"""Copying files and trees, step by step, for moves from one file system to another."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from execd.directories import remove_tree
from execd.errors import InvalidFileError
from execd.file_requests import KEPT_MODE_BITS
from execd.kernel import rename_exclusively
from execd.walk import walk

__all__ = ["copy_content", "move_by_copying"]

_PIECE_BYTES: Final = 256 * 1024
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def move_by_copying(source: str, target: str) -> Iterator[None]:
    """Copy a file, link or directory under another name beside the target, rename it, delete the source.

    Mode (less set-user-id and set-group-id) and times are kept, the owner where that is allowed. Links are copied as
    links. Raises OSError, InvalidFileError for other kinds of files; the target is then not there, unless it was the
    deletion that failed.
    """
    above = f"{os.path.realpath(os.path.dirname(target))}/"
    if stat.S_ISDIR(os.lstat(source).st_mode) and above.startswith(f"{os.path.realpath(source)}/"):
        # The copy would hold itself.
        raise InvalidFileError(f"dest: {target} is inside of {source}")
    if not os.access(os.path.dirname(source) or ".", os.W_OK | os.X_OK, effective_ids=True):
        # What cannot be deleted afterwards is not copied in the first place.
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    temporary = os.path.join(os.path.dirname(target), f".execd-{os.urandom(12).hex()}.part")
    try:
        yield from _copy(source, temporary)
        rename_exclusively(temporary, target)
    except (OSError, InvalidFileError):
        yield from remove_tree(temporary)
        raise
    yield from remove_tree(source)


def copy_content(source: int, target: int) -> Iterator[None]:
    """Copy from one descriptor to another up to the end. Raises OSError."""
    while data := os.read(source, _PIECE_BYTES):
        view = memoryview(data)
        while view:
            view = view[os.write(target, view) :]
        yield


def _copy(source: str, target: str) -> Iterator[None]:
    yield from _copy_one(source, target)
    if not stat.S_ISDIR(os.lstat(source).st_mode):
        return
    directories = [""]
    for entry in walk(source):
        if entry is None:
            yield
            continue
        path, is_directory = entry
        rest = path[len(source) :]
        yield from _copy_one(path, target + rest)
        if is_directory:
            directories.append(rest)
    # From the bottom up: with its own mode a directory might not let us in any more.
    for rest in reversed(directories):
        place = os.open(target + rest, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _keep(place, os.lstat(source + rest))
        finally:
            os.close(place)
        yield


def _copy_one(source: str, target: str) -> Iterator[None]:
    """Copy a file or link; make a directory without its content, closed to others until that has come."""
    status = os.lstat(source)
    if stat.S_ISDIR(status.st_mode):
        os.mkdir(target, 0o700)
    elif stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(source), target)
        with suppress(PermissionError):
            os.chown(target, status.st_uid, status.st_gid, follow_symlinks=False)
    elif stat.S_ISREG(status.st_mode):
        yield from _copy_file(source, target)
    else:
        raise InvalidFileError(f"{source}: no file, link or directory; it cannot go to another file system")


def _copy_file(source: str, target: str) -> Iterator[None]:
    reading = os.open(source, _READ)
    try:
        writing = os.open(target, _WRITE, 0o600)
        try:
            yield from copy_content(reading, writing)
            _keep(writing, os.fstat(reading))
        finally:
            os.close(writing)
    finally:
        os.close(reading)


def _keep(place: int, status: os.stat_result) -> None:
    with suppress(PermissionError):
        os.fchown(place, status.st_uid, status.st_gid)
    os.fchmod(place, stat.S_IMODE(status.st_mode) & KEPT_MODE_BITS)
    os.utime(place, ns=(status.st_atime_ns, status.st_mtime_ns))
