"""Large request bodies, received past the HTTP parser into one buffer."""

import asyncio
import os
import re
import socket
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from execd.errors import InvalidBodyError, PayloadTooLargeError, RequestTimeoutError

if TYPE_CHECKING:
    from execd.connection import Connection

__all__ = ["BodyFraming", "RawBody"]

BUFFER_BYTES: Final = 256 * 1024
PAUSE_BYTES: Final = 1024 * 1024
"""After so much of a body others are served."""

_MAX_LINE_BYTES: Final = 4 * 1024
_MAX_TRAILER_BYTES: Final = 16 * 1024
_CHUNK_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\r\n")


class BodyFraming:
    """Finds the content in the bytes of a body. is_complete: its end has come."""

    def __init__(self, length: int | None) -> None:
        """length: of the content; None for a body in chunks."""
        self._is_chunked = length is None
        self._remaining = length or 0
        self._line = b""
        self._line_kind = "size"
        self._trailer_bytes = 0
        self.is_complete = length == 0
        self.end = 0

    def ranges(self, data: bytes | bytearray, size: int) -> Iterator[tuple[int, int]]:
        """Give start and end of each piece of content in the first `size` bytes; `end` is then where the body ended.

        Raises InvalidBodyError.
        """
        position = 0
        while position < size and not self.is_complete:
            if self._remaining:
                taken = min(self._remaining, size - position)
                yield position, position + taken
                position += taken
                self._remaining -= taken
                self.is_complete = not self._remaining and not self._is_chunked
                continue
            newline = data.find(b"\n", position, size)
            stop = size if newline < 0 else newline + 1
            self._line += data[position:stop]
            position = stop
            if len(self._line) > _MAX_LINE_BYTES:
                raise InvalidBodyError("the body is broken: a line between its chunks is too long")
            if newline >= 0:
                line, self._line = self._line, b""
                self._take_line(line)
        self.end = position

    def _take_line(self, line: bytes) -> None:
        """Take a whole line outside of the content."""
        if self._line_kind == "size":
            match = _CHUNK_SIZE.fullmatch(line)
            if match is None:
                raise InvalidBodyError("the body is broken: a chunk has no size")
            self._remaining = int(match[1], 16)
            self._line_kind = "data end" if self._remaining else "trailer"
        elif self._line_kind == "data end":
            if line != b"\r\n":
                raise InvalidBodyError("the body is broken: a chunk is longer than its size")
            self._line_kind = "size"
        else:
            self._trailer_bytes += len(line)
            if self._trailer_bytes > _MAX_TRAILER_BYTES or not line.endswith(b"\r\n"):
                raise InvalidBodyError("the body is broken: its trailer is none")
            self.is_complete = line == b"\r\n"


class RawBody:
    """The body of one request, while it comes. Must be closed.

    The HTTP parser and the stream reader copy each byte several times; an upload spends most of its time there.
    """

    def __init__(self, connection: "Connection", *, length: int | None, max_bytes: int) -> None:
        """Raises PayloadTooLargeError."""
        self.buffer: bytes | bytearray = b""
        self._connection = connection
        self._framing = BodyFraming(length)
        self._max_bytes = max_bytes
        self._received = 0
        self._since_pause = 0
        self._started = time.monotonic()
        self._socket: socket.socket | None = None
        if length is not None and length > max_bytes:
            raise self._too_large()

    @property
    def is_complete(self) -> bool:
        """Whether all of it has been received."""
        return self._framing.is_complete

    async def receive(self) -> list[tuple[int, int]]:
        """Give start and end of pieces of the content in `buffer`, good until the next call.

        Raises PayloadTooLargeError, RequestTimeoutError, InvalidBodyError.
        """
        size = await self._fill()
        ranges = list(self._framing.ranges(self.buffer, size))
        self._received += sum(end - start for start, end in ranges)
        if self._received > self._max_bytes:
            raise self._too_large()
        if self.is_complete:
            self._connection.end_raw_body(bytes(self.buffer[self._framing.end : size]))
        return ranges

    def close(self) -> None:
        """Give the connection back to its reader."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            self._connection.resume_reading()

    async def _fill(self) -> int:
        size = self._receive_at_hand()
        if size is None:
            limits = self._connection.limits
            allowed = limits.body_grace_seconds + self._received / limits.minimum_body_rate
            try:
                async with asyncio.timeout(self._started + allowed - time.monotonic()):
                    size = await self._receive_some()
            except TimeoutError as error:
                raise RequestTimeoutError("the body comes too slowly") from error
        if not size:
            raise InvalidBodyError("the body is broken: it ends too early")
        return size

    def _receive_at_hand(self) -> int | None:
        """Receive what is there, at once; None if there is nothing, or it is time to let others be served."""
        if self._socket is None or not isinstance(self.buffer, bytearray) or self._since_pause >= PAUSE_BYTES:
            return None
        try:
            size = self._socket.recv_into(self.buffer)
        except BlockingIOError:
            return None
        self._since_pause += size
        return size

    async def _receive_some(self) -> int:
        if self._socket is None:
            fd, self.buffer = await self._connection.begin_raw_body()
            # A descriptor of its own: the loop lets no one read from that of a transport.
            self._socket = socket.socket(fileno=os.dup(fd))
            if self.buffer:
                return len(self.buffer)
        if not isinstance(self.buffer, bytearray):
            self.buffer = bytearray(BUFFER_BYTES)
        # Receiving does not wait if there is something: others must be served, too.
        self._since_pause = 0
        await asyncio.sleep(0)
        return await asyncio.get_running_loop().sock_recv_into(self._socket, self.buffer)

    def _too_large(self) -> PayloadTooLargeError:
        return PayloadTooLargeError(f"the body is larger than {self._max_bytes} bytes")
