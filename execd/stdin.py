"""Feeding a command's standard input without waiting for a program that does not read it."""

import asyncio
import os
from typing import Final

__all__ = ["StdinFeeder"]

_CHUNK_BYTES: Final = 64 * 1024


class StdinFeeder:
    """Writes a text to a pipe as fast as the program takes it, then closes the pipe."""

    def __init__(self, fd: int, data: bytes) -> None:
        """fd: non-blocking write end, owned from now on."""
        self._fd = fd
        self._rest = memoryview(data)
        self._finished = asyncio.Event()

    async def run(self, *, until: asyncio.Event) -> None:
        """Feed until all is taken, the program closes its end, or `until` is set."""
        loop = asyncio.get_running_loop()
        stop = loop.create_task(until.wait())
        done = loop.create_task(self._finished.wait())
        loop.add_writer(self._fd, self._write)
        try:
            await asyncio.wait([stop, done], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
            done.cancel()
            loop.remove_writer(self._fd)
            os.close(self._fd)

    def _write(self) -> None:
        try:
            self._rest = self._rest[os.write(self._fd, self._rest[:_CHUNK_BYTES]) :]
        except BlockingIOError:
            return
        except OSError:  # the program closed its end
            self._finished.set()
            return
        if not self._rest:
            self._finished.set()
