"""A streaming parser of multipart bodies (RFC 2046, RFC 7578); knows no I/O."""

import re
from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple

__all__ = ["BrokenMultipartError", "MultipartParser", "PartBegin", "PartData", "PartEnd", "boundary_of"]

MAX_PART_HEADER_BYTES: Final = 16 * 1024
_MAX_BOUNDARY_BYTES: Final = 200
_MAX_PREAMBLE_BYTES: Final = 64 * 1024
_MAX_PADDING_BYTES: Final = 100

_PARAMETER = re.compile(r';\s*([!#$%&\'*+.^_`|~0-9A-Za-z-]+)\s*=\s*("(?:[^"\\]|\\.)*"|[^;\s"]+)', re.DOTALL)


class BrokenMultipartError(ValueError):
    """The body is not a multipart body of this boundary, or a part's header passes 16 KiB."""


class PartBegin(NamedTuple):
    """A part begins. name and filename come from Content-Disposition; filename is None for a plain field."""

    name: str
    filename: str | None
    headers: dict[str, str]


class PartData(NamedTuple):
    """Some of the part's bytes; a view is good until the parser is fed again."""

    data: bytes | memoryview


class PartEnd:
    """The part is complete."""


class _State(Enum):
    PREAMBLE = 1
    AFTER_DELIMITER = 2
    HEADER = 3
    DATA = 4
    EPILOGUE = 5


def boundary_of(content_type: str | None) -> bytes:
    """Give the boundary of a multipart/form-data content type. Raises BrokenMultipartError."""
    kind, separator, _ = (content_type or "").partition(";")
    if kind.strip().lower() != "multipart/form-data" or not separator:
        raise BrokenMultipartError("the content type is not multipart/form-data with a boundary")
    boundary = _parameters((content_type or "")[len(kind) :]).get("boundary", "")
    encoded = boundary.encode("latin-1", "replace")
    if not encoded or len(encoded) > _MAX_BOUNDARY_BYTES or b"\r" in encoded or b"\n" in encoded:
        raise BrokenMultipartError("the multipart boundary is missing or unusable")
    return encoded


class MultipartParser:
    """Feed it the body in pieces of any size; it holds no more than a part's header and a delimiter."""

    def __init__(self, boundary: bytes) -> None:
        self._delimiter = b"\r\n--" + boundary
        # The first delimiter may stand at the very beginning, without a line end before it.
        self._buffer = bytearray(b"\r\n")
        self._state = _State.PREAMBLE
        self._skipped = 0

    def feed(
        self, data: bytes | bytearray, start: int = 0, end: int | None = None
    ) -> Iterator[PartBegin | PartData | PartEnd]:
        """Take bytes start to end, give what they complete; to be iterated to its end. Raises BrokenMultipartError."""
        view = memoryview(data)[start:end]
        if self._state is _State.DATA and len(view) > len(self._delimiter):
            start, end = self._plain_range(data, start, start + len(view))
            if end > start:
                if self._buffer:
                    yield PartData(bytes(self._buffer))
                    self._buffer.clear()
                yield PartData(memoryview(data)[start:end])
                view = view[end - start :]
        yield from self._take(view)

    def _take(self, data: memoryview) -> Iterator[PartBegin | PartData | PartEnd]:
        self._buffer += data
        while True:
            before = (self._state, len(self._buffer))
            match self._state:
                case _State.PREAMBLE:
                    self._skip_preamble()
                case _State.AFTER_DELIMITER:
                    self._read_delimiter_line()
                case _State.HEADER:
                    begin = self._read_header()
                    if begin is not None:
                        yield begin
                case _State.DATA:
                    yield from self._read_data()
                case _State.EPILOGUE:
                    self._buffer.clear()
            if before == (self._state, len(self._buffer)):
                return

    def _plain_range(self, data: bytes | bytearray, start: int, end: int) -> tuple[int, int]:
        """Give the range from start on that is surely content, with all that is held back; else an empty one.

        Spares most bytes of a large part the way through the buffer.
        """
        seam = self._buffer + data[start : start + len(self._delimiter)]
        if self._delimiter in seam:
            return start, start
        found = data.find(self._delimiter, start, end)
        return start, found if found >= 0 else end - len(self._delimiter)

    def close(self) -> None:
        """Say that the body has ended. Raises BrokenMultipartError if the closing delimiter has not come."""
        if self._state is not _State.EPILOGUE:
            raise BrokenMultipartError("the multipart body ends before its closing delimiter")

    def _skip_preamble(self) -> None:
        start = self._buffer.find(self._delimiter)
        if start >= 0:
            del self._buffer[: start + len(self._delimiter)]
            self._state = _State.AFTER_DELIMITER
            return
        surplus = len(self._buffer) - len(self._delimiter)
        if surplus > 0:
            self._skipped += surplus
            del self._buffer[:surplus]
        if self._skipped > _MAX_PREAMBLE_BYTES:
            raise BrokenMultipartError("the multipart body does not begin with its boundary")

    def _read_delimiter_line(self) -> None:
        if len(self._buffer) < 2:
            return
        if self._buffer.startswith(b"--"):
            self._state = _State.EPILOGUE
            return
        end = self._buffer.find(b"\r\n")
        padding = self._buffer if end < 0 else self._buffer[:end]
        if padding.strip(b" \t\r") or len(padding) > _MAX_PADDING_BYTES:
            raise BrokenMultipartError("text follows a multipart boundary")
        if end >= 0:
            # The line end stays: a part without any header begins with an empty line.
            del self._buffer[:end]
            self._state = _State.HEADER

    def _read_header(self) -> PartBegin | None:
        end = self._buffer.find(b"\r\n\r\n")
        if end > MAX_PART_HEADER_BYTES or (end < 0 and len(self._buffer) > MAX_PART_HEADER_BYTES + 4):
            raise BrokenMultipartError("the header of a part is too long")
        if end < 0:
            return None
        header = bytes(self._buffer[2:end])
        del self._buffer[: end + 4]
        self._state = _State.DATA
        return _part_begin(header)

    def _read_data(self) -> Iterator[PartData | PartEnd]:
        end = self._buffer.find(self._delimiter)
        # Without a delimiter all but a possible beginning of one can go.
        size = end if end >= 0 else len(self._buffer) - len(self._delimiter)
        if size > 0:
            data = bytes(self._buffer[:size])
            del self._buffer[:size]
            yield PartData(data)
        if end >= 0:
            del self._buffer[: len(self._delimiter)]
            self._state = _State.AFTER_DELIMITER
            yield PartEnd()


def _part_begin(header: bytes) -> PartBegin:
    headers: dict[str, str] = {}
    for line in header.decode("utf-8", "surrogateescape").split("\r\n"):
        name, separator, value = line.partition(":")
        if line and not separator:
            raise BrokenMultipartError("a header line of a part has no colon")
        if line:
            headers[name.strip().lower()] = value.strip()
    kind, _, _ = headers.get("content-disposition", "").partition(";")
    if kind.strip().lower() != "form-data":
        raise BrokenMultipartError("a part has no form-data disposition")
    parameters = _parameters(headers["content-disposition"][len(kind) :])
    if "name" not in parameters:
        raise BrokenMultipartError("a part has no name")
    return PartBegin(parameters["name"], parameters.get("filename", parameters.get("filename*")), headers)


def _parameters(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for match in _PARAMETER.finditer(text):
        value = match[2]
        if value.startswith('"'):
            value = re.sub(r"\\(.)", r"\1", value[1:-1], flags=re.DOTALL)
        found.setdefault(match[1].lower(), value)
    return found
