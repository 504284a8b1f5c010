"""Making and deleting directories. Descriptors are held, so that no link put in the way is followed."""

import errno
import os
import stat
from collections.abc import Iterator
from typing import Final, NamedTuple

from execd.errors import ExecdError, InvalidFileError

__all__ = ["NEW_DIRECTORY_MODE", "make_directories", "remove_tree"]

NEW_DIRECTORY_MODE: Final = 0o755

_PLACE: Final = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILES_PER_STEP: Final = 500
_PENDING_DIRECTORIES: Final = 8
"""Names kept per level while its other entries are deleted: a tree may be as deep as the disk has inodes."""

_MAX_REFILLED: Final = 100
"""How often a directory that was emptied may turn out to hold something again."""


def make_directories(path: str, *, mode: int | None = None, owner: int = -1, group: int = -1) -> None:
    """Make a directory and its parents where they are missing. Those that exist are left as they are.

    mode: of all new ones; None is 755. owner, group: numbers; -1 leaves them. Raises OSError.
    """
    if _is_directory(path):
        return
    place, is_new = os.open("/" if path.startswith("/") else ".", _PLACE), False
    try:
        for part in path.split("/"):
            if part in ("", "."):
                continue
            deeper, is_deeper_new = _enter(place, part)
            above, place = place, deeper
            try:
                # Only now: with its final mode it might not have let us in.
                if is_new:
                    _set_permission(above, mode, owner, group)
            finally:
                os.close(above)
            is_new = is_deeper_new
        if is_new:
            _set_permission(place, mode, owner, group)
    finally:
        os.close(place)


def remove_tree(path: str) -> Iterator[None]:
    """Delete a directory with all it holds, step by step; a file or link at `path` is deleted itself.

    What is missing is as good as deleted. Holds three descriptors at whatever depth. Raises OSError, ExecdError.
    """
    above, _, name = path.rstrip("/").rpartition("/")
    if name in ("", ".", ".."):
        raise InvalidFileError(f"{path}: name the directory itself, not '{name or '/'}'")
    try:
        parent = os.open(above or ("/" if path.startswith("/") else "."), _PLACE)
    except FileNotFoundError:
        return
    try:
        yield from _TreeRemoval(parent, name, path).steps()
    finally:
        os.close(parent)


# Not dataclasses in these modules: each costs the start of every sandbox most of a millisecond.
class _Level(NamedTuple):
    """A directory on the way down. identity: device and inode. pending: directories in it that are to go first."""

    name: str
    identity: tuple[int, int]
    pending: list[str]


class _TreeRemoval:
    """Walks down and up again through `..`, checking that it comes back where it was."""

    def __init__(self, parent: int, name: str, path: str) -> None:
        self._parent = parent
        self._path = path
        self._place = os.dup(parent)
        self._levels = [_Level("", (0, 0), [name])]
        self._refilled = 0

    def steps(self) -> Iterator[None]:
        try:
            while True:
                level = self._levels[-1]
                if level.pending:
                    self._descend(level.pending.pop())
                elif len(self._levels) == 1:
                    return
                elif not self._delete_entries(level):
                    self._ascend()
                yield
        finally:
            os.close(self._place)

    def _descend(self, name: str) -> None:
        """Go into a directory; delete anything else of that name."""
        try:
            deeper = os.open(name, _OPEN, dir_fd=self._place)
        except FileNotFoundError:
            return
        except OSError as error:
            _remove_unopened(name, self._place, error)
            return
        status = os.fstat(deeper)
        os.close(self._place)
        self._place = deeper
        self._levels.append(_Level(name, (status.st_dev, status.st_ino), []))

    def _delete_entries(self, level: _Level) -> bool:
        """Delete some files and note some directories; False if there is nothing left."""
        directories, files = _some_entries(self._place)
        for name in files:
            try:
                os.unlink(name, dir_fd=self._place)
            except FileNotFoundError:
                continue
            except IsADirectoryError:
                directories.append(name)
        level.pending[:] = directories
        return bool(directories or files)

    def _ascend(self) -> None:
        name = self._levels.pop().name
        above = self._levels[-1]
        is_top = len(self._levels) == 1
        upper = os.dup(self._parent) if is_top else os.open("..", _OPEN, dir_fd=self._place)
        os.close(self._place)
        self._place = upper
        status = os.fstat(upper)
        if not is_top and (status.st_dev, status.st_ino) != above.identity:
            raise ExecdError(f"{self._path}: was moved while it was being deleted")
        try:
            os.rmdir(name, dir_fd=upper)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or self._refilled >= _MAX_REFILLED:
                raise
            self._refilled += 1
            above.pending.append(name)


def _some_entries(place: int) -> tuple[list[str], list[str]]:
    """Give the first directories and other entries found."""
    directories: list[str] = []
    files: list[str] = []
    with os.scandir(place) as found:
        for entry in found:
            (directories if entry.is_dir(follow_symlinks=False) else files).append(entry.name)
            if len(directories) >= _PENDING_DIRECTORIES or len(files) >= _FILES_PER_STEP:
                break
    return directories, files


def _remove_unopened(name: str, place: int, error: OSError) -> None:
    """Delete what could not be opened as a directory: another kind of file, or one that is empty but closed to us."""
    try:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            os.unlink(name, dir_fd=place)
        else:
            os.rmdir(name, dir_fd=place)
    except FileNotFoundError:
        return
    except OSError as failure:
        if failure.errno == errno.ENOTEMPTY:
            raise error from failure
        raise


def _enter(place: int, name: str) -> tuple[int, bool]:
    """Open a directory below `place`, made if it is missing; say whether it was made."""
    try:
        os.mkdir(name, 0o700, dir_fd=place)
    except FileExistsError:
        return os.open(name, _PLACE, dir_fd=place), False
    return os.open(name, _OPEN, dir_fd=place), True


def _set_permission(place: int, mode: int | None, owner: int, group: int) -> None:
    if (owner, group) != (-1, -1):
        os.fchown(place, owner, group)
    os.fchmod(place, NEW_DIRECTORY_MODE if mode is None else mode)


def _is_directory(path: str) -> bool:
    """Say whether there is a directory. Raises OSError for anything else but nothing at all."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(mode):
        raise NotADirectoryError(errno.ENOTDIR, "Not a directory")
    return True
