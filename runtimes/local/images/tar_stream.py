"""Reads tar archives from people who may be hostile: front to back, in constant memory.

Not tarfile: it takes extended headers of any size into memory, parses them by an expression that is quadratic in
Python 3.11 before 3.11.10, calls itself for each header in a row, and keeps every member. What is read here is what
image builders write: ustar, GNU long names, and pax; sparse files are refused.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from core.errors import BadImageError

__all__ = ["ByteSource", "TarEntry", "TarKind", "TarReader"]

BLOCK = 512
MAX_HEADER_BYTES = 1 << 20
"""Of one extended header. Names end at 4 KiB; what else is in there is extended attributes of at most 64 KiB each."""

MAX_HEADERS_IN_A_ROW = 16
_CHUNK = 1 << 18
_MAX_TIME = 1 << 34
"""Seconds from 1970 that file systems can store."""

_SUM_FIELD = slice(148, 156)


class ByteSource(Protocol):
    """What gives bytes: at most size of them, none at the end."""

    def read(self, size: int, /) -> bytes:
        """Read on."""


class TarKind(Enum):
    """What an entry is."""

    FILE = "file"
    FOLDER = "folder"
    SYMLINK = "symbolic link"
    HARDLINK = "hard link"
    SPECIAL = "device or FIFO"


_KINDS = {
    b"0": TarKind.FILE,
    b"\0": TarKind.FILE,
    b"7": TarKind.FILE,
    b"1": TarKind.HARDLINK,
    b"2": TarKind.SYMLINK,
    b"3": TarKind.SPECIAL,
    b"4": TarKind.SPECIAL,
    b"5": TarKind.FOLDER,
    b"6": TarKind.SPECIAL,
}


@dataclass(slots=True)
class TarEntry:
    """One entry, as written: nothing is checked but the form. name, link: bytes as in the archive.

    size: of a file's content, else 0. mode: permission bits, up to 0o7777. has_attributes: extended ones are set.
    """

    name: bytes
    kind: TarKind
    mode: int
    uid: int
    gid: int
    size: int
    mtime: float
    link: bytes
    has_attributes: bool = False


class TarReader:
    """Iterate over the entries once; the content of the entry at hand comes from `content`."""

    def __init__(self, source: ByteSource, *, skip: Callable[[int], object] | None = None) -> None:
        """source: the unpacked archive from its first byte; stays the caller's to close.

        skip: passes over so many bytes faster than reading does; the caller checks that they are there.
        """
        self._source = source
        self._skip = skip
        self._left = 0
        self._padding = 0
        self._defaults: dict[bytes, bytes] = {}

    def __iter__(self) -> Iterator[TarEntry]:
        """Give the entries in order; what is not read of a file is passed over.

        Raises BadImageError where the archive is cut short or is none.
        """
        while (entry := self._next()) is not None:
            yield entry

    def content(self) -> Iterator[bytes]:
        """Give the content of the file at hand in pieces of up to 256 KiB."""
        while self._left:
            piece = self._source.read(min(self._left, _CHUNK))
            if not piece:
                raise BadImageError("the archive is cut short, in the middle of a file")
            self._left -= len(piece)
            yield piece

    def _next(self) -> TarEntry | None:
        """Read headers up to that of an entry; None at the end of the archive."""
        extended: dict[bytes, bytes] = {}
        for _ in range(MAX_HEADERS_IN_A_ROW):
            self._skip_rest()
            block = self._block()
            if block is None:
                return None
            kind = block[156:157]
            if kind in (b"x", b"X"):
                extended.update(_parse_pax(self._extension(block)))
            elif kind == b"g":
                self._keep_defaults(_parse_pax(self._extension(block)))
            elif kind in (b"L", b"K"):
                text = self._extension(block).rstrip(b"\0")
                extended.setdefault(b"path" if kind == b"L" else b"linkpath", text)
            elif kind == b"V":
                self._begin(_number(block[124:136], "size"))
            else:
                return self._entry(block, {**self._defaults, **extended})
        raise BadImageError("the archive has too many extended headers in a row")

    def _entry(self, block: bytes, extended: dict[bytes, bytes]) -> TarEntry:
        kind = _KINDS.get(block[156:157])
        if kind is None or any(key.startswith(b"GNU.sparse") for key in extended):
            what = "a sparse file" if kind or block[156:157] == b"S" else f"of type {block[156:157]!r}"
            raise BadImageError(f"an entry of the archive is {what}: write it anew with plain `tar -c`")
        name, magic = _text(block[:100]), block[257:265]
        if magic.startswith(b"ustar\0") and (prefix := _text(block[345:500])):
            name = prefix + b"/" + name
        name = extended.get(b"path", name)
        if kind is TarKind.FILE and block[156:157] == b"\0" and name.endswith(b"/"):
            kind = TarKind.FOLDER  # how archives were written before there was a type for folders
        size = _pax_number(extended, b"size") if b"size" in extended else _number(block[124:136], "size")
        self._begin(size if kind is TarKind.FILE else 0)
        return TarEntry(
            name=name,
            kind=kind,
            mode=_number(block[100:108], "mode") & 0o7777,
            uid=_pax_number(extended, b"uid") if b"uid" in extended else _number(block[108:116], "uid"),
            gid=_pax_number(extended, b"gid") if b"gid" in extended else _number(block[116:124], "gid"),
            size=self._left,
            mtime=_pax_time(extended[b"mtime"])
            if b"mtime" in extended
            else min(_number(block[136:148], "mtime"), _MAX_TIME),
            link=extended.get(b"linkpath", _text(block[157:257])),
            has_attributes=any(key.startswith((b"SCHILY.xattr.", b"LIBARCHIVE.xattr.")) for key in extended),
        )

    def _block(self) -> bytes | None:
        """Read one header; None at the two empty blocks that end an archive, or at its end without them."""
        block = self._exactly(BLOCK, at_end=True)
        if block is None or block == bytes(BLOCK):
            return None
        # The checksum counts its own field as blanks.
        if _number(block[_SUM_FIELD], "checksum") != sum(block) - sum(block[_SUM_FIELD]) + 8 * 0x20:
            raise BadImageError("the archive is damaged or no tar: the checksum of a header is wrong")
        return block

    def _extension(self, block: bytes) -> bytes:
        size = _number(block[124:136], "size")
        if size > MAX_HEADER_BYTES:
            raise BadImageError(
                f"an extended header of the archive is {size} bytes, at most {MAX_HEADER_BYTES} are read"
            )
        self._begin(size)
        return b"".join(self.content())

    def _keep_defaults(self, values: dict[bytes, bytes]) -> None:
        self._defaults.update(values)
        if sum(len(key) + len(value) for key, value in self._defaults.items()) > MAX_HEADER_BYTES:
            raise BadImageError("the global headers of the archive are too large")

    def _begin(self, size: int) -> None:
        self._left, self._padding = size, -size % BLOCK

    def _skip_rest(self) -> None:
        if self._skip:
            self._skip(self._left)
            self._left = 0
        for _ in self.content():
            pass
        if self._padding:
            self._exactly(self._padding)
            self._padding = 0

    def _exactly(self, size: int, *, at_end: bool = False) -> bytes | None:
        data = self._source.read(size)
        while 0 < len(data) < size and (more := self._source.read(size - len(data))):
            data += more
        if not data and at_end:
            return None
        if len(data) < size:
            raise BadImageError("the archive is cut short or is no tar")
        return data


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _number(field: bytes, what: str) -> int:
    """Read octal digits, or GNU's form for large numbers: the top bit set, then the number itself."""
    if field[0] == 0x80:
        value = int.from_bytes(field[1:], "big")
        if value >= 1 << 62:
            raise BadImageError(f"the {what} in a header of the archive is not a possible one")
        return value
    if field[0] == 0xFF and what == "mtime":
        return max(int.from_bytes(field, "big", signed=True), -_MAX_TIME)
    digits = field.partition(b"\0")[0].strip()
    if digits.strip(b"01234567"):
        raise BadImageError(f"the {what} in a header of the archive is no number, or a negative one")
    return int(digits or b"0", 8)


def _parse_pax(data: bytes) -> dict[bytes, bytes]:
    """Read records, each of its own length, a blank, `key=value` and a newline."""
    records: dict[bytes, bytes] = {}
    at = 0
    while at < len(data):
        blank = data.find(b" ", at, at + 20)
        digits = data[at:blank]
        end = at + int(digits) if blank > 0 and digits.isdigit() else 0
        key, equals, value = data[blank + 1 : end - 1].partition(b"=")
        if not blank < end <= len(data) or data[end - 1 : end] != b"\n" or not equals:
            raise BadImageError("an extended header of the archive is damaged")
        records[key] = value
        at = end
    return records


def _pax_number(records: dict[bytes, bytes], key: bytes) -> int:
    text = records[key]
    if not text.isdigit() or len(text) > 18:
        raise BadImageError(
            f"{key.decode()} in an extended header of the archive is no number, or a negative one"
        )
    return int(text)


def _pax_time(text: bytes) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not abs(seconds) < _MAX_TIME:
        raise BadImageError("mtime in an extended header of the archive is no possible time")
    return seconds
