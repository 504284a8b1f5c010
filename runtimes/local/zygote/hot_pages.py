"""Memory that every forked daemon writes to, found by looking at one, and copied for the next ones all at once.

A fork shares its parent's memory until it writes; each first write to a page then costs an exception, and a sandbox
waits for a thousand of them. Writing is hardly ever about the content: it is Python's reference counts. One request to
the kernel for the lot moves that cost to a moment when nobody waits.
"""

import ctypes
import os
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from io import FileIO
from typing import Final

__all__ = ["HotPages"]

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_PRESENT_AND_OWN: Final = 1 << 63 | 1 << 56
"""Of an entry of /proc/PID/pagemap: in memory, and mapped by this process alone."""

_MADV_POPULATE_WRITE: Final = 23
_GAP: Final = 1
"""Steps from one page to the next of its range: each page copied for nothing is memory of every sandbox."""

_RANGE: Final = struct.Struct("=2Q")
_LIBC: Final = ctypes.CDLL(None)


class HotPages:
    """Ranges of memory, at the same addresses in all forks of a process."""

    def __init__(self, ranges: bytes) -> None:
        """ranges: addresses and sizes, as `_RANGE` has them: objects for each would be memory that is written to."""
        self._ranges = ranges

    @classmethod
    def of(cls, prepare: Callable[[], AbstractContextManager[Callable[[], int]]]) -> "HotPages":
        """Have a process do the work, and give what it wrote to. Empty where the kernel does not tell, or it fails.

        prepare: called in a fork of this process. What it gives is then called: it forks the process that works before
        it does much else, and gives its number when the work is done.
        """
        pid, answers = _fork_with_pipe(lambda write_end: _watch(prepare, write_end))
        with answers:
            data = answers.read()
        os.waitpid(pid, 0)
        return cls(data[: len(data) // _RANGE.size * _RANGE.size])

    def copy(self) -> None:
        """Have all of it as memory of one's own. For a fork; does nothing on Linux before 5.14."""
        for start, size in _RANGE.iter_unpack(self._ranges):
            _LIBC.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), _MADV_POPULATE_WRITE)


def _watch(prepare: Callable[[], AbstractContextManager[Callable[[], int]]], write_end: int) -> None:
    """Have a fork do the work, and write the ranges it wrote to.

    Looking at it is work, too, and would be found; so it is done by a process between the one that works and the first.
    """
    try:
        with prepare() as start, _witness():
            pid = start()
            try:
                # What it has got anew is elsewhere in every process.
                known = {page for first, end in _writable(os.getpid()) for page in range(first, end)}
                ranges = _join([page for page in _own_pages(pid) if page in known])
            finally:
                _end(pid)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"sandboxes will start more slowly: the rehearsal failed: {error}\n")
        return
    os.write(write_end, b"".join(_RANGE.pack(*pair) for pair in ranges))


@contextmanager
def _witness() -> Iterator[None]:
    """Have another fork that does nothing.

    A page that only the starter of the work writes to leaves it with a copy, and the one that works alone with the
    original, as if that one had written: now it has company there.
    """
    pid = os.fork()
    if pid == 0:
        signal.pause()
    try:
        yield
    finally:
        _end(pid)


def _end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _fork_with_pipe(act: Callable[[int], None]) -> tuple[int, FileIO]:
    """Fork, have the new process act on the write end of a pipe and end; give its number and the read end."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read_end)
            act(write_end)
        finally:
            os._exit(0)
    os.close(write_end)
    return pid, FileIO(read_end)


def _own_pages(pid: int) -> list[int]:
    """Numbers of the pages that a process has written to since it was forked, ascending."""
    pages = []
    with open(f"/proc/{pid}/pagemap", "rb", buffering=0) as pagemap:
        for first, end in _writable(pid):
            pagemap.seek(first * 8)
            entries = struct.iter_unpack("=Q", pagemap.read((end - first) * 8))
            pages += [
                first + n
                for n, (entry,) in enumerate(entries)
                if entry & _PRESENT_AND_OWN == _PRESENT_AND_OWN
            ]
    return pages


def _writable(pid: int) -> list[tuple[int, int]]:
    """First page, and that behind the last, of all private memory of a process that can be written, but its stack."""
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as file:
        lines = [line.split() for line in file if "[stack" not in line]
    spans = [span.split("-") for span, rights, *_ in lines if rights == "rw-p"]
    return [(int(first, 16) // _PAGE, int(end, 16) // _PAGE) for first, end in spans]


def _join(pages: list[int]) -> list[tuple[int, int]]:
    """Put neighbours together: address and size of each range."""
    ranges: list[list[int]] = []
    for page in pages:
        if ranges and page - ranges[-1][1] <= _GAP:
            ranges[-1][1] = page
        else:
            ranges.append([page, page])
    return [(first * _PAGE, (last - first + 1) * _PAGE) for first, last in ranges]
