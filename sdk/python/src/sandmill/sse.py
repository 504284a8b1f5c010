"""Reads a stream of server-sent events: https://html.spec.whatwg.org/multipage/server-sent-events.html."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sandmill.errors import ProtocolError

__all__ = ["ServerEvent", "parse_events"]

MAX_EVENT_BYTES = 8 << 20
"""A log chunk has at most 64 KiB; what never ends must not fill the memory."""


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event. id: the last one the stream gave, "" before any."""

    name: str
    data: str
    id: str


def parse_events(pieces: Iterable[bytes]) -> Iterator[ServerEvent]:
    """Give each event when its blank line has come; an unfinished one at the end is dropped.

    pieces: the body as it arrives, cut anywhere. Raises ProtocolError for an event larger than 8 MiB.
    """
    name, last_id = "message", ""
    data: list[str] = []
    size = 0
    for line in _lines(pieces):
        if not line:
            if data:
                yield ServerEvent(name, "\n".join(data), last_id)
            name, data, size = "message", [], 0
            continue
        key, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if key == "data":
            data.append(value)
            size += len(value)
            _check_size(size)
        elif key == "event":
            name = value
        elif key == "id" and "\0" not in value:
            last_id = value


def _lines(pieces: Iterable[bytes]) -> Iterator[str]:
    """Split at LF, CRLF and CR, also when a CRLF is cut in two."""
    rest = bytearray()
    after_cr = False
    is_first = True
    for piece in filter(None, pieces):
        rest += piece[1:] if after_cr and piece.startswith(b"\n") else piece
        after_cr = piece.endswith(b"\r")
        # One CR or LF is the usual case of a piece that completes a line; without any there is nothing to split.
        if b"\n" not in piece and b"\r" not in piece:
            _check_size(len(rest))
            continue
        *lines, tail = bytes(rest).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        rest = bytearray(tail)
        for line in lines:
            text = line.decode("utf-8", "replace")
            yield text.removeprefix("\ufeff") if is_first else text
            is_first = False


def _check_size(size: int) -> None:
    if size > MAX_EVENT_BYTES:
        raise ProtocolError(f"the log stream holds an event larger than {MAX_EVENT_BYTES} bytes")
