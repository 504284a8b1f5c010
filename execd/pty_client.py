"""One client at a terminal: messages in and out, by the protocol."""

import asyncio
import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from signal import Signals
from typing import Any, Final, TypeVar

from execd.pty_session import PtySession
from execd.websocket import WebSocket

__all__ = ["PtyClient"]

log = logging.getLogger("execd.pty")

_STDIN: Final = 0
_REPLAY: Final = b"\x03"
_MAX_WAITING_BYTES: Final = 64 * 1024
_MAX_WAITING_MESSAGES: Final = 256
_LAST_WORD_SECONDS: Final = 1.0
_MAX_SIZE: Final = 65535

_NORMAL_CLOSURE, _GOING_AWAY, _INTERNAL_ERROR, _TAKEN_OVER = 1000, 1001, 1011, 4001
_SIGNALS: Final = {name: Signals[name] for name in ("SIGINT", "SIGTERM", "SIGKILL", "SIGQUIT", "SIGHUP")}


_T = TypeVar("_T", str, int)
_KINDS: Final[dict[type, str]] = {str: "a string", int: "an integer"}


class _FrameError(ValueError):
    """A message that the protocol does not know; the text says why."""


class PtyClient:
    """Carries a session's output to a WebSocket, and what comes from there to the session."""

    def __init__(self, session: PtySession) -> None:
        self._session = session
        self._socket: WebSocket | None = None
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._waiting_bytes = 0
        self._wake = asyncio.Event()
        self._dismissal: tuple[int, str] | None = None
        self._last_word: asyncio.TimerHandle | None = None

    @property
    def is_full(self) -> bool:
        """Whether it has to catch up before it gets more."""
        return self._waiting_bytes >= _MAX_WAITING_BYTES or len(self._waiting) >= _MAX_WAITING_MESSAGES

    def push(self, kind: int, data: bytes) -> None:
        """Take output, to be sent after all that came before."""
        self._waiting.append((kind, data))
        self._waiting_bytes += len(data)
        self._wake.set()

    def finish(self) -> None:
        """Take notice that the session is over."""
        self._wake.set()

    def take_over(self) -> None:
        """Make room for another client, at once, however slow this one is."""
        self._dismiss(_TAKEN_OVER, "TAKEN_OVER")

    def tell_gone(self) -> None:
        """Say that the session was deleted, and leave."""
        if self._socket is not None:
            self._socket.send_soon(_text(type="error", error="the session was deleted", code="SESSION_GONE"))
        self._dismiss(_GOING_AWAY, "SESSION_GONE")

    async def run(self, socket: WebSocket, since: int, start: Callable[[], None]) -> None:
        """Serve until either side ends it. start: starts the session's program if it was not; raises what to tell."""
        self._socket = socket
        tasks: list[asyncio.Task[None]] = []
        try:
            if self._dismissal is not None:  # while the answer to its handshake was on its way
                socket.close(*self._dismissal)
                return
            start()
            # All that was pushed until now is in the ring as well; what comes from now on is not in the replay.
            replay = self._session.ring.since(since)
            self._forget_waiting()
            loop = asyncio.get_running_loop()
            tasks = [
                loop.create_task(self._send_all(socket, replay)),
                loop.create_task(self._obey_all(socket)),
            ]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except asyncio.CancelledError:
            socket.close(_GOING_AWAY, "execd is stopping")
            raise
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
            if self._last_word is not None:
                self._last_word.cancel()

    async def refuse_start(self, socket: WebSocket, reason: str) -> None:
        """Say why the program could not be started, and close."""
        await socket.send(_text(type="error", error=reason, code="START_FAILED"))
        socket.close(_INTERNAL_ERROR, "START_FAILED")

    def _dismiss(self, code: int, reason: str) -> None:
        self._dismissal = code, reason
        self._forget_waiting()
        self._wake.set()
        if self._socket is not None:
            self._socket.close(code, reason)
            # It may be stuck in a write to a client that does not read.
            self._last_word = asyncio.get_running_loop().call_later(_LAST_WORD_SECONDS, self._socket.abort)

    def _forget_waiting(self) -> None:
        self._waiting.clear()
        self._waiting_bytes = 0
        self._session.resume()

    async def _send_all(self, socket: WebSocket, replay: tuple[int, bytes]) -> None:
        session = self._session
        start, kept = replay
        if kept:
            await socket.send(_REPLAY + start.to_bytes(8, "big", signed=True) + kept)
        del kept, replay
        await socket.send(_text(type="connected", session_id=session.id, mode=session.mode))
        while self._dismissal is None:
            while self._waiting:
                kind, data = self._waiting.popleft()
                self._waiting_bytes -= len(data)
                await socket.send(bytes([kind]) + data)
                session.resume()
            if session.is_over:
                await socket.send(_text(type="exit", exit_code=session.exit_code, signal=session.signal))
                socket.close(_NORMAL_CLOSURE, "process exited")
                return
            await self._wake.wait()
            self._wake.clear()

    async def _obey_all(self, socket: WebSocket) -> None:
        while (message := await socket.receive()) is not None:
            try:
                await self._obey(socket, message)
            except _FrameError as error:
                await socket.send(_text(type="error", error=str(error), code="INVALID_FRAME"))

    async def _obey(self, socket: WebSocket, message: bytes | str) -> None:
        if isinstance(message, bytes):
            if not message or message[0] != _STDIN:
                raise _FrameError("a binary message begins with 0, and input follows")
            await self._type(socket, self._session.write(message[1:]))
            return
        frame = _read_frame(message)
        match frame["type"]:
            case "stdin":
                await self._type(
                    socket, self._session.write(_field(frame, "data", str).encode("utf-8", "replace"))
                )
            case "eof":
                await self._type(socket, self._session.end_input())
            case "signal":
                name = _field(frame, "signal", str)
                if name not in _SIGNALS:
                    raise _FrameError(f"signal: one of {', '.join(_SIGNALS)}")
                self._session.send_signal(_SIGNALS[name])
            case "resize":
                await self._resize(socket, frame)
            case "ping":
                await socket.send(_text(type="pong"))

    async def _type(self, socket: WebSocket, writing: Awaitable[None]) -> None:
        try:
            await writing
        except OSError as error:
            reason = error.strerror or str(error)
            await socket.send(_text(type="error", error=reason, code="STDIN_WRITE_FAILED"))

    async def _resize(self, socket: WebSocket, frame: dict[str, Any]) -> None:
        columns, rows = _field(frame, "cols", int), _field(frame, "rows", int)
        if not (1 <= columns <= _MAX_SIZE and 1 <= rows <= _MAX_SIZE):
            raise _FrameError(f"cols, rows: not between 1 and {_MAX_SIZE}")
        try:
            self._session.resize(columns, rows)
        except OSError as error:
            await socket.send(_text(type="error", error=error.strerror or str(error), code="RUNTIME_ERROR"))


_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "stdin": ("data",),
    "eof": (),
    "signal": ("signal",),
    "resize": ("cols", "rows"),
    "ping": (),
}


def _read_frame(text: str) -> dict[str, Any]:
    try:
        frame = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _FrameError(f"a text message is JSON: {error}") from error
    kind = frame.get("type") if isinstance(frame, dict) else None
    if not isinstance(kind, str) or kind not in _FIELDS:
        raise _FrameError(f"type: one of {', '.join(_FIELDS)}")
    unknown = frame.keys() - {"type", *_FIELDS[kind]}
    if unknown:
        raise _FrameError(f"{ascii(min(unknown))[1:-1][:100]}: unknown field")
    return dict(frame)


def _field(frame: dict[str, Any], name: str, kind: type[_T]) -> _T:
    value = frame.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise _FrameError(f"{name}: not {_KINDS[kind]}")
    return value


def _text(**fields: Any) -> str:
    return json.dumps(fields, separators=(",", ":"))
