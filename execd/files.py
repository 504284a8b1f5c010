"""Looking at files: info, search, download."""

import fnmatch
import os
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from execd.accounts import Accounts
from execd.errors import BadRangeError, InvalidFileError, InvalidQueryError, error_from_os
from execd.readfile import open_regular

__all__ = ["ByteRange", "Download", "FileInspector", "NamePattern", "parse_range"]

MAX_PATTERN_LENGTH: Final = 1024
MAX_PATTERN_ALTERNATIVES: Final = 256
_MAX_UNSIZED_BYTES: Final = 16 * 1024 * 1024
_CHUNK_BYTES: Final = 256 * 1024
_EARLIEST: Final = -62_135_596_800  # year 1
_LATEST: Final = 253_402_300_799  # year 9999
_RANGE = re.compile(r"bytes=\s*([0-9]{0,18})\s*-\s*([0-9]{0,18})\s*")


class FileInspector:
    """Describes files as the wire does. Links are not followed."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts

    def describe(self, path: str) -> dict[str, Any]:
        """Give the FileInfo of one path. Raises FileMissingError and other ExecdErrors."""
        try:
            status = os.lstat(path)
        except ValueError as error:
            raise InvalidFileError(f"path: {error}") from error
        except OSError as error:
            raise error_from_os(error, path) from error
        return self._info(_absolute(path), status, *self._names())

    def search(self, root: str, pattern: "NamePattern") -> Iterator[dict[str, Any] | None]:
        """Give the FileInfo of everything below root that is no directory and matches, in lexical order.

        None comes after each directory, as a place to pause. What cannot be read is left out; a missing root
        raises FileMissingError, before the first item.
        """
        try:
            if not stat.S_ISDIR(os.stat(root).st_mode):
                raise InvalidFileError(f"{root}: not a directory")
        except ValueError as error:
            raise InvalidFileError(f"path: {error}") from error
        except OSError as error:
            raise error_from_os(error, root) from error
        return self._walk(_absolute(root), pattern)

    def _walk(self, root: str, pattern: "NamePattern") -> Iterator[dict[str, Any] | None]:
        users, groups = self._names()
        pending = [root]
        while pending:
            directory = pending.pop()
            entries = _entries(directory)
            pending += [entry.path for entry in reversed(entries) if _is_directory(entry)]
            for entry in entries:
                if not _is_directory(entry) and pattern.matches(entry.name):
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except OSError:
                        continue
                    yield self._info(entry.path, status, users, groups)
            yield None

    def _names(self) -> tuple[dict[int, str], dict[int, str]]:
        users = {account.uid: account.name for account in reversed(self._accounts.users())}
        return users, {number: name for name, number in self._accounts.groups().items()}

    def _info(
        self, path: str, status: os.stat_result, users: dict[int, str], groups: dict[int, str]
    ) -> dict[str, Any]:
        info: dict[str, Any] = {
            "path": path,
            "type": _type_name(status.st_mode),
            "size": status.st_size,
            "modified_at": _timestamp(status.st_mtime_ns),
            "created_at": _timestamp(status.st_ctime_ns),
            "owner": users.get(status.st_uid, str(status.st_uid)),
            "group": groups.get(status.st_gid, str(status.st_gid)),
            "mode": int(f"{stat.S_IMODE(status.st_mode):o}"),
        }
        return info


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


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes first to last of a file, both included."""

    first: int
    last: int


def parse_range(header: str | None, size: int) -> ByteRange | None:
    """Read a Range header of one range; None without a header. Raises BadRangeError."""
    if header is None:
        return None
    match = _RANGE.fullmatch(header.strip())
    if match is None or not (match[1] or match[2]):
        raise BadRangeError(header, size)
    if match[1]:
        first, last = int(match[1]), int(match[2] or size - 1)
    else:
        first, last = max(size - int(match[2]), 0), size - 1
    last = min(last, size - 1)
    if first > last:
        raise BadRangeError(header, size)
    return ByteRange(first, last)


class Download:
    """An open regular file. size: bytes that can be read."""

    def __init__(self, path: str) -> None:
        """Open without waiting for anything. Raises InvalidFileError for other kinds, and other ExecdErrors."""
        try:
            self._fd, status = open_regular(path)
        except ValueError as error:
            raise InvalidFileError(f"path: {error}") from error
        except OSError as error:
            raise error_from_os(error, path) from error
        self._content: bytes | None = None
        self.size = status.st_size
        if self.size == 0:
            self._read_unsized(path)

    def chunks(self, selected: ByteRange | None) -> Iterator[bytes]:
        """Give the bytes. Raises OSError, and EOFError when the file has shrunk meanwhile."""
        position, end = (selected.first, selected.last + 1) if selected else (0, self.size)
        while position < end:
            if self._content is not None:
                data = self._content[position:end]
            else:
                data = os.pread(self._fd, min(_CHUNK_BYTES, end - position), position)
            if not data:
                raise EOFError("the file has shrunk")
            position += len(data)
            yield data

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _read_unsized(self, path: str) -> None:
        """Read a file that claims no size, as those of /proc do, whole."""
        parts: list[bytes] = []
        room = _MAX_UNSIZED_BYTES
        try:
            while room > 0 and (data := os.read(self._fd, min(room, _CHUNK_BYTES))):
                parts.append(data)
                room -= len(data)
        except OSError as error:
            os.close(self._fd)
            raise error_from_os(error, path) from error
        self._content = b"".join(parts)
        self.size = len(self._content)


def _absolute(path: str) -> str:
    """Make absolute without resolving `..`, which behind a link is not what it looks like."""
    return os.path.join(os.getcwd(), path)


def _entries(directory: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as found:
            return sorted(found, key=lambda entry: entry.name)
    except OSError:
        return []


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


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
