"""From the pipes of a command to its log.

A command in the foreground is read no faster than its client reads: it blocks in its own writes, and nothing is lost
for the client. All others write as fast as this process can take it without neglecting the rest.
"""

import asyncio
import fcntl
import os
import select
import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from execd.detached import DetachedOutputs
from execd.outputs import OutputLog

__all__ = ["QUIET_SECONDS", "Pace", "Position", "Pump"]

QUIET_SECONDS: Final = 0.2
"""After the main process ended, output of those it left behind is awaited only this long since the last byte."""

WINDOW_BYTES: Final = 32 * 1024
"""How far a command may be ahead of its client."""

_READ_BYTES: Final = 32 * 1024
"""A read of bare newlines becomes 40 times its size in frames; this bounds that to about a megabyte."""

_SHORTEST_PAUSE_SECONDS: Final = 0.005
_DEFAULT_PIPE_BYTES: Final = 64 * 1024


class Position(Protocol):
    """Where a reader is."""

    @property
    def position(self) -> int:
        """Offset in the log of what it has not yet passed on."""

    @property
    def window_bytes(self) -> int:
        """How far the command may be ahead of it."""


class Pace:
    """Shares out how fast commands without a waiting client are read: all of them together get a fixed rate."""

    def __init__(self, *, bytes_per_second: float = 64 * 1024 * 1024) -> None:
        """The rate by default is a fifth of a processor's time, for this process."""
        self._rate = bytes_per_second
        self._free_at = 0.0

    def delay(self, count: int) -> float:
        """Say how many seconds to pause after a read of `count` bytes."""
        now = time.monotonic()
        self._free_at = max(self._free_at, now) + count / self._rate
        # Timers are late by a millisecond or more: many short pauses would make a rate of their own.
        pause = self._free_at - now
        return pause if pause > _SHORTEST_PAUSE_SECONDS else 0.0


class _Pipe:
    """One output of the command."""

    def __init__(self, stream: str, fd: int, wake: Callable[[], None]) -> None:
        self.stream = stream
        self.fd = fd
        self.is_open = True
        self.read_since_exit = 0
        # Looked at once before it is waited for: a short command may have ended already.
        self.is_ready = True
        self._wake = wake
        self._armed = False

    def arm(self) -> None:
        """Wake once when there is something to read."""
        if self.is_open and not self._armed and not self.is_ready:
            self._armed = True
            asyncio.get_running_loop().add_reader(self.fd, self._on_ready)

    def disarm(self) -> None:
        """Stop watching the descriptor."""
        if self._armed:
            self._armed = False
            asyncio.get_running_loop().remove_reader(self.fd)

    def read(self) -> bytes:
        """Give what is there, at most one read; closes itself at the end of the stream."""
        if not self.is_ready or not self.is_open:
            return b""
        self.is_ready = False
        try:
            data = os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return b""
        if not data:
            self.is_open = False
            os.close(self.fd)
        self.read_since_exit += len(data)
        return data

    def is_readable(self) -> bool:
        """Say whether a byte, or the end, waits."""
        poller = select.poll()
        poller.register(self.fd, select.POLLIN)
        return bool(poller.poll(0))

    def _on_ready(self) -> None:
        self.disarm()
        self.is_ready = True
        self._wake()


class Pump:
    """Reads the outputs of one command until it is over."""

    def __init__(
        self,
        outputs: Mapping[str, int],
        log: OutputLog,
        *,
        pace: Pace,
        detached: DetachedOutputs,
        waits_for: Callable[[], Position | None],
    ) -> None:
        """outputs: read ends by stream name, owned from now on. waits_for: the reader whose pace counts, if any."""
        self._log = log
        self._pace = pace
        self._detached = detached
        self._waits_for = waits_for
        self._changed = asyncio.Event()
        self._exit_seen_at: float | None = None
        self._last_data_at = time.monotonic()
        self._pipes = [_Pipe(stream, fd, self._changed.set) for stream, fd in outputs.items()]

    @property
    def has_all(self) -> bool:
        """Whether every output has come to its end and is in the log."""
        return not any(pipe.is_open for pipe in self._pipes)

    def wake(self) -> None:
        """Look again: a reader has moved on, or is gone."""
        self._changed.set()

    def note_end(self) -> None:
        """Note that the main process has ended, and whoever was to be killed with it."""
        for pipe in self._pipes:
            pipe.read_since_exit = 0
        self._exit_seen_at = time.monotonic()
        self._changed.set()

    async def run(self) -> None:
        """Read until `note_end` was called and all that the main process wrote is in the log.

        Whoever was left behind and still holds a pipe does not delay the end for long.
        """
        try:
            while True:
                await self._wait_for_room()
                if self._is_over():
                    return
                for pipe in self._pipes:
                    pipe.arm()
                await self._wait_for_output()
                await self._take_output()
        finally:
            self._give_up_pipes()

    async def _take_output(self) -> None:
        count = 0
        for pipe in self._pipes:
            await self._wait_for_room()
            data = pipe.read()
            if data:
                self._last_data_at = time.monotonic()
                self._log.write(pipe.stream, data)
                count += len(data)
        if count and self._waits_for() is None:
            await asyncio.sleep(self._pace.delay(count))

    async def _wait_for_room(self) -> None:
        while (reader := self._waits_for()) and self._log.backlog(reader.position) > reader.window_bytes:
            self._changed.clear()
            await self._changed.wait()

    async def _wait_for_output(self) -> None:
        if any(pipe.is_ready for pipe in self._pipes):
            return  # it was told while we waited for room
        if self._exit_seen_at is None:
            await self._changed.wait()
        else:
            limit = max(self._exit_seen_at, self._last_data_at) + QUIET_SECONDS - time.monotonic()
            try:
                async with asyncio.timeout(max(0, limit)):
                    await self._changed.wait()
            except TimeoutError:
                return
        self._changed.clear()

    def _is_over(self) -> bool:
        now = time.monotonic()
        if self._exit_seen_at is None:
            return False
        open_pipes = [pipe for pipe in self._pipes if pipe.is_open]
        if not open_pipes:
            return True
        if now - max(self._exit_seen_at, self._last_data_at) >= QUIET_SECONDS:
            # The silence may have been ours: a slow client, a machine under load, a sandbox frozen and thawed.
            return not any(pipe.is_readable() for pipe in open_pipes)
        # One who was left behind may chatter for ever. What the main process wrote was in the pipe when it ended:
        # after a pipe's capacity of reading, all of it has been taken.
        all_of_it = all(
            pipe.read_since_exit >= _pipe_capacity(pipe.fd) or not pipe.is_readable() for pipe in open_pipes
        )
        return all_of_it and now - self._exit_seen_at >= QUIET_SECONDS

    def _give_up_pipes(self) -> None:
        for pipe in self._pipes:
            pipe.disarm()
            if pipe.is_open:
                pipe.is_open = False
                self._detached.take(pipe.fd)


def _pipe_capacity(fd: int) -> int:
    try:
        return fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)
    except OSError:
        return _DEFAULT_PIPE_BYTES
