"""Renaming files and changing their permissions."""

import errno
import os
from collections.abc import Iterable, Iterator, Mapping

from execd.accounts import Accounts
from execd.copying import move_by_copying
from execd.directories import make_directories
from execd.errors import ExecdError, FileMissingError, error_from_os
from execd.file_requests import Move, Permission
from execd.kernel import rename_exclusively

__all__ = ["change_permissions", "move_all"]


def change_permissions(wanted: Mapping[str, Permission], accounts: Accounts) -> Iterator[None]:
    """Change mode and owner of one path per step. Links are followed, as `chmod` does. Raises ExecdError."""
    for path, permission in wanted.items():
        _change_permission(path, permission, accounts)
        yield


def move_all(moves: Iterable[Move]) -> Iterator[None]:
    """Rename files, links or directories; missing parents of targets are made, nothing there is replaced.

    From one file system to another: copied and deleted, step by step.

    Raises ExecdError; what was renamed before stays so.
    """
    for wanted in moves:
        yield from _move(wanted)
        yield


def _change_permission(path: str, permission: Permission, accounts: Accounts) -> None:
    owner, group = accounts.numbers(permission.owner, permission.group)
    try:
        if (owner, group) != (-1, -1):
            os.chown(path, owner, group)
        if permission.mode is not None:
            os.chmod(path, permission.mode)
        elif (owner, group) == (-1, -1):
            os.stat(path)
    except OSError as error:
        raise error_from_os(error, path) from error


def _move(wanted: Move) -> Iterator[None]:
    source, target = (path.rstrip("/") or "/" for path in (wanted.src, wanted.dest))
    if os.path.lexists(target):
        raise ExecdError(f"dest: {target} exists already")
    try:
        os.lstat(source)
        make_directories(os.path.dirname(target) or ".")
        try:
            rename_exclusively(source, target)
        except OSError as error:
            # Another file system; or a directory of the image, whose layers know no renames of directories.
            if error.errno != errno.EXDEV:
                raise
            yield from move_by_copying(source, target)
    except FileExistsError as error:
        raise ExecdError(f"dest: {target} exists already") from error
    except FileNotFoundError as error:
        raise FileMissingError(f"src: {source}: {error.strerror}") from error
    except OSError as error:
        raise error_from_os(error, f"{source} to {target}") from error
