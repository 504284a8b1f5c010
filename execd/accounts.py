"""Users and groups of the sandbox, read from its own /etc/passwd and /etc/group."""

from dataclasses import dataclass
from typing import Final

from execd.readfile import read_small_file

__all__ = ["Account", "Accounts"]

_MAX_ACCOUNT_FILE_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Account:
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
        return [
            Account(fields[0], int(fields[2]), int(fields[3]), fields[5])
            for fields in _records(self._user_file)
            if len(fields) >= 6 and fields[2].isdecimal() and fields[3].isdecimal()
        ]

    def groups(self) -> dict[str, int]:
        """Group numbers by name."""
        return {f[0]: int(f[2]) for f in _records(self._group_file) if len(f) >= 3 and f[2].isdecimal()}

    def user_by_id(self, uid: int) -> Account | None:
        """Give the first user of this number."""
        return next((account for account in self.users() if account.uid == uid), None)

    def user_id(self, name: str) -> int | None:
        """Give the number of a user name; a decimal number stands for itself."""
        if name.isdecimal():
            return int(name)
        return next((account.uid for account in self.users() if account.name == name), None)

    def group_id(self, name: str) -> int | None:
        """Give the number of a group name; a decimal number stands for itself."""
        return int(name) if name.isdecimal() else self.groups().get(name)


def _records(path: str) -> list[list[str]]:
    text = read_small_file(path, max_bytes=_MAX_ACCOUNT_FILE_BYTES) or b""
    return [line.split(":") for line in text.decode("utf-8", "replace").splitlines()]
