"""From the log of a command to an event stream, from any offset to the end."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from execd.events import frame, output_frames, split_lines
from execd.execution import EndReason, Execution
from execd.pump import WINDOW_BYTES

__all__ = ["Relay", "opening_frames", "terminal_frame"]

PING_SECONDS: Final = 3.0

OPENING_SECONDS: Final = 0.003
"""So long the beginning of a stream waits for company: most of a short command's time would else be writes."""

_BATCH_BYTES: Final = 32 * 1024
_BATCH_LINES: Final = 8 * 1024
"""A bare newline becomes seventy bytes of a frame; this bounds a batch to about a megabyte."""

Send = Callable[[bytes], Awaitable[None]]


def opening_frames(text: str, **fields: Any) -> bytes:
    """Give what every stream begins with."""
    return frame("init", text=text, **fields) + frame("ping", text="pong")


class Relay:
    """Sends the events of one execution to one reader.

    position: offset in the log of what was not yet passed on. window_bytes: see `pump.Position`.
    """

    window_bytes: Final = WINDOW_BYTES

    def __init__(
        self, execution: Execution, send: Send, *, offset: int, opening: bytes, strip_newlines: bool
    ) -> None:
        """send: writes frames and waits until the reader can take more; raises when it is gone.

        opening: frames to begin with. strip_newlines: the older form of the protocol.
        """
        self.position = offset
        self._execution = execution
        self._log = execution.log
        self._send = send
        self._opening = opening
        self._strip = strip_newlines
        self._changed = asyncio.Event()
        now = time.monotonic()
        self._opens_at = now + OPENING_SECONDS
        self._next_ping = now + PING_SECONDS
        self._timer: asyncio.TimerHandle | None = None

    async def run(self) -> bytes:
        """Send until all output is sent; gives the terminal event, and whatever is to be sent before it."""
        self._log.listeners.add(self._changed.set)
        self._wake_at(self._opens_at)
        try:
            while True:
                frames, end = self._take()
                if frames:
                    await self._send(self._opened(frames + self._ping_if_due()))
                    self.position = end
                    self._execution.reader_moved()
                elif self._log.is_ended:
                    return self._opened(terminal_frame(self._execution))
                elif self._opening and time.monotonic() >= self._opens_at:
                    await self._send(self._opened(b""))
                else:
                    await self._wait()
        finally:
            self._log.listeners.discard(self._changed.set)
            if self._timer is not None:
                self._timer.cancel()

    def _take(self) -> tuple[bytes, int]:
        """Give frames of what follows, and where it ends."""
        position = self.position
        parts: list[bytes] = []
        room = _BATCH_LINES
        for piece in self._log.pieces(position, max_bytes=_BATCH_BYTES):
            if piece.offset > position:
                parts.append(_gap_frame(position, piece.offset))
            position = piece.offset
            lines = split_lines(piece.data, splits_at_cr=self._strip)
            if len(lines) > room:
                del lines[room:]
            parts.append(output_frames(piece.stream, lines, position, strip_newlines=self._strip))
            position += sum(map(len, lines))
            room -= len(lines)
            if not room:
                break
        if not parts and position < self._log.end:
            parts.append(_gap_frame(position, self._log.end))
            position = self._log.end
        return b"".join(parts), position

    def _opened(self, frames: bytes) -> bytes:
        opening, self._opening = self._opening, b""
        return opening + frames

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()
        if not self._opening and (ping := self._ping_if_due()):
            await self._send(ping)

    def _wake_at(self, when: float) -> None:
        # One timer that moves on: a timeout around each wait would cost more than the wait of a short command.
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(0.0, when - time.monotonic()), self._on_time)

    def _on_time(self) -> None:
        self._changed.set()
        self._wake_at(max(self._next_ping, time.monotonic() + OPENING_SECONDS))

    def _ping_if_due(self) -> bytes:
        now = time.monotonic()
        if now < self._next_ping:
            return b""
        self._next_ping = now + PING_SECONDS
        return frame("ping", text="pong")


def terminal_frame(execution: Execution) -> bytes:
    """Give the last event of a command that has finished."""
    code, signal, reason = execution.exit_code, execution.signal, execution.reason
    facts: dict[str, Any] = {
        "exit_code": code,
        "signal": signal,
        "reason": reason,
        "execution_time": execution.duration_ms,
        "remaining_processes": execution.remaining_processes,
    }
    if execution.session_id is not None:
        facts["state_saved"] = execution.state_saved
    if execution.start_failure is not None:
        facts["start_failure"] = execution.start_failure
    if reason is EndReason.EXIT and code == 0:
        return frame("execution_complete", **facts)
    traceback = end_texts(execution)
    value = execution.start_error if execution.start_error is not None else str(-1 if code is None else code)
    # Clients look for the word: ROCK, for one, knows by it alone that a command took too long.
    name = "CommandTimeoutError" if reason is EndReason.TIMEOUT else "CommandExecError"
    error = {"ename": name, "evalue": value, "traceback": traceback}
    return frame("error", error=error, **facts)


def end_texts(execution: Execution) -> list[str]:
    """Say in words how a command ended that did not succeed."""
    if execution.start_error is not None:
        return [execution.start_error]
    if execution.signal is not None:
        text = f"signal {execution.signal}"
    elif execution.exit_code is not None:
        text = f"exit status {execution.exit_code}"
    else:
        text = "still running after SIGKILL"
    note = _NOTES.get(execution.reason) if execution.reason else None
    return [text] if note is None else [note, text]


_NOTES: Final = {
    EndReason.TIMEOUT: "timed out",
    EndReason.KILLED_BY_CLIENT: "interrupted by the client",
    EndReason.OOM: "out of memory",
    EndReason.LOST: "lost",
}


def _gap_frame(first: int, last: int) -> bytes:
    """Tell of bytes that are no longer kept: from the offset `first` to before `last`."""
    return frame("gap", offset=last, missing_from=first, missing_bytes=last - first)
