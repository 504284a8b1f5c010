"""Reading what the program prints, no faster than it can be passed on."""

import asyncio
import os
import select
from collections.abc import Callable
from typing import Final

__all__ = ["CHUNK_BYTES", "TerminalOutput"]

CHUNK_BYTES: Final = 32 * 1024
"""The most that one message carries; fixed by the protocol."""


class TerminalOutput:
    """One descriptor that the program writes to: the terminal, or one of two pipes."""

    def __init__(self, kind: int, fd: int, take: Callable[["TerminalOutput", bytes], None]) -> None:
        """kind: first byte of the messages that carry it. fd: non-blocking, owned from now on.

        take: gets at most 32 KiB at a time, and empty bytes at the end. Reading begins with `resume`.
        """
        self.kind = kind
        self.is_open = True
        self.read_bytes = 0
        self._fd = fd
        self._take = take
        self._is_armed = False

    def resume(self) -> None:
        """Read when there is something."""
        if self.is_open and not self._is_armed:
            self._is_armed = True
            asyncio.get_running_loop().add_reader(self._fd, self._read)

    def pause(self) -> None:
        """Leave what comes where it is; the program blocks in its writes when that is full."""
        if self._is_armed:
            self._is_armed = False
            asyncio.get_running_loop().remove_reader(self._fd)

    def has_more(self) -> bool:
        """Say whether there is something to read, the end included."""
        if not self.is_open:
            return False
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        return bool(poller.poll(0))

    def close(self) -> None:
        """Give up; whoever still writes gets SIGPIPE, or EIO from a terminal."""
        if self.is_open:
            self.pause()
            self.is_open = False
            os.close(self._fd)

    def _read(self) -> None:
        parts: list[bytes] = []
        size = 0
        is_end = False
        # A terminal gives 4 KiB at a time.
        while size < CHUNK_BYTES:
            try:
                part = os.read(self._fd, CHUNK_BYTES - size)
            except BlockingIOError:
                break
            except OSError:  # EIO: no program has the terminal open any more
                part = b""
            if not part:
                is_end = True
                break
            parts.append(part)
            size += len(part)
        if is_end:
            self.close()
        self.read_bytes += size
        if parts:
            self._take(self, b"".join(parts))
        if is_end:
            self._take(self, b"")
