"""Reading what file and directory routes are asked for. Strict: unknown fields and wrong types are refused by name."""

from typing import Any, Final, NamedTuple

from execd.errors import InvalidBodyError, InvalidFileMetadataError
from execd.fields import checked_text, printable
from execd.requests import parse_json

__all__ = [
    "FileMetadata",
    "Move",
    "Permission",
    "Replacement",
    "parse_metadata",
    "parse_mode",
    "parse_moves",
    "parse_permissions",
    "parse_replacements",
]

MAX_METADATA_BYTES: Final = 32 * 1024
_MAX_NAME_LENGTH: Final = 256
KEPT_MODE_BITS: Final = 0o1777
"""Set-user-id and set-group-id never come from outside."""


class Permission(NamedTuple):
    """What a file or directory gets; None leaves it. mode: permission bits. owner, group: name or decimal number."""

    mode: int | None = None
    owner: str | None = None
    group: str | None = None


class FileMetadata(NamedTuple):
    """Where an uploaded file goes."""

    path: str
    permission: Permission = Permission()


class Move(NamedTuple):
    """One file or directory to be renamed."""

    src: str
    dest: str


class Replacement(NamedTuple):
    """Bytes to look for, at least one, and those to put in their place."""

    old: bytes
    new: bytes


def parse_metadata(raw: bytes) -> FileMetadata:
    """Read a metadata part. Raises InvalidFileMetadataError naming the field."""
    try:
        document = _object("metadata", parse_json(raw), ("path", "mode", "owner", "group"))
        return FileMetadata(_path("path", document.get("path")), _permission("", document))
    except InvalidBodyError as error:
        raise InvalidFileMetadataError(f"metadata: {error.message}") from error


def parse_permissions(body: bytes) -> dict[str, Permission]:
    """Read a map of path to {mode?, owner?, group?}. Raises InvalidBodyError naming the field."""
    found = {}
    for path, value in _paths(body).items():
        item = _object(printable(path), {} if value is None else value, ("mode", "owner", "group"))
        found[path] = _permission(f"{printable(path)}.", item)
    return found


def parse_moves(body: bytes) -> list[Move]:
    """Read an array of {src, dest}. Raises InvalidBodyError naming the field."""
    document = parse_json(body)
    if not isinstance(document, list):
        raise InvalidBodyError("the body is not an array")
    moves = []
    for index, value in enumerate(document):
        item = _object(f"[{index}]", value, ("src", "dest"))
        moves.append(
            Move(_path(f"[{index}].src", item.get("src")), _path(f"[{index}].dest", item.get("dest")))
        )
    return moves


def parse_replacements(body: bytes) -> dict[str, Replacement]:
    """Read a map of path to {old, new}. Raises InvalidBodyError naming the field."""
    found = {}
    for path, value in _paths(body).items():
        name = printable(path)
        item = _object(name, value, ("old", "new"))
        old, new = _text(f"{name}.old", item.get("old")), _text(f"{name}.new", item.get("new"))
        if not old:
            raise InvalidBodyError(f"{name}.old: missing or empty")
        if new is None:
            raise InvalidBodyError(f"{name}.new: missing")
        found[path] = Replacement(old.encode(), new.encode())
    return found


def parse_mode(name: str, value: Any) -> int | None:
    """Read a decimal number that looks octal: 644 is rw-r--r--. 0 and null give None.

    Of the special bits only sticky is kept. Raises InvalidBodyError.
    """
    if value is None or (value == 0 and not isinstance(value, bool)):
        return None
    if (
        not isinstance(value, int)
        or isinstance(value, bool)
        or not 0 < value <= 7777
        or set(str(value)) & {"8", "9"}
    ):
        raise InvalidBodyError(f"{name}: not permission bits written like 644 or 1777")
    return int(str(value), 8) & KEPT_MODE_BITS


def _permission(prefix: str, item: dict[str, Any]) -> Permission:
    return Permission(
        parse_mode(f"{prefix}mode", item.get("mode")),
        _name(f"{prefix}owner", item.get("owner")),
        _name(f"{prefix}group", item.get("group")),
    )


def _paths(body: bytes) -> dict[str, Any]:
    document = parse_json(body)
    if not isinstance(document, dict):
        raise InvalidBodyError("the body is not an object")
    for path in document:
        _path(f"path {printable(path)!r}", path)
    return document


def _object(name: str, value: Any, fields: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidBodyError(f"{name}: not an object")
    for key in value:
        if key not in fields:
            raise InvalidBodyError(f"{name}: unknown field {printable(key)}; there are {', '.join(fields)}")
    return value


def _path(name: str, value: Any) -> str:
    path = _text(name, value)
    if not path:
        raise InvalidBodyError(f"{name}: missing or empty")
    if "\0" in path:
        raise InvalidBodyError(f"{name}: holds a NUL character")
    return path


def _name(name: str, value: Any) -> str | None:
    text = _text(name, value) or None
    if text is not None and ("\0" in text or len(text) > _MAX_NAME_LENGTH):
        raise InvalidBodyError(f"{name}: not the name or number of an account")
    return text


def _text(name: str, value: Any) -> str | None:
    return None if value is None else checked_text(name, value)
