"""A folder that is filled by names from strangers, without ever leaving it."""

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from core.errors import BadImageError

__all__ = ["FOLDER_FLAGS", "ConfinedFolder", "PathParts", "split_path"]

PathParts = tuple[bytes, ...]
"""Components of a path below the folder: none is empty, `.`, `..` or has a slash in it."""

FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_MAX_NAME_BYTES = 255
_MAX_PATH_BYTES = 4095


def split_path(name: bytes, *, max_depth: int) -> PathParts:
    """Split a name of an archive. A slash in front, `.` and empty parts mean nothing; `..` is refused.

    Raises BadImageError for what cannot be, or is not allowed to be, a path.
    """
    parts = tuple(part for part in name.split(b"/") if part not in (b"", b"."))
    if b".." in parts:
        raise BadImageError("there is '..' in a path")
    if b"\0" in name:
        raise BadImageError("there is a NUL in a path")
    if len(name) > _MAX_PATH_BYTES or any(len(part) > _MAX_NAME_BYTES for part in parts):
        raise BadImageError(
            f"a path is longer than {_MAX_PATH_BYTES} bytes, or {_MAX_NAME_BYTES} in one part"
        )
    if len(parts) > max_depth:
        raise BadImageError(f"a path is more than {max_depth} folders deep")
    return parts


class ConfinedFolder:
    """Opens paths component by component from a handle, never through a link. Use as a context manager.

    Nobody else may write to the folder meanwhile. on_new: is given each folder made on the way, and a handle on it.
    """

    def __init__(self, folder: Path, on_new: Callable[[PathParts, int], None] | None = None) -> None:
        """folder: exists."""
        self._folder = folder
        self._on_new = on_new
        self._handles: list[int] = []
        self._names: list[bytes] = []

    def __enter__(self) -> Self:
        """Open the folder."""
        self._handles = [os.open(self._folder, FOLDER_FLAGS)]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all handles."""
        self._forget_below(0)
        os.close(self._handles.pop())

    def open(self, path: PathParts) -> int:
        """Give a handle on a folder; it and those above are made if missing. Valid until the next call; never close it.

        The handles along the path are kept: entries of archives come sorted. Raises BadImageError where a link or a
        file is in the way.
        """
        shared = 0
        while shared < min(len(path), len(self._names)) and path[shared] == self._names[shared]:
            shared += 1
        self._forget_below(shared)
        for depth in range(shared, len(path)):
            self._handles.append(self._enter(self._handles[-1], path[: depth + 1]))
            self._names.append(path[depth])
        return self._handles[-1]

    def stat(self, path: PathParts) -> os.stat_result | None:
        """Look at what is there, not followed; None if nothing is. Makes the folders above it."""
        try:
            return os.lstat(path[-1], dir_fd=self.open(path[:-1])) if path else os.fstat(self.open(()))
        except FileNotFoundError:
            return None

    def clear(self, path: PathParts) -> None:
        """Remove what is there, with all that is in it."""
        found = self.stat(path)
        if found is None:
            return
        parent = self.open(path[:-1])
        if stat.S_ISDIR(found.st_mode):
            shutil.rmtree(os.fsdecode(path[-1]), dir_fd=parent)
        else:
            os.unlink(path[-1], dir_fd=parent)

    def _forget_below(self, depth: int) -> None:
        while len(self._names) > depth:
            os.close(self._handles.pop())
            self._names.pop()

    def _enter(self, parent: int, path: PathParts) -> int:
        name = path[-1]
        try:
            return os.open(name, FOLDER_FLAGS, dir_fd=parent)
        except FileNotFoundError:
            os.mkdir(name, 0o700, dir_fd=parent)
        except OSError as error:
            if stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode):
                raise
            text = b"/".join(path).decode("utf-8", "backslashreplace")
            raise BadImageError(
                f"/{text} is a link or a file, yet something is said to be below it"
            ) from error
        handle = os.open(name, FOLDER_FLAGS, dir_fd=parent)
        if self._on_new:
            self._on_new(path, handle)
        return handle
