"""The event stream: frames, and the cutting of output into events.

A frame is one bare JSON object on a line, ended by a blank line; there is no `data:` prefix.
"""

import json
import time
from base64 import b64encode
from json.encoder import encode_basestring_ascii
from typing import Any, Final

__all__ = ["MAX_EVENT_BYTES", "LineHolder", "frame", "now_ms", "output_frames", "split_lines"]

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


def output_frames(stream: str, lines: list[bytes], offset: int, *, strip_newlines: bool) -> bytes:
    """Events of a stream ("stdout" or "stderr"), one per line, joined for one write.

    offset: in the log, of the first line; they follow each other. strip_newlines: without line ends, as of old.
    A line that is not UTF-8 has U+FFFD in `text` and its exact bytes in `b64`.
    """
    # This is the hot path of every log line: the object is put together by hand around the C string encoder.
    head = f'{{"type":"{stream}","text":'
    tail = f',"timestamp":{now_ms()}}}\n\n'
    frames = []
    for line in lines:
        offset += len(line)
        shown = _without_line_end(line) if strip_newlines else line
        try:
            frames.append(f'{head}{encode_basestring_ascii(shown.decode())},"offset":{offset}{tail}')
        except UnicodeDecodeError:
            text = encode_basestring_ascii(shown.decode("utf-8", "replace"))
            exact = b64encode(shown).decode("ascii")
            frames.append(f'{head}{text},"b64":"{exact}","offset":{offset}{tail}')
    return "".join(frames).encode("ascii")


class LineHolder:
    """Cuts a byte stream into blocks of whole lines, terminators included, or of 64 KiB of a longer line.

    splits_at_cr: CR ends a line, too. held: the beginning of a line that is not complete.
    """

    def __init__(self, *, splits_at_cr: bool = False) -> None:
        self.held = bytearray()
        self._splits_at_cr = splits_at_cr

    def feed(self, data: bytes) -> list[bytes]:
        """Take what was read, give the blocks it completes; joined, the blocks of a stream are the stream."""
        if not self.held and not self._splits_at_cr:
            # The way of nearly all output: one copy at most.
            end = data.rfind(b"\n") + 1
            if end:
                self.held += memoryview(data)[end:]
                return [data[:end], *self._cut_held()]
        self.held += data
        # Only what is new can end a line, and a CR that waited for its LF.
        start = max(0, len(self.held) - len(data) - 1)
        end = self.held.rfind(b"\n", start) + 1
        if self._splits_at_cr:
            # A CR at the very end waits: an LF may follow, and the two are one terminator.
            end = max(end, self.held.rfind(b"\r", start, len(self.held) - 1) + 1)
        blocks = [self._take(end)] if end else []
        return blocks + self._cut_held()

    def flush(self) -> list[bytes]:
        """Give the unterminated rest at the end of the stream."""
        return [self._take(len(self.held))] if self.held else []

    def _cut_held(self) -> list[bytes]:
        blocks = []
        while len(self.held) > MAX_EVENT_BYTES:
            blocks.append(self._take(_character_boundary(self.held, MAX_EVENT_BYTES)))
        return blocks

    def _take(self, count: int) -> bytes:
        block = bytes(memoryview(self.held)[:count])
        del self.held[:count]
        return block


def split_lines(block: bytes, *, splits_at_cr: bool = False) -> list[bytes]:
    """Cut a block into events: lines with their terminators, or 64 KiB of a longer one."""
    if b"\r" in block and not splits_at_cr:  # splitlines would end a line there
        lines = [line + b"\n" for line in block.split(b"\n")]
        lines[-1] = lines[-1][:-1]
        if not lines[-1]:
            lines.pop()
    else:
        lines = block.splitlines(keepends=True)
    if len(block) <= MAX_EVENT_BYTES:
        return lines
    return [piece for line in lines for piece in _limit(line)]


def _without_line_end(line: bytes) -> bytes:
    """Give the line as the older form of the protocol has it: an empty one is a newline."""
    return line.removesuffix(b"\n").removesuffix(b"\r") or b"\n"


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


def _character_boundary(line: bytes | bytearray, end: int) -> int:
    """Move `end` back in front of a character that it would split; bytes that are no UTF-8 do not move it."""
    for back in range(1, _LONGEST_UTF8):
        byte = line[end - back]
        if byte & 0xC0 != 0x80:
            length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return end - back if length > back else end
    return end
