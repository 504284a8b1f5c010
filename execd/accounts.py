"""Users and groups of the sandbox, read from its own /etc/passwd and /etc/group."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from execd.errors import UnknownAccountError
from execd.readfile import read_small_file

__all__ = ["Account", "Accounts"]

_MAX_ACCOUNT_FILE_BYTES: Final = 1024 * 1024
"""Anyone in the sandbox may have written it, and all of it becomes objects."""

_MAX_ID: Final = 2**32 - 2  # 2**32 - 1 means "leave as it is" to the kernel


class Account(NamedTuple):
    """One line of /etc/passwd."""

    name: str
    uid: int
    gid: int
    home: str


class Accounts:
    """Names and numbers of users and groups.

    Not the C library's look-up: it would load name service modules of the image into this process.
    The files are read at each call; a program in the sandbox may just have added a user.
    """

    def __init__(self, user_file: str = "/etc/passwd", group_file: str = "/etc/group") -> None:
        self._user_file = user_file
        self._group_file = group_file

    def users(self) -> list[Account]:
        """All users, in file order."""
        return list(self._users())

    def groups(self) -> dict[str, int]:
        """Group numbers by name."""
        return {
            fields[0]: gid
            for fields in _records(self._group_file)
            if len(fields) >= 3 and (gid := _account_number(fields[2])) is not None
        }

    def user_by_id(self, uid: int) -> Account | None:
        """Give the first user of this number."""
        return next((account for account in self._users() if account.uid == uid), None)

    def user_id(self, name: str) -> int | None:
        """Give the number of a user name; a decimal number stands for itself."""
        if name.isdecimal():
            return _account_number(name)
        return next((account.uid for account in self._users() if account.name == name), None)

    def group_id(self, name: str) -> int | None:
        """Give the number of a group name; a decimal number stands for itself."""
        return _account_number(name) if name.isdecimal() else self.groups().get(name)

    def numbers(self, owner: str | None, group: str | None) -> tuple[int, int]:
        """Give the numbers of a user and a group for `chown`, -1 for None. Raises UnknownAccountError."""
        uid = -1 if owner is None else self.user_id(owner)
        if uid is None:
            raise UnknownAccountError(f"owner: no user {owner}")
        gid = -1 if group is None else self.group_id(group)
        if gid is None:
            raise UnknownAccountError(f"group: no group {group}")
        return uid, gid

    def _users(self) -> Iterator[Account]:
        for fields in _records(self._user_file):
            if len(fields) < 6:
                continue
            uid, gid = _account_number(fields[2]), _account_number(fields[3])
            if uid is not None and gid is not None:
                yield Account(fields[0], uid, gid, fields[5])


def _account_number(text: str) -> int | None:
    """Read a number the kernel takes; None for anything else, however long."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 10):
        return None
    return int(text) if int(text) <= _MAX_ID else None


def _records(path: str) -> Iterator[list[str]]:
    text = read_small_file(path, max_bytes=_MAX_ACCOUNT_FILE_BYTES) or b""
    for line in text.splitlines():
        yield line.decode("utf-8", "replace").split(":")
