"""From the pipes of a command to the event stream of its client, with back-pressure all the way.

While a write waits for the client, the pipes are not read, and the program blocks in its own write.
"""

import asyncio
import fcntl
import logging
import os
import select
import time
from collections.abc import Awaitable, Callable
from typing import Final

from execd.commands import EndReason, Execution
from execd.events import LineCutter, frame, output_frames

__all__ = ["DetachedOutputs", "Relay", "opening_frames", "start_failure_frames"]

log = logging.getLogger("execd.relay")

PING_SECONDS: Final = 3.0
QUIET_SECONDS: Final = 0.2
"""After the main process ended, output of those it left behind is awaited only this long since the last byte."""

_READ_BYTES: Final = 32 * 1024
"""A read of bare newlines becomes 40 times its size in frames; this bounds that to about a megabyte."""

_DEFAULT_PIPE_BYTES: Final = 64 * 1024
_MAX_DETACHED: Final = 64
_DROP_PAUSE_SECONDS: Final = 0.01

Send = Callable[[bytes], Awaitable[None]]


def opening_frames(execution_id: str) -> bytes:
    """Give what every stream begins with."""
    return frame("init", text=execution_id) + frame("ping", text="pong")


def start_failure_frames(reason: str) -> bytes:
    """Give the terminal event of a command that could not be started."""
    return _error_frame(
        reason, [reason], exit_code=None, signal=None, reason=EndReason.START_FAILED, execution_time=0
    )


class _Pipe:
    """One output of the command."""

    def __init__(self, stream: str, fd: int, wake: Callable[[], None], *, strip_newlines: bool) -> None:
        self.fd = fd
        self.is_open = True
        self.read_since_exit = 0
        self.capacity = _pipe_capacity(fd)
        self._stream = stream
        self._wake = wake
        self._ready = False
        self._armed = False
        self._cutter = LineCutter(strip_newlines=strip_newlines)

    def arm(self) -> None:
        """Wake once when there is something to read."""
        if self.is_open and not self._armed and not self._ready:
            self._armed = True
            asyncio.get_running_loop().add_reader(self.fd, self._on_ready)

    def disarm(self) -> None:
        """Stop watching the descriptor."""
        if self._armed:
            self._armed = False
            asyncio.get_running_loop().remove_reader(self.fd)

    def read(self) -> bytes:
        """Give frames of what is there, at most one read; closes itself at the end of the stream."""
        if not self._ready or not self.is_open:
            return b""
        self._ready = False
        try:
            data = os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return b""
        if not data:
            self.is_open = False
            os.close(self.fd)
            return self.flush()
        self.read_since_exit += len(data)
        return output_frames(self._stream, self._cutter.feed(data))

    def flush(self) -> bytes:
        """Give frames of the unterminated rest."""
        return output_frames(self._stream, self._cutter.flush())

    def _on_ready(self) -> None:
        self.disarm()
        self._ready = True
        self._wake()


class Relay:
    """Sends the events of one execution, from `init` to the terminal one."""

    def __init__(
        self, execution: Execution, send: Send, detached: "DetachedOutputs", *, strip_newlines: bool
    ) -> None:
        """send: writes frames and waits until the client can take more; raises when it is gone."""
        self._execution = execution
        self._send = send
        self._detached = detached
        self._wake = asyncio.Event()
        self._exit_seen_at: float | None = None
        self._last_data_at = time.monotonic()
        self._pipes = [
            _Pipe(stream, fd, self._wake.set, strip_newlines=strip_newlines)
            for stream, fd in execution.outputs.items()
        ]

    async def run(self) -> None:
        """Send until the end. The pipes are given up in any case."""
        exit_watch = asyncio.create_task(self._watch_exit())
        try:
            await self._send_until_ended(opening_frames(self._execution.id))
        finally:
            exit_watch.cancel()
            self._give_up_pipes()

    async def _send_until_ended(self, pending: bytes) -> None:
        next_ping = time.monotonic() + PING_SECONDS
        while True:
            if pending:
                await self._send(pending)
            if self._is_over():
                break
            for pipe in self._pipes:
                pipe.arm()
            await self._sleep_until(next_ping)
            frames = b"".join([pipe.read() for pipe in self._pipes])
            if frames:
                self._last_data_at = time.monotonic()
            if time.monotonic() >= next_ping:
                frames += frame("ping", text="pong")
                next_ping = time.monotonic() + PING_SECONDS
            pending = frames
        rest = b"".join([pipe.flush() for pipe in self._pipes if pipe.is_open])
        await self._send(rest + _terminal_frame(self._execution))

    async def _sleep_until(self, next_ping: float) -> None:
        limit = next_ping
        if self._exit_seen_at is not None:
            limit = min(limit, max(self._exit_seen_at, self._last_data_at) + QUIET_SECONDS)
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + limit - time.monotonic()):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()

    async def _watch_exit(self) -> None:
        """Note the end of the main process."""
        await self._execution.exited.wait()
        # A kill still runs through the family: the stream ends when it is done, so that nothing follows the end.
        await self._execution.killed()
        for pipe in self._pipes:
            pipe.read_since_exit = 0
        self._exit_seen_at = time.monotonic()
        self._wake.set()

    def _is_over(self) -> bool:
        now = time.monotonic()
        if self._exit_seen_at is None:
            return False
        open_pipes = [pipe for pipe in self._pipes if pipe.is_open]
        if not open_pipes:
            return True
        if now - max(self._exit_seen_at, self._last_data_at) >= QUIET_SECONDS:
            # The silence may have been ours: a slow client, a machine under load, a sandbox frozen and thawed.
            return not any(_is_readable(pipe) for pipe in open_pipes)
        # One who was left behind may chatter for ever. What the main process wrote was in the pipe when it ended:
        # after a pipe's capacity of reading, all of it has been sent.
        all_of_it = all(
            pipe.read_since_exit >= pipe.capacity or not _is_readable(pipe) for pipe in open_pipes
        )
        return all_of_it and now - self._exit_seen_at >= QUIET_SECONDS

    def _give_up_pipes(self) -> None:
        for pipe in self._pipes:
            pipe.disarm()
            if pipe.is_open:
                pipe.is_open = False
                self._detached.take(pipe.fd)


class DetachedOutputs:
    """Reads and drops what background processes write after their stream ended, so that they live on."""

    def __init__(self) -> None:
        self._fds: list[int] = []

    def take(self, fd: int) -> None:
        """Own the read end from now on; beyond 64 the oldest is closed, and its writers get SIGPIPE."""
        self._fds.append(fd)
        self._watch(fd)
        if len(self._fds) > _MAX_DETACHED:
            self._close(self._fds[0])

    def close(self) -> None:
        """Close all."""
        for fd in list(self._fds):
            self._close(fd)

    def _watch(self, fd: int) -> None:
        if fd in self._fds:
            asyncio.get_running_loop().add_reader(fd, self._drop, fd)

    def _drop(self, fd: int) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(fd)
        try:
            if not os.read(fd, _DEFAULT_PIPE_BYTES):
                self._close(fd)
                return
        except BlockingIOError:
            pass
        # One who chatters without end is slowed down; it must not keep this process busy.
        loop.call_later(_DROP_PAUSE_SECONDS, self._watch, fd)

    def _close(self, fd: int) -> None:
        self._fds.remove(fd)
        asyncio.get_running_loop().remove_reader(fd)
        os.close(fd)


def _is_readable(pipe: _Pipe) -> bool:
    poller = select.poll()
    poller.register(pipe.fd, select.POLLIN)
    return bool(poller.poll(0))


def _pipe_capacity(fd: int) -> int:
    try:
        return fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)
    except OSError:
        return _DEFAULT_PIPE_BYTES


def _terminal_frame(execution: Execution) -> bytes:
    code, signal, reason = execution.exit_code, execution.signal, execution.reason
    facts = {
        "exit_code": code,
        "signal": signal,
        "reason": reason,
        "execution_time": execution.duration_ms,
    }
    if reason is EndReason.EXIT and code == 0:
        return frame("execution_complete", **facts)
    if signal is not None:
        text = f"signal {signal}"
    elif code is not None:
        text = f"exit status {code}"
    else:
        text = "still running after SIGKILL"
    notes = {EndReason.TIMEOUT: "timed out", EndReason.KILLED_BY_CLIENT: "interrupted by the client"}
    traceback = [text] if reason not in notes else [notes[reason], text]
    return _error_frame(str(-1 if code is None else code), traceback, **facts)


def _error_frame(value: str, traceback: list[str], **facts: object) -> bytes:
    error = {"ename": "CommandExecError", "evalue": value, "traceback": traceback}
    return frame("error", error=error, **facts)
