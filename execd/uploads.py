"""Writing uploaded files: each is staged beside its target and renamed, so it appears whole or not at all."""

import os
import stat
from dataclasses import dataclass
from typing import Any, Final

from execd.accounts import Accounts
from execd.errors import ExecdError, InvalidFileError, InvalidFileMetadataError, error_from_os
from execd.requests import parse_json

__all__ = ["FileMetadata", "UploadTransaction", "parse_metadata", "parse_mode"]

MAX_METADATA_BYTES: Final = 32 * 1024
_DEFAULT_MODE: Final = 0o644
_KEPT_MODE_BITS: Final = 0o1777
"""Set-user-id and set-group-id never come from outside."""

_NEW_DIRECTORY_MODE: Final = 0o755


@dataclass(frozen=True, slots=True)
class FileMetadata:
    """Where a file goes. mode: permission bits; None keeps those of an existing file."""

    path: str
    mode: int | None = None
    owner: str | None = None
    group: str | None = None


def parse_metadata(raw: bytes) -> FileMetadata:
    """Read a metadata part. Raises InvalidFileMetadataError naming the field."""
    try:
        document = parse_json(raw)
    except ExecdError as error:
        raise InvalidFileMetadataError(f"metadata: {error.message}") from error
    if not isinstance(document, dict):
        raise InvalidFileMetadataError("metadata: not an object")
    path = _text(document, "path")
    if not path:
        raise InvalidFileMetadataError("path: missing or empty")
    return FileMetadata(
        path,
        parse_mode(document.get("mode")),
        _text(document, "owner") or None,
        _text(document, "group") or None,
    )


def parse_mode(value: Any) -> int | None:
    """Read a decimal number that looks octal: 644 is rw-r--r--. 0 and null give None.

    Of the special bits only sticky is kept. Raises InvalidFileMetadataError.
    """
    if value is None or (value == 0 and not isinstance(value, bool)):
        return None
    if (
        not isinstance(value, int)
        or isinstance(value, bool)
        or not 0 < value <= 7777
        or set(str(value)) & {"8", "9"}
    ):
        raise InvalidFileMetadataError("mode: not permission bits written like 644 or 1777")
    return int(str(value), 8) & _KEPT_MODE_BITS


class UploadTransaction:
    """The files of one request. They appear with `commit`; `abort` leaves everything as it was."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._staged: list[tuple[str, str]] = []
        self._fd: int | None = None
        self._path = ""

    def begin(self, metadata: FileMetadata) -> None:
        """Open a temporary file beside the target. Raises ExecdError."""
        self._path = metadata.path
        try:
            self._open(metadata)
        except ValueError as error:
            raise InvalidFileError(f"path: {error}") from error
        except OSError as error:
            raise error_from_os(error, self._path) from error

    def write(self, data: bytes) -> None:
        """Append to the file begun last. Raises DiskFullError and other ExecdErrors."""
        # In the loop's thread on purpose: the page cache takes a piece of 64 KiB in microseconds, and a thread
        # could not be had in a sandbox at its process limit.
        view = memoryview(data)
        try:
            while view and self._fd is not None:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            raise error_from_os(error, self._path) from error

    def end(self) -> None:
        """Close the file begun last. Raises ExecdError: a file system may report a full disk only here."""
        fd, self._fd = self._fd, None
        try:
            if fd is not None:
                os.close(fd)
        except OSError as error:
            raise error_from_os(error, self._path) from error

    def commit(self) -> None:
        """Put all files in their places, in the order they came. Raises ExecdError; the rest is then dropped."""
        while self._staged:
            temporary, target = self._staged[0]
            try:
                os.replace(temporary, target)
            except OSError as error:
                raise error_from_os(error, target) from error
            del self._staged[0]

    def abort(self) -> None:
        """Drop what was not committed."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        for temporary, _ in self._staged:
            try:
                os.unlink(temporary)
            except OSError:
                continue
        self._staged.clear()

    def _open(self, metadata: FileMetadata) -> None:
        target = metadata.path
        directory, name = os.path.split(target)
        if name in ("", ".", ".."):
            raise InvalidFileError(f"{target}: names a directory")
        existing_mode = _existing_mode(target)
        owner, group = self._owner(metadata)
        os.makedirs(directory or ".", mode=_NEW_DIRECTORY_MODE, exist_ok=True)
        temporary = os.path.join(directory, f".execd-{os.urandom(12).hex()}.part")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(temporary, flags, 0o600)
        self._staged.append((temporary, target))
        if (owner, group) != (-1, -1):
            os.fchown(self._fd, owner, group)
        os.fchmod(self._fd, metadata.mode or existing_mode or _DEFAULT_MODE)

    def _owner(self, metadata: FileMetadata) -> tuple[int, int]:
        owner = -1 if metadata.owner is None else self._accounts.user_id(metadata.owner)
        if owner is None:
            raise InvalidFileMetadataError(f"owner: no user {metadata.owner}")
        group = -1 if metadata.group is None else self._accounts.group_id(metadata.group)
        if group is None:
            raise InvalidFileMetadataError(f"group: no group {metadata.group}")
        return owner, group


def _existing_mode(target: str) -> int | None:
    """Give the mode of the file at target, None if there is none. Raises InvalidFileError for other kinds.

    A link to a file, or to nothing, is replaced and not followed: someone else in the sandbox may have set it.
    """
    try:
        mode = os.stat(target).st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        raise InvalidFileError(f"{target}: exists and is not a regular file")
    return stat.S_IMODE(mode) & _KEPT_MODE_BITS


def _text(document: dict[str, Any], name: str) -> str:
    value = document.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidFileMetadataError(f"{name}: not a string")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidFileMetadataError(f"{name}: holds a lone surrogate") from error
    if "\0" in value:
        raise InvalidFileMetadataError(f"{name}: holds a NUL character")
    return value
