"""What commands wrote, kept for readers that come later: the beginning, and as much of the end as there is room for.

A log is one sequence of bytes over both streams, in the order in which lines were completed. It is cut where events
are cut, so that all readers get the same events, and an offset is a place between two of them.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from execd.events import LineHolder

__all__ = ["STREAMS", "OutputBudget", "OutputLog", "Piece"]

STREAMS: Final = ("stdout", "stderr")

DEFAULT_TOTAL_BYTES: Final = 16 * 1024 * 1024
"""For all commands together: little enough for a sandbox of 128 MB."""

DEFAULT_LOG_BYTES: Final = 2 * 1024 * 1024
_HEAD_BYTES: Final = 64 * 1024
"""The beginning of each log is kept apart, since that is where a failing command says what it set out to do."""

FLOOR_BYTES: Final = 64 * 1024
"""Not even lack of room takes these last bytes of a running command."""

_NOTHING: Final = bytearray()
_SEGMENT_BYTES: Final = 16 * 1024
_SEGMENT_OVERHEAD: Final = 256
"""What Python needs beside the bytes; charged, or a command that alternates between streams would get it for free."""


@dataclass(slots=True)
class _Segment:
    """Bytes of one stream. offset: of the first byte in the log; stream_offset: in its stream.

    ends_line: further lines of the same stream may be added.
    """

    offset: int
    stream: str
    stream_offset: int
    data: bytes | bytearray
    ends_line: bool

    @property
    def end(self) -> int:
        return self.offset + len(self.data)

    @property
    def cost(self) -> int:
        return len(self.data) + _SEGMENT_OVERHEAD


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes that follow each other in the log. offset: of the first one."""

    offset: int
    stream: str
    data: bytes

    @property
    def end(self) -> int:
        """Offset behind the last byte."""
        return self.offset + len(self.data)


class OutputLog:
    """The output of one command.

    end: bytes in the log; what is held back as the beginning of a line comes on top. dropped_bytes: of these, no longer
    kept. is_ended: nothing will follow. listeners: called after each change. needed_from: gives the offset from which
    on a client has yet to get all, if there is such a client; nothing of that is dropped, whatever the room.
    """

    __slots__ = (
        "_budget",
        "_ends",
        "_head_count",
        "_head_is_open",
        "_holders",
        "_segments",
        "dropped_bytes",
        "end",
        "is_ended",
        "kept_bytes",
        "listeners",
        "needed_from",
    )

    def __init__(self, budget: "OutputBudget", *, splits_at_cr: bool = False) -> None:
        """splits_at_cr: CR ends a line, too, as in the older form of the protocol."""
        self.end = 0
        self.dropped_bytes = 0
        self.kept_bytes = 0
        self.is_ended = False
        self.listeners: set[Callable[[], None]] = set()
        self.needed_from: Callable[[], int | None] = _nothing_needed
        self._budget = budget
        self._holders = {stream: LineHolder(splits_at_cr=splits_at_cr) for stream in STREAMS}
        self._ends = dict.fromkeys(STREAMS, 0)
        self._segments: list[_Segment] = []
        self._head_count = 0
        self._head_is_open = True
        budget.admit(self)

    @property
    def truncated(self) -> bool:
        """Whether something is no longer kept."""
        return self.dropped_bytes > 0

    def total(self, stream: str | None = None) -> int:
        """Bytes written to a stream, or to both."""
        if stream is None:
            return sum(self.total(each) for each in STREAMS)
        return self._ends[stream] + len(self._held(stream))

    def write(self, stream: str, data: bytes) -> None:
        """Take what was read from a stream."""
        for block in self._holders[stream].feed(data):
            self._append(stream, block)
        self._after_change()

    def finish(self) -> None:
        """Take the unterminated rests; nothing may be written then."""
        for stream, holder in self._holders.items():
            for block in holder.flush():
                self._append(stream, block)
        self._holders.clear()
        self.is_ended = True
        self._after_change()

    def pieces(self, offset: int, *, max_bytes: int) -> Iterator[Piece]:
        """Give what is kept from an offset on, in order, until max_bytes are reached; at least one if there is any.

        A piece that begins behind the end of the one before tells of a gap.
        """
        for index in range(max(0, self._index_behind(offset) - 1), len(self._segments)):
            segment = self._segments[index]
            if segment.end <= offset:
                continue
            skipped = max(0, offset - segment.offset)
            data = bytes(memoryview(segment.data)[skipped:]) if skipped else bytes(segment.data)
            yield Piece(segment.offset + skipped, segment.stream, data)
            max_bytes -= len(segment.data) - skipped
            if max_bytes <= 0:
                return

    def backlog(self, offset: int) -> int:
        """Bytes of memory that hold what is behind an offset."""
        segments = len(self._segments) - self._index_behind(offset)
        return self.end - offset + _SEGMENT_OVERHEAD * segments

    def read_stream(self, stream: str, offset: int, *, max_bytes: int) -> tuple[int, bytes]:
        """Give bytes of one stream that follow each other, and the offset in it at which they begin.

        They begin at `offset`, or where the first byte is that is still kept. What is held back is among them.
        """
        start = position = offset
        parts: list[bytes] = []
        for first, data in self._runs_of(stream):
            if first + len(data) <= position:
                continue
            if first > position:
                if parts:
                    break  # a gap
                start = position = first
            part = bytes(memoryview(data)[position - first :][: start + max_bytes - position])
            parts.append(part)
            position += len(part)
            if position - start >= max_bytes:
                break
        return start, b"".join(parts)

    def trim(self) -> int:
        """Make room: half of the end, then the beginning. Gives how much; 0 if it must keep the rest."""
        tail = self.kept_bytes - sum(segment.cost for segment in self._segments[: self._head_count])
        if tail > FLOOR_BYTES:
            return self._drop_tail(max(FLOOR_BYTES, tail // 2))
        if self._droppable(0, self._head_count) < self._head_count:
            return 0
        self._head_is_open = False
        dropped = self._drop(0, self._head_count)
        self._head_count = 0
        return dropped

    def clear(self) -> int:
        """Keep nothing. Gives how much room that makes."""
        self._head_count, self._head_is_open = 0, False
        return self._drop(0, len(self._segments))

    def _append(self, stream: str, block: bytes) -> None:
        last = self._open_segment(stream, len(block))
        ends_line = block.endswith((b"\n", b"\r"))
        if last is not None:
            last.data += block
            last.ends_line = ends_line
            cost = len(block)
        else:
            data = bytearray(block) if len(block) < _SEGMENT_BYTES else block
            segment = _Segment(self.end, stream, self._ends[stream], data, ends_line)
            self._segments.append(segment)
            cost = segment.cost
        self.end += len(block)
        self._ends[stream] += len(block)
        self.kept_bytes += cost
        if self._head_is_open:
            self._head_count = len(self._segments)
            self._head_is_open = self.kept_bytes < _HEAD_BYTES
        elif self.kept_bytes > self._budget.log_bytes:
            # More than need be at once: taking from the middle of a list moves all that follows.
            self._drop_tail((self._budget.log_bytes - _HEAD_BYTES) * 3 // 4)
        self._budget.charge(cost)

    def _open_segment(self, stream: str, size: int) -> _Segment | None:
        """Give the last segment if lines of this size may be added to it."""
        if len(self._segments) == (0 if self._head_is_open else self._head_count):
            return None
        last = self._segments[-1]
        is_open = last.stream == stream and last.ends_line and len(last.data) + size <= _SEGMENT_BYTES
        return last if is_open else None

    def _index_behind(self, offset: int) -> int:
        return bisect_right(self._segments, offset, key=_offset_of)

    def _drop_tail(self, keep: int) -> int:
        """Drop the oldest of the end until at most `keep` bytes of it are there."""
        excess = -keep
        for segment in self._segments[self._head_count :]:
            excess += segment.cost
        count = 0
        while excess > 0:
            excess -= self._segments[self._head_count + count].cost
            count += 1
        return self._drop(self._head_count, self._droppable(self._head_count, self._head_count + count))

    def _droppable(self, first: int, last: int) -> int:
        """Give where to stop before `last`, so that nothing is dropped that is needed."""
        needed = self.needed_from()
        if needed is None:
            return last
        while last > first and self._segments[last - 1].end > needed:
            last -= 1
        return last

    def _drop(self, first: int, last: int) -> int:
        room = 0
        for segment in self._segments[first:last]:
            room += segment.cost
            self.dropped_bytes += len(segment.data)
        del self._segments[first:last]
        self.kept_bytes -= room
        self._budget.charge(-room)
        return room

    def _runs_of(self, stream: str) -> Iterator[tuple[int, bytes | bytearray]]:
        for segment in self._segments:
            if segment.stream == stream:
                yield segment.stream_offset, segment.data
        held = self._held(stream)
        if held:
            yield self._ends[stream], held

    def _held(self, stream: str) -> bytearray:
        holder = self._holders.get(stream)
        return _NOTHING if holder is None else holder.held

    def _after_change(self) -> None:
        self._budget.enforce()
        for listener in tuple(self.listeners):
            listener()


class OutputBudget:
    """The room that all logs share: what ended first is forgotten first, then the longest running is cut."""

    def __init__(self, *, total_bytes: int = DEFAULT_TOTAL_BYTES, log_bytes: int = DEFAULT_LOG_BYTES) -> None:
        """total_bytes: of all logs; log_bytes: of one."""
        self.log_bytes = log_bytes
        self.used_bytes = 0
        self._total = total_bytes
        self._running: set[OutputLog] = set()
        self._retired: dict[OutputLog, None] = {}

    def admit(self, log: OutputLog) -> None:
        """Count a new log in."""
        self._running.add(log)

    def retire(self, log: OutputLog) -> None:
        """Note that the command has ended and its client has read all."""
        self._running.discard(log)
        self._retired[log] = None

    def forget(self, log: OutputLog) -> None:
        """Count a log out, for good."""
        log.clear()
        self._running.discard(log)
        self._retired.pop(log, None)

    def charge(self, cost: int) -> None:
        """Note that more, or less, is kept."""
        self.used_bytes += cost

    def enforce(self) -> None:
        """Drop until what is left is within the room."""
        while self.used_bytes > self._total:
            if self._retired:
                log = next(iter(self._retired))
                del self._retired[log]
                log.clear()
                continue
            by_size = sorted(self._running, key=_kept_bytes_of, reverse=True)
            if not any(log.trim() for log in by_size):
                return


def _nothing_needed() -> int | None:
    return None


def _offset_of(segment: _Segment) -> int:
    return segment.offset


def _kept_bytes_of(log: OutputLog) -> int:
    return log.kept_bytes
