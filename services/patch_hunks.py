"""Finds the place of each hunk in a file and builds the patched file, by the rules of patch(1).

A hunk goes to the line it names, shifted as the hunk before it was; else to the nearest line where all its old lines
match; else the same with one, then two outer context lines left out of account. Context that is shorter at one end
says that the hunk belongs at that end of the file, and is held to it.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, takewhile

from services.patch_parsing import Hunk

__all__ = ["SearchBudget", "SearchBudgetError", "apply_hunks"]

MAX_FUZZ = 2
MAX_FILE_LINES = 1_000_000


class SearchBudgetError(Exception):
    """Placing the hunks would take longer than any honest patch needs."""


@dataclass(slots=True)
class SearchBudget:
    """Bytes that may still be searched for hunks, over the whole patch: some seconds at memory speed."""

    bytes_left: int = 4 << 30

    def spend(self, count: int) -> None:
        """Raise SearchBudgetError once all is spent."""
        self.bytes_left -= count
        if self.bytes_left < 0:
            raise SearchBudgetError


def apply_hunks(data: bytes, hunks: Iterable[Hunk], budget: SearchBudget) -> tuple[bytes, list[int]]:
    """Apply the hunks in order. Gives the new content and the numbers (from 1) of hunks that found no place.

    Raises SearchBudgetError when the file has too many lines or the search takes too long.
    """
    text = _Text(data, budget)
    rejected: list[int] = []
    pieces: list[bytes] = []
    done = 0  # old lines before this one are written or replaced
    offset = 0
    for number, hunk in enumerate(hunks, start=1):
        shape = _Shape.of(hunk)
        guess = hunk.old_start + (hunk.old_count == 0) - 1 + offset
        place = _find_place(text, shape, guess, done, starts_file=hunk.old_start <= 1)
        if place is None:
            rejected.append(number)
            continue
        offset += place - guess
        first = place + shape.prefix
        pieces += [text.between(done, first), *shape.replacement]
        done = first + len(shape.replaced)
    pieces.append(text.between(done, text.count))
    return b"".join(_with_newlines(pieces)), rejected


def _with_newlines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """A line that was the last, without newline, gets one when something now follows it."""
    open_line = False
    for piece in pieces:
        if not piece:
            continue
        if open_line:
            yield b"\n"
        yield piece
        open_line = not piece.endswith(b"\n")


@dataclass(frozen=True, slots=True)
class _Shape:
    """A hunk taken apart: outer context and what is replaced between. prefix, suffix: numbers of context lines."""

    old: list[bytes]
    prefix: int
    suffix: int
    replaced: list[bytes]
    replacement: list[bytes]

    @classmethod
    def of(cls, hunk: Hunk) -> "_Shape":
        kinds = [kind for kind, _ in hunk.lines]
        old = [line for kind, line in hunk.lines if kind != b"+"]
        new = [line for kind, line in hunk.lines if kind != b"-"]
        prefix = sum(1 for _ in takewhile(lambda kind: kind == b" ", kinds))
        suffix = sum(1 for _ in takewhile(lambda kind: kind == b" ", reversed(kinds[prefix:])))
        return cls(old, prefix, suffix, old[prefix : len(old) - suffix], new[prefix : len(new) - suffix])


def _find_place(text: "_Text", shape: _Shape, guess: int, done: int, *, starts_file: bool) -> int | None:
    """Give the index of the hunk's first old line, from 0; None if it fits nowhere after `done`."""
    size = len(shape.old)
    if size == 0:
        return guess if done <= guess <= text.count else None
    context = max(shape.prefix, shape.suffix)
    for fuzz in range(min(MAX_FUZZ, context) + 1):
        at_start = fuzz + shape.prefix - context < 0 and starts_file
        at_end = fuzz + shape.suffix - context < 0
        head = max(0, fuzz + shape.prefix - context)
        tail = max(0, fuzz + shape.suffix - context)
        block = shape.old[head : size - tail]
        low, high = done, text.count - (size - tail)
        if at_start:
            high = min(high, 0)
        if at_end:
            low = max(low, high)
        if not block:
            place = min(max(guess, low), high) if low <= high else None
        else:
            found = text.nearest(block, guess + head, low + head, high + head)
            place = None if found is None else found - head
        if place is not None:
            return place
    return None


@dataclass(slots=True)
class _Text:
    """The old file, searchable for runs of whole lines."""

    data: bytes
    budget: SearchBudget
    starts: list[int] = field(init=False)  # of each line, and the end of the data
    _forward: bytes | None = None
    _backward: bytes | None = None

    def __post_init__(self) -> None:
        if self.data.count(b"\n") > MAX_FILE_LINES:
            raise SearchBudgetError
        parts = self.data.split(b"\n")
        ends = list(accumulate(len(part) + 1 for part in parts))
        ends[-1] -= 1
        if len(ends) > 1 and ends[-1] == ends[-2]:  # the data ends with a newline
            ends.pop()
        self.starts = [0, *ends] if self.data else [0]

    @property
    def count(self) -> int:
        return len(self.starts) - 1

    def between(self, first: int, end: int) -> bytes:
        return self.data[self.starts[first] : self.starts[end]]

    def nearest(self, lines: list[bytes], guess: int, low: int, high: int) -> int | None:
        """Give the line index in low..high, nearest to guess, where these lines stand; of two the later."""
        low, high = max(low, 0), min(high, self.count - len(lines))
        if low > high:
            return None
        block = b"".join(lines)
        if not block.endswith(b"\n"):  # such a line can only be the file's last
            low = max(low, self.count - len(lines))
            return low if self.between(low, low + len(lines)) == block else None
        self.budget.spend(len(block))
        guess = min(max(guess, low), high)
        if self.between(guess, guess + len(lines)) == block:
            return guess
        after = self._search_forward(block, guess, high)
        reach = self.count if after is None else after - guess
        before = self._search_backward(block, guess, max(low, guess - reach))
        if before is None or (after is not None and after - guess <= guess - before):
            return after
        return before

    # A line start is a newline before it: with one in front of the data and of the block, a plain substring search
    # finds whole lines only, and takes linear time whatever the two hold.

    def _search_forward(self, block: bytes, first: int, last: int) -> int | None:
        if self._forward is None:
            self._forward = b"\n" + self.data
        begin, end = self.starts[first], self.starts[last] + 1 + len(block)
        found = self._forward.find(b"\n" + block, begin, end)
        self.budget.spend((end if found < 0 else found + len(block)) - begin)
        return None if found < 0 else bisect_left(self.starts, found)

    def _search_backward(self, block: bytes, first: int, last: int) -> int | None:
        """Search from line `first` down to `last`; in the reversed data, since rfind may take quadratic time."""
        if self._backward is None:
            self._backward = (b"\n" + self.data)[::-1]
        total, size = len(self._backward), len(block) + 1
        begin, end = total - self.starts[first] - size, total - self.starts[last]
        found = self._backward.find(block[::-1] + b"\n", begin, end)
        self.budget.spend((end if found < 0 else found + size) - begin)
        return None if found < 0 else bisect_left(self.starts, total - found - size)
