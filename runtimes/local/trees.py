"""Folders that strangers have filled: going through them, measuring and deleting them, however deep they are.

A path may be longer than the kernel takes, and a folder deeper than Python can recurse: so one handle goes down and up
again. Nobody else may move folders in them meanwhile.
"""

import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

__all__ = ["FolderHandle", "remove_tree", "tree_bytes"]

_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class FolderHandle:
    """An open folder that can be exchanged for one in it, and back. Use as a context manager. All raise OSError."""

    def __init__(self, folder: Path) -> None:
        """folder: exists, and is no link."""
        self.number = os.open(folder, _FLAGS)

    def __enter__(self) -> Self:
        """Give itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        os.close(self.number)

    def enter(self, name: str) -> None:
        """Go to a folder in it; never through a link."""
        self._exchange(name)

    def leave(self) -> None:
        """Go back to the one above."""
        self._exchange("..")

    def path_of(self, name: str) -> str:
        """Give a short path of something in it, for calls that take no handle."""
        return f"/proc/self/fd/{self.number}/{name}"

    def entries(self) -> tuple[list[str], list[str]]:
        """Names of the folders in it, and of all else."""
        folders: list[str] = []
        others: list[str] = []
        with os.scandir(self.number) as found:
            for entry in found:
                (folders if entry.is_dir(follow_symlinks=False) else others).append(entry.name)
        return folders, others

    def _exchange(self, name: str) -> None:
        below = os.open(name, _FLAGS, dir_fd=self.number)
        os.close(self.number)
        self.number = below


def remove_tree(folder: Path) -> None:
    """Delete a folder with all that is in it; one that is gone is no error. Raises OSError."""
    with suppress(FileNotFoundError):
        with FolderHandle(folder) as handle:
            _empty(handle)
        folder.rmdir()


def tree_bytes(folder: Path) -> int:
    """Room that all in it takes on the disk; a file of several names counts once. Raises OSError."""
    sizes: dict[int, int] = {}

    def measure(names: list[str], handle: FolderHandle) -> None:
        for name in names:
            status = os.lstat(name, dir_fd=handle.number)
            sizes[status.st_ino] = status.st_blocks * 512

    with FolderHandle(folder) as handle:
        folders, others = handle.entries()
        measure([*folders, *others], handle)
        # The folders that are left to look at, for each level from the top to where the handle is.
        left = [folders]
        while True:
            if left[-1]:
                handle.enter(left[-1].pop())
                folders, others = handle.entries()
                measure([*folders, *others], handle)
                left.append(folders)
                continue
            left.pop()
            if not left:
                return sum(sizes.values())
            handle.leave()


def _empty(handle: FolderHandle) -> None:
    # The folders that are left to delete, for each level from the top to where the handle is.
    left = [_unlink_files(handle)]
    while True:
        if left[-1]:
            handle.enter(left[-1][-1])
            left.append(_unlink_files(handle))
            continue
        left.pop()
        if not left:
            return
        handle.leave()
        os.rmdir(left[-1].pop(), dir_fd=handle.number)


def _unlink_files(handle: FolderHandle) -> list[str]:
    """Delete all but the folders, and give the names of these."""
    folders, others = handle.entries()
    for name in others:
        os.unlink(name, dir_fd=handle.number)
    return folders
