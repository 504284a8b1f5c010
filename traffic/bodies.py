"""Bodies of HTTP/1.1 messages: where they end, and their content as it comes."""

import re
from collections.abc import Callable
from typing import Final

from traffic.errors import MessageError
from traffic.heads import Headers, RequestHead, ResponseHead, parse_headers, values_of
from traffic.streams import Stream

__all__ = [
    "CHUNKED",
    "UNTIL_CLOSE",
    "BodyReader",
    "BodyWriter",
    "Framing",
    "request_framing",
    "response_framing",
]

Framing = int | str
"""The length of a body, or CHUNKED, or UNTIL_CLOSE."""

CHUNKED: Final = "chunked"
UNTIL_CLOSE: Final = "until close"

_LENGTH: Final = re.compile(rb"[0-9]{1,18}")
_CHUNK: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?")
_MAX_LINE_BYTES: Final = 4 << 10
_MAX_TRAILER_BYTES: Final = 16 << 10


def request_framing(head: RequestHead) -> Framing:
    """Say how the body of a request is framed. Raises MessageError for what could be read in two ways."""
    return _declared(head.version, head.headers, without=0)


def response_framing(head: ResponseHead, *, method: bytes) -> Framing:
    """The same for a response to a request of this method."""
    declared = _declared(head.version, head.headers, without=UNTIL_CLOSE)
    if method == b"HEAD" or head.status in (204, 304) or head.status < 200:
        return 0
    return declared


def _declared(version: int, headers: Headers, *, without: Framing) -> Framing:
    codings = values_of(headers, b"transfer-encoding")
    lengths = values_of(headers, b"content-length")
    if codings:
        if lengths:
            raise MessageError("Content-Length and Transfer-Encoding exclude each other")
        if version < 11:
            raise MessageError("Transfer-Encoding is not known to HTTP/1.0")
        if len(codings) > 1:
            raise MessageError("Transfer-Encoding is repeated")
        if codings[0].lower() != b"chunked":
            raise MessageError("Transfer-Encoding: only chunked is taken", status=501)
        return CHUNKED
    if not lengths:
        return without
    if len(lengths) > 1 or not _LENGTH.fullmatch(lengths[0]):
        raise MessageError("Content-Length is repeated, or no number")
    return int(lengths[0])


class BodyReader:
    """Reads one body from a stream. What comes after it is left to be read. trailers: known once is_complete."""

    def __init__(self, stream: Stream, framing: Framing) -> None:
        self.framing = framing
        self.is_complete = framing == 0
        self.trailers: Headers = []
        self._stream = stream
        self._remaining = framing if isinstance(framing, int) else 0
        self._line = b""
        self._take_line: Callable[[bytes], None] = self._take_size
        self._trailer_lines: list[bytes] = []
        self._trailer_bytes = 0

    def at_hand(self) -> bytes:
        """Give what content has come already, which may be none. Raises MessageError."""
        if self.is_complete or not self._stream.has_data:
            return b""
        data = self._stream.take()
        if self.framing == UNTIL_CLOSE:
            return data
        if self.framing == CHUNKED:
            return self._unchunk(data)
        content, rest = data[: self._remaining], data[self._remaining :]
        self._remaining -= len(content)
        self.is_complete = not self._remaining
        if rest:
            self._stream.push_back(rest)
        return content

    async def read(self) -> bytes:
        """Give content as it comes; empty only at the end of the body. Raises MessageError."""
        while not self.is_complete:
            if not await self._stream.wait():
                if self.framing != UNTIL_CLOSE or self._stream.is_broken:
                    raise MessageError("the body breaks off")
                self.is_complete = True
            elif content := self.at_hand():
                return content
        return b""

    def _unchunk(self, data: bytes) -> bytes:
        parts: list[bytes] = []
        position = 0
        while position < len(data) and not self.is_complete:
            if self._remaining:
                part = data[position : position + self._remaining]
                parts.append(part)
                position += len(part)
                self._remaining -= len(part)
                continue
            newline = data.find(b"\n", position)
            stop = len(data) if newline < 0 else newline + 1
            self._line += data[position:stop]
            position = stop
            if len(self._line) > _MAX_LINE_BYTES:
                raise MessageError("a line between the chunks of the body is too long")
            if newline >= 0:
                line, self._line = self._line, b""
                if not line.endswith(b"\r\n"):
                    raise MessageError("a line between the chunks of the body ends in other than CR and LF")
                self._take_line(line[:-2])
        if position < len(data):
            self._stream.push_back(data[position:])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _take_size(self, line: bytes) -> None:
        match = _CHUNK.fullmatch(line)
        if match is None:
            raise MessageError("a chunk of the body has no size")
        self._remaining = int(match[1], 16)
        self._take_line = self._take_end if self._remaining else self._take_trailer

    def _take_end(self, line: bytes) -> None:
        if line:
            raise MessageError("a chunk of the body is longer than its size")
        self._take_line = self._take_size

    def _take_trailer(self, line: bytes) -> None:
        if line:
            self._trailer_bytes += len(line)
            if self._trailer_bytes > _MAX_TRAILER_BYTES:
                raise MessageError("the trailers of the body are too large")
            self._trailer_lines.append(line)
            return
        self.trailers = parse_headers(self._trailer_lines)
        self.is_complete = True


class BodyWriter:
    """Frames one body for its reader."""

    def __init__(self, *, is_chunked: bool) -> None:
        self._is_chunked = is_chunked

    def frame(self, content: bytes) -> bytes:
        """Give the bytes for some content, which may be none."""
        return b"%x\r\n%b\r\n" % (len(content), content) if content and self._is_chunked else content

    def end(self, trailers: Headers) -> bytes:
        """Give the bytes that end the body. trailers: sent with chunks only."""
        if not self._is_chunked:
            return b""
        return b"".join([b"0\r\n", *[b"%b: %b\r\n" % trailer for trailer in trailers], b"\r\n"])
