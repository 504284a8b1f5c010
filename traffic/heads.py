"""Heads of HTTP/1.1 messages, read strictly: what two readers could take for different things is refused.

Names and values are bytes, kept as they were written, in order, repetitions included.
"""

import re
from dataclasses import dataclass
from typing import Final

from traffic.errors import BackendError, MessageError
from traffic.streams import Stream

__all__ = [
    "MAX_HEAD_BYTES",
    "Headers",
    "RequestHead",
    "ResponseHead",
    "format_head",
    "has_token",
    "keeps_alive",
    "parse_headers",
    "parse_request",
    "read_request",
    "read_response",
    "values_of",
]

Headers = list[tuple[bytes, bytes]]

MAX_HEAD_BYTES: Final = 64 << 10
MAX_HEADERS: Final = 256

_TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_REQUEST_LINE: Final = re.compile(rb"(%b) ([\x21-\x7e\x80-\xff]+) HTTP/1\.([01])" % _TOKEN)
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*))?")
_HEADER: Final = re.compile(rb"(%b):[ \t]*([\t\x20-\x7e\x80-\xff]*)" % _TOKEN)
_BARE: Final = re.compile(rb"(?<!\r)\n|\r(?!\n|\Z)|\0")
_UNSAFE: Final = re.compile(rb"[\r\n\0]")
_END: Final = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class RequestHead:
    """version: 10 or 11."""

    method: bytes
    target: bytes
    version: int
    headers: Headers


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """version: 10 or 11. reason: may be empty."""

    status: int
    reason: bytes
    version: int
    headers: Headers


async def read_request(stream: Stream) -> RequestHead | None:
    """Give the next head; None if the connection ends before one begins. Raises MessageError."""
    data = await _read_head(stream)
    return None if data is None else parse_request(data)


def parse_request(data: bytes) -> RequestHead:
    """Read a whole head. data: without the empty line at its end. Raises MessageError."""
    _check_line_ends(data)
    first, *lines = data.split(b"\r\n")
    match = _REQUEST_LINE.fullmatch(first)
    if match is None:
        raise MessageError("the request line is broken, or not HTTP/1.1")
    return RequestHead(match[1], match[2], 10 + int(match[3]), parse_headers(lines))


async def read_response(stream: Stream) -> ResponseHead:
    """Give the next head. Raises BackendError."""
    try:
        data = await _read_head(stream)
        if data is None:
            raise BackendError("the connection was closed before an answer")
        first, *lines = data.split(b"\r\n")
        match = _STATUS_LINE.fullmatch(first)
        if match is None:
            raise BackendError("the answer is no HTTP/1.1")
        return ResponseHead(int(match[2]), match[3] or b"", 10 + int(match[1]), parse_headers(lines))
    except MessageError as error:
        raise BackendError(f"the answer is broken: {error.message}") from error


def parse_headers(lines: list[bytes]) -> Headers:
    """Read header lines without their ends. Raises MessageError."""
    if len(lines) > MAX_HEADERS:
        raise MessageError(f"more than {MAX_HEADERS} headers", status=431)
    headers = []
    for line in lines:
        match = _HEADER.fullmatch(line)
        if match is None:
            shown = line[:40].decode("ascii", "replace")
            folded = ": it goes on in a second line" if line[:1] in (b" ", b"\t") else ""
            raise MessageError(f"the header {shown!r} is broken{folded}")
        headers.append((match[1], match[2].rstrip(b" \t")))
    return headers


def format_head(first_line: bytes, headers: Headers) -> bytes:
    """Write a head. Raises ValueError for what would be read as more than it is."""
    lines = [first_line, *[b"%b: %b" % header for header in headers]]
    if any(_UNSAFE.search(line) for line in lines):
        raise ValueError("a line of a head holds a line end")
    return b"\r\n".join([*lines, b"", b""])


def keeps_alive(head: RequestHead | ResponseHead) -> bool:
    """Say whether the sender's connection may go on after this exchange. HTTP/1.0 asks for that in vain."""
    return head.version >= 11 and not has_token(head.headers, b"connection", b"close")


def values_of(headers: Headers, name: bytes) -> list[bytes]:
    """Give all values of a header, in order. name: in lower case."""
    return [value for key, value in headers if key.lower() == name]


def has_token(headers: Headers, name: bytes, token: bytes) -> bool:
    """Say whether a comma separated header holds a token, whatever its case and parameters."""
    return any(
        item.split(b";")[0].strip(b" \t").lower() == token
        for value in values_of(headers, name)
        for item in value.split(b",")
    )


async def _read_head(stream: Stream) -> bytes | None:
    """Give a head without the empty line at its end; what follows it is left to be read. Raises MessageError."""
    data = await stream.read()
    # One empty line before a request is overlooked, as RFC 9112 section 2.2 has it.
    if data == b"\r":
        data += await stream.read()
    if data.startswith(b"\r\n"):
        data = data[2:] or await stream.read()
    while True:
        if not data:
            return None
        end = data.find(_END)
        head = data if end < 0 else data[:end]
        _check_line_ends(head)
        if len(head) > MAX_HEAD_BYTES:
            raise MessageError(f"the head is larger than {MAX_HEAD_BYTES >> 10} KiB", status=431)
        if end >= 0:
            if len(data) > end + len(_END):
                stream.push_back(data[end + len(_END) :])
            return head
        more = await stream.read()
        if not more:
            raise MessageError("the head breaks off")
        data += more


def _check_line_ends(head: bytes) -> None:
    if _BARE.search(head):
        raise MessageError("a line of the head ends in other than CR and LF")
