"""Reading files: whole, a range of bytes, or a window of lines."""

import os
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from execd.errors import BadRangeError, InvalidFileError, error_from_os
from execd.readfile import open_regular

__all__ = ["ByteRange", "Download", "line_window", "parse_range"]

_MAX_UNSIZED_BYTES: Final = 16 * 1024 * 1024
CHUNK_BYTES: Final = 256 * 1024
_RANGE = re.compile(r"bytes=\s*([0-9]{0,18})\s*-\s*([0-9]{0,18})\s*")


class ByteRange(NamedTuple):
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
    """An open regular file. size: bytes that can be read. status: as it was when it was opened."""

    def __init__(self, path: str) -> None:
        """Open without waiting for anything. Raises InvalidFileError for other kinds, and other ExecdErrors."""
        try:
            self._fd, self.status = open_regular(path)
        except ValueError as error:
            raise InvalidFileError(f"path: {error}") from error
        except OSError as error:
            raise error_from_os(error, path) from error
        self._content: bytes | None = None
        self.size = self.status.st_size
        if self.size == 0:
            self._read_unsized(path)

    @property
    def fd(self) -> int | None:
        """Descriptor to read the bytes from; None where they had to be read already."""
        return self._fd if self._content is None else None

    def chunks(self, selected: ByteRange | None = None, *, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
        """Give the bytes. Raises OSError, and EOFError when the file has shrunk meanwhile."""
        position, end = (selected.first, selected.last + 1) if selected is not None else (0, self.size)
        while position < end:
            if self._content is not None:
                data = self._content[position:end]
            else:
                data = os.pread(self._fd, min(chunk_bytes, end - position), position)
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
            while room > 0 and (data := os.read(self._fd, min(room, CHUNK_BYTES))):
                parts.append(data)
                room -= len(data)
        except OSError as error:
            os.close(self._fd)
            raise error_from_os(error, path) from error
        self._content = b"".join(parts)
        self.size = len(self._content)


def line_window(chunks: Iterator[bytes], *, first: int, count: int | None) -> Iterator[bytes]:
    """Give lines `first` (from 1) and on, `count` of them or all, without the line end of the last one.

    Lines end with LF. Pieces are as large as the chunks, however long a line; empty ones are places to pause.
    """
    to_skip = first - 1
    wanted = count
    held = b""  # a line end that is sent only if something follows it
    for chunk in chunks:
        data = chunk
        if to_skip:
            lines = data.split(b"\n", to_skip)
            to_skip -= len(lines) - 1
            data = lines[-1] if not to_skip else b""
        if data and wanted is not None:
            lines = data.split(b"\n", wanted)
            wanted -= len(lines) - 1
            if not wanted:
                yield held + b"\n".join(lines[:-1])
                return
        if data:
            data = held + data
            held = b"\n" if data.endswith(b"\n") else b""
            data = data[: len(data) - len(held)]
        yield data
