"""Writing files: each is staged beside its target and renamed, so it appears whole or not at all."""

import errno
import os
import stat
from collections.abc import Iterator
from typing import Final, NamedTuple

from execd.accounts import Accounts
from execd.copying import copy_content
from execd.directories import make_directories
from execd.errors import InvalidFileError, InvalidFileMetadataError, UnknownAccountError, error_from_os
from execd.file_requests import KEPT_MODE_BITS, Permission
from execd.identity import Identity

__all__ = ["Staging"]

_DEFAULT_MODE: Final = 0o644
_MAX_HELD_DIRECTORIES: Final = 4
_COMMITS_PER_STEP: Final = 64


class _Staged(NamedTuple):
    """A file not yet in its place. directory: descriptor, or None if temporary and name are whole paths.

    is_copied: its content goes into the file that is there, which keeps its owner.
    """

    directory: int | None
    temporary: str
    name: str
    target: str
    is_copied: bool = False


class Staging:
    """The files of one request. They appear with `commit`; `abort` leaves everything as it was.

    All with the rights of an identity, to which new files belong. `abort` must be called in the end, always.
    """

    def __init__(self, accounts: Accounts, identity: Identity) -> None:
        self._accounts = accounts
        self._identity = identity
        self._staged: list[_Staged] = []
        self._directories: dict[str, int] = {}
        self._fd: int | None = None
        self._target = ""

    def begin(self, target: str, permission: Permission) -> None:
        """Open a temporary file beside the target; missing parents are made. Raises ExecdError."""
        self._target = target
        try:
            owner, group = self._accounts.numbers(permission.owner, permission.group)
        except UnknownAccountError as error:
            raise InvalidFileMetadataError(error.message) from error
        try:
            with self._identity:
                existing_mode = _existing_mode(target)
                make_directories(os.path.dirname(target) or ".")
                fd = self._open(target)
                if (owner, group) != (-1, -1):
                    os.fchown(fd, owner, group)
                os.fchmod(fd, permission.mode or existing_mode or _DEFAULT_MODE)
        except ValueError as error:
            raise InvalidFileError(f"path: {error}") from error
        except OSError as error:
            raise error_from_os(error, target) from error

    def begin_rewrite(self, target: str, status: os.stat_result) -> None:
        """Open a temporary file for new content of an existing one: it keeps mode and owner. Raises ExecdError."""
        self._target = target
        try:
            with self._identity:
                fd = self._open(target)
                try:
                    os.fchown(fd, status.st_uid, status.st_gid)
                    os.fchmod(fd, stat.S_IMODE(status.st_mode) & KEPT_MODE_BITS)
                except PermissionError:
                    self._staged[-1] = self._staged[-1]._replace(is_copied=True)
        except OSError as error:
            raise error_from_os(error, target) from error

    def write(self, data: bytes | memoryview) -> None:
        """Append to the file begun last. Raises DiskFullError and other ExecdErrors."""
        # In the loop's thread on purpose: the page cache takes a piece of 256 KiB in microseconds, and a thread
        # could not be had in a sandbox at its process limit.
        view = memoryview(data)
        try:
            while view and self._fd is not None:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            raise error_from_os(error, self._target) from error

    def end(self) -> None:
        """Close the file begun last. Raises ExecdError: a file system may report a full disk only here."""
        fd, self._fd = self._fd, None
        try:
            if fd is not None:
                os.close(fd)
        except OSError as error:
            raise error_from_os(error, self._target) from error

    def commit(self) -> Iterator[None]:
        """Put all files in their places, in the order they came, step by step.

        Raises ExecdError; the rest is then dropped.
        """
        self._staged.reverse()
        while self._staged:
            staged = self._staged[-1]
            try:
                with self._identity:
                    to_copy = self._put_in_place(staged)
                if to_copy:
                    yield from _overwrite(*to_copy)
            except OSError as error:
                raise error_from_os(error, staged.target) from error
            self._staged.pop()
            if len(self._staged) % _COMMITS_PER_STEP == 0:
                yield

    def abort(self) -> None:
        """Drop what was not committed."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        with self._identity:
            for staged in self._staged:
                try:
                    os.unlink(staged.temporary, dir_fd=staged.directory)
                except OSError:
                    continue
        self._staged.clear()
        for fd in self._directories.values():
            os.close(fd)
        self._directories.clear()

    def _open(self, target: str) -> int:
        directory, name = os.path.split(target)
        if name in ("", ".", ".."):
            raise InvalidFileError(f"{target}: names a directory")
        held = self._held(directory or ".")
        temporary = f".execd-{os.urandom(12).hex()}.part"
        if held is None:
            temporary, name = os.path.join(directory, temporary), target
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(temporary, flags, 0o600, dir_fd=held)
        self._staged.append(_Staged(held, temporary, name, target))
        return self._fd

    def _held(self, directory: str) -> int | None:
        """Give a descriptor of the directory, so that renaming goes where the staged file is, whatever is at its path.

        None beyond the first few directories: descriptors are scarce. A swap then fails the request.
        """
        if directory not in self._directories:
            if len(self._directories) >= _MAX_HELD_DIRECTORIES:
                return None
            self._directories[directory] = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return self._directories[directory]

    def _put_in_place(self, staged: _Staged) -> tuple[int, int] | None:
        """Rename; where that cannot be done, give the descriptors of the staged file and its target, to be copied."""
        where = staged.directory
        if not staged.is_copied:
            try:
                os.replace(staged.temporary, staged.name, src_dir_fd=where, dst_dir_fd=where)
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
            else:
                return None
        flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        source = os.open(staged.temporary, os.O_RDONLY | flags, dir_fd=where)
        try:
            target = os.open(staged.name, os.O_WRONLY | flags, dir_fd=where)
        except OSError:
            os.close(source)
            raise
        os.unlink(staged.temporary, dir_fd=where)
        return source, target


def _existing_mode(target: str) -> int | None:
    """Give the mode of the file at target, None if there is none. Raises InvalidFileError for other kinds.

    A link to a file, or to nothing, is replaced and not followed: someone else in the sandbox may have set it.
    """
    if os.path.basename(target) in ("", ".", ".."):
        raise InvalidFileError(f"{target}: names a directory")
    try:
        mode = os.stat(target).st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        raise InvalidFileError(f"{target}: exists and is not a regular file")
    return stat.S_IMODE(mode) & KEPT_MODE_BITS


def _overwrite(source: int, target: int) -> Iterator[None]:
    """Copy into a file that cannot be renamed over: a mount point, or another user's. Closes both.

    The room is taken before a byte is changed: on a full disk the old content stays.
    """
    try:
        if not stat.S_ISREG(os.fstat(target).st_mode):
            raise OSError(errno.ENXIO, "Not a regular file")
        size = os.fstat(source).st_size
        if size:
            os.posix_fallocate(target, 0, size)
        yield from copy_content(source, target)
        os.ftruncate(target, size)
    finally:
        os.close(source)
        os.close(target)
