"""The event stream: frames, and the cutting of output into events.

A frame is one bare JSON object on a line, ended by a blank line; there is no `data:` prefix.
"""

import json
import time
from base64 import b64encode
from json.encoder import encode_basestring_ascii
from typing import Any, Final

__all__ = ["MAX_EVENT_BYTES", "LineCutter", "frame", "now_ms", "output_frames"]

MAX_EVENT_BYTES: Final = 64 * 1024
"""A line longer than this becomes several events, so that memory does not depend on the program's manners."""

_LONGEST_UTF8: Final = 4


def now_ms() -> int:
    """Milliseconds of Unix time, as events carry them."""
    return time.time_ns() // 1_000_000


def frame(kind: str, **fields: Any) -> bytes:
    """One event as bytes. Fields follow `type`; `timestamp` is now."""
    event = {"type": kind, **fields, "timestamp": now_ms()}
    return json.dumps(event, separators=(",", ":")).encode("ascii") + b"\n\n"


def output_frames(stream: str, pieces: list[bytes]) -> bytes:
    """Events of `stream` ("stdout" or "stderr"), one per piece, joined for one write.

    A piece that is not UTF-8 has U+FFFD in `text` and its exact bytes in `b64`.
    """
    # This is the hot path of every log line: the object is put together by hand around the C string encoder.
    head = f'{{"type":"{stream}","text":'
    tail = f',"timestamp":{now_ms()}}}\n\n'
    frames = []
    for piece in pieces:
        try:
            frames.append(f"{head}{encode_basestring_ascii(piece.decode())}{tail}")
        except UnicodeDecodeError:
            text = encode_basestring_ascii(piece.decode("utf-8", "replace"))
            frames.append(f'{head}{text},"b64":"{b64encode(piece).decode("ascii")}"{tail}')
    return "".join(frames).encode("ascii")


class LineCutter:
    """Cuts a byte stream into event pieces: whole lines with their terminator, or 64 KiB of a longer line.

    strip_newlines: the older form of the protocol, without terminators; CR ends a line too, and an empty line
    is sent as a newline.
    """

    def __init__(self, *, strip_newlines: bool = False) -> None:
        self._strip = strip_newlines
        self._held = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Take what was read, give the pieces it completes; joined, the pieces of a stream are the stream."""
        if self._strip:
            data = bytes(self._held) + data
            self._held.clear()
            # A CR at the very end waits: an LF may follow, and the two are one terminator.
            end = max(data.rfind(b"\n"), data.rfind(b"\r", 0, len(data) - 1)) + 1
        else:
            end = data.rfind(b"\n") + 1
        if not end:
            self._held += data
            return self._cut_held()
        complete = bytes(self._held) + data[:end]
        self._held = bytearray(data[end:])
        return self._split(complete) + self._cut_held()

    def flush(self) -> list[bytes]:
        """Give the unterminated rest at the end of the stream."""
        rest, self._held = bytes(self._held), bytearray()
        return self._split(rest)

    def _split(self, block: bytes) -> list[bytes]:
        if self._strip:
            lines = [line or b"\n" for line in block.splitlines()]
        elif b"\r" in block:  # splitlines would end a line there
            lines = [line + b"\n" for line in block.split(b"\n")]
            lines[-1] = lines[-1][:-1]
            if not lines[-1]:
                lines.pop()
        else:
            lines = block.splitlines(keepends=True)
        if len(block) <= MAX_EVENT_BYTES:
            return lines
        return [piece for line in lines for piece in _limit(line)]

    def _cut_held(self) -> list[bytes]:
        if len(self._held) <= MAX_EVENT_BYTES:
            return []
        *pieces, rest = _limit(bytes(self._held))
        self._held = bytearray(rest)
        return pieces


def _limit(line: bytes) -> list[bytes]:
    """Cut into pieces of at most MAX_EVENT_BYTES without cutting a character in two. At least one piece."""
    pieces = []
    start = 0
    while len(line) - start > MAX_EVENT_BYTES:
        end = _character_boundary(line, start + MAX_EVENT_BYTES)
        pieces.append(line[start:end])
        start = end
    pieces.append(line[start:])
    return pieces


def _character_boundary(line: bytes, end: int) -> int:
    """Move `end` back in front of a character that it would split; bytes that are no UTF-8 do not move it."""
    for back in range(1, _LONGEST_UTF8):
        byte = line[end - back]
        if byte & 0xC0 != 0x80:
            length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return end - back if length > back else end
    return end
