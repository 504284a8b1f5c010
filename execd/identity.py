"""Acting with the rights of another user of the sandbox, for one synchronous piece of work at a time."""

import os
import re
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Final, Self, TypeVar

from execd.errors import InvalidQueryError, PermissionDeniedError
from execd.readfile import read_small_file

__all__ = ["OWN_IDENTITY", "Identity", "identity_of"]

_MAX_ID: Final = 2**32 - 2
"""2**32 - 1 means "leave as it is" to the kernel."""

Item = TypeVar("Item")


class Identity:
    """Whose rights file operations have, and who owns new files.

    `with identity:` around code that does not await: execd has one thread, and whatever else it does in the meantime
    would run as that user, too. Not to be nested. Without uid and gid: execd's own, at no cost.

    The effective ids are changed, not only those for file systems: that drops all capabilities of a root execd at
    once, and sandboxed kernels know it. Real and saved ids stay, so that no process of that user may signal or trace
    execd meanwhile.
    """

    def __init__(self, uid: int | None = None, gid: int | None = None) -> None:
        own = (os.geteuid(), os.getegid())
        wanted = (own[0] if uid is None else uid, own[1] if gid is None else gid)
        self._wanted = None if wanted == own else wanted
        self._own = own
        self._groups: list[int] = []

    def __enter__(self) -> Self:
        """Raises PermissionDeniedError where execd may not become that user."""
        if self._wanted is None:
            return self
        self._groups = os.getgroups()
        if self._own[0] != 0:
            # Even with the capability to become another user: only leaving root drops those over files.
            raise self._refusal("it does not run as root")
        try:
            os.setgroups([])
            os.setegid(self._wanted[1])
            os.seteuid(self._wanted[0])
        except OSError as error:
            self._return()
            raise self._refusal(error.strerror or str(error)) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._wanted is not None:
            self._return()

    def check(self) -> None:
        """Raises PermissionDeniedError where execd may not become that user, or would keep capabilities of its own."""
        with self:
            is_bare = self._wanted is None or self._wanted[0] == 0 or _has_no_capabilities()
        if not is_bare:
            raise self._refusal("it would keep its capabilities")

    def each(self, steps: Iterator[Item]) -> Iterator[Item]:
        """Give what an iterator gives, each step made with these rights; between them execd has its own."""
        while True:
            try:
                with self:
                    item = next(steps)
            except StopIteration:
                return
            yield item

    def _refusal(self, reason: str) -> PermissionDeniedError:
        uid, gid = self._wanted or self._own
        return PermissionDeniedError(f"execd may not act as user {uid}, group {gid}: {reason}")

    def _return(self) -> None:
        if os.geteuid() != self._own[0]:
            os.seteuid(self._own[0])
        if os.getegid() != self._own[1]:
            os.setegid(self._own[1])
        if os.getgroups() != self._groups:
            os.setgroups(self._groups)


OWN_IDENTITY: Final = Identity()
"""That of execd itself."""


def identity_of(values: Mapping[str, str]) -> Identity:
    """Read `uid` and `gid`, decimal digits both; without them it is execd's own.

    Raises InvalidQueryError, PermissionDeniedError.
    """
    if "uid" not in values:
        return OWN_IDENTITY
    identity = Identity(_number("uid", values["uid"]), _number("gid", values["gid"]))
    identity.check()
    return identity


def _has_no_capabilities() -> bool:
    status = read_small_file("/proc/thread-self/status", max_bytes=16 * 1024) or b""
    found = re.search(rb"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return found is None or int(found[1], 16) == 0


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 10 and int(text) <= _MAX_ID):
        raise InvalidQueryError(f"{name}: not a number from 0 to {_MAX_ID}")
    return int(text)
