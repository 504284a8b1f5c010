"""Describing and finding files."""

import fnmatch
import os
import re
import stat
import time
from collections.abc import Iterator
from typing import Any, Final

from execd.accounts import Accounts
from execd.errors import InvalidFileError, InvalidQueryError, error_from_os
from execd.walk import walk

__all__ = ["FileInspector", "NamePattern"]

MAX_PATTERN_LENGTH: Final = 1024
MAX_PATTERN_ALTERNATIVES: Final = 256
_EARLIEST: Final = -62_135_596_800  # year 1
_LATEST: Final = 253_402_300_799  # year 9999


class FileInspector:
    """Describes files as the wire does. Links are not followed.

    For one request: names of users and groups are those of the moment it was made.
    """

    def __init__(self, accounts: Accounts) -> None:
        self._users = {account.uid: account.name for account in reversed(accounts.users())}
        self._groups = {number: name for name, number in accounts.groups().items()}

    def describe(self, path: str) -> dict[str, Any]:
        """Give the FileInfo of one path. Raises FileMissingError and other ExecdErrors."""
        return self._info(_absolute(path), _status(path))

    def search(self, root: str, pattern: "NamePattern") -> Iterator[dict[str, Any] | None]:
        """Give the FileInfo of everything below root that is no directory and matches, in lexical order.

        None comes now and then, as a place to pause. What cannot be read is left out. Raises FileMissingError and
        other ExecdErrors about root, before the first item.
        """
        if not stat.S_ISDIR(_status(root, follows=True).st_mode):
            raise InvalidFileError(f"{root}: not a directory")
        for entry in _walked(root, None):
            if entry is None:
                yield None
            elif not entry[1] and pattern.matches(os.path.basename(entry[0])):
                yield self._described(entry[0])

    def listing(self, root: str, depth: int) -> Iterator[dict[str, Any] | None]:
        """Give the FileInfo of everything below root down to a depth, each directory before its content.

        The rest is as for `search`, but root must be no link.
        """
        mode = _status(root).st_mode
        if not stat.S_ISDIR(mode):
            kind = "a symbolic link" if stat.S_ISLNK(mode) else "not a directory"
            raise InvalidFileError(f"{root}: {kind}")
        for entry in _walked(root, depth):
            yield None if entry is None else self._described(entry[0])

    def _described(self, path: str) -> dict[str, Any] | None:
        try:
            return self._info(path, os.lstat(path))
        except OSError:
            return None

    def _info(self, path: str, status: os.stat_result) -> dict[str, Any]:
        return {
            "path": path,
            "type": _type_name(status.st_mode),
            "size": status.st_size,
            "modified_at": _timestamp(status.st_mtime_ns),
            "created_at": _timestamp(status.st_ctime_ns),
            "owner": self._users.get(status.st_uid, str(status.st_uid)),
            "group": self._groups.get(status.st_gid, str(status.st_gid)),
            "mode": int(f"{stat.S_IMODE(status.st_mode):o}"),
        }


class NamePattern:
    """A glob on base names: *, ?, [], [!], {a,b}; ** is *, and a leading **/ means any depth, as always."""

    def __init__(self, pattern: str) -> None:
        """Raises InvalidQueryError for a pattern that is too long or has too many alternatives."""
        while pattern.startswith("**/"):
            pattern = pattern[3:]
        if len(pattern) > MAX_PATTERN_LENGTH:
            raise InvalidQueryError(f"pattern: longer than {MAX_PATTERN_LENGTH} characters")
        alternatives = _expand_braces(pattern)
        # fnmatch makes expressions without backtracking over more than one star.
        self._expressions = [re.compile(fnmatch.translate(text)) for text in alternatives]

    def matches(self, name: str) -> bool:
        """Say whether a base name matches."""
        return any(expression.match(name) for expression in self._expressions)


def _walked(root: str, depth: int | None) -> Iterator[tuple[str, bool] | None]:
    try:
        yield from walk(_absolute(root), depth=depth)
    except OSError as error:
        raise error_from_os(error, root) from error


def _status(path: str, *, follows: bool = False) -> os.stat_result:
    try:
        return os.stat(path, follow_symlinks=follows)
    except ValueError as error:
        raise InvalidFileError(f"path: {error}") from error
    except OSError as error:
        raise error_from_os(error, path) from error


def _absolute(path: str) -> str:
    """Make absolute without resolving `..`, which behind a link is not what it looks like."""
    return os.path.join(os.getcwd(), path)


def _type_name(mode: int) -> str:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "symlink" if stat.S_ISLNK(mode) else "other"


def _timestamp(nanoseconds: int) -> str:
    """RFC 3339 in UTC with microseconds; times beyond its years are moved to its first or last."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    clamped = min(max(seconds, _EARLIEST), _LATEST)
    parts = time.gmtime(clamped)
    return f"{parts.tm_year:04d}-{time.strftime('%m-%dT%H:%M:%S', parts)}.{rest // 1000:06d}Z"


def _expand_braces(pattern: str) -> list[str]:
    """Expand {a,b}; nested ones too. A brace without its partner stands for itself."""
    finished: list[str] = []
    pending = [pattern]
    while pending:
        text = pending.pop()
        span = _first_braces(text)
        if span is None:
            finished.append(text)
        else:
            start, end = span
            choices = text[start + 1 : end].split(",")
            pending += [text[:start] + choice + text[end + 1 :] for choice in choices]
        if len(finished) + len(pending) > MAX_PATTERN_ALTERNATIVES:
            raise InvalidQueryError(f"pattern: more than {MAX_PATTERN_ALTERNATIVES} alternatives")
    return finished


def _first_braces(text: str) -> tuple[int, int] | None:
    """Give the first innermost pair of braces."""
    end = text.find("}")
    while end >= 0:
        start = text.rfind("{", 0, end)
        if start >= 0:
            return start, end
        end = text.find("}", end + 1)
    return None
