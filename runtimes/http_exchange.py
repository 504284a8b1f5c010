"""One HTTP/1.1 request over a given socket, with bounds and deadlines, for a peer that may be hostile."""

import json
import select
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Self

import h11

from core.errors import ExecdUnreachableError

__all__ = ["SILENCE_SECONDS", "Exchange", "Stopped"]

SILENCE_SECONDS = 15.0
"""Longest time without a byte: execd sends a sign of life every 3 s, so this is five of them lost."""

_MAX_HEADER_BYTES = 64 << 10
_MAX_JSON_BYTES = 16 << 20
_READ_BYTES = 256 << 10

_STOP_POLL_SECONDS = 0.05
"""How soon a set stop event is seen: an Event cannot be waited for together with a socket."""


class Stopped(Exception):  # noqa: N818 -- a signal to the caller, not a fault
    """The caller's `is_stopped` became true while waiting."""


class Exchange:
    """A request and its answer. Use as a context manager; it owns the socket."""

    def __init__(self, connection: socket.socket, *, silence_seconds: float = SILENCE_SECONDS) -> None:
        """silence_seconds: raise ExecdUnreachableError when no byte moves for that long."""
        self._socket = connection
        self._silence = silence_seconds
        self._protocol = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEADER_BYTES)

    def __enter__(self) -> Self:
        """Give itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the socket."""
        self.close()

    def close(self) -> None:
        """Close the socket; execd kills a foreground command whose reader has left."""
        self._socket.close()

    def request(
        self,
        method: str,
        target: str,
        *,
        headers: Iterable[tuple[str, str]] = (),
        body: bytes | Iterable[bytes] = b"",
    ) -> h11.Response:
        """Send it and read the head of the answer. body: bytes, or pieces that are sent in chunks."""
        all_headers = [("Host", "execd"), ("Connection", "close"), *headers]
        if isinstance(body, bytes):
            all_headers.append(("Content-Length", str(len(body))))
            pieces: Iterable[bytes] = (body,) if body else ()
        else:
            all_headers.append(("Transfer-Encoding", "chunked"))
            pieces = body
        try:
            self._socket.settimeout(self._silence)
            # The head waits for the first piece, so that a small request is one packet.
            held = self._protocol.send(h11.Request(method=method, target=target, headers=all_headers)) or b""
            for piece in pieces:
                self._socket.sendall(held + (self._protocol.send(h11.Data(data=piece)) or b""))
                held = b""
            self._socket.sendall(held + (self._protocol.send(h11.EndOfMessage()) or b""))
        except (BrokenPipeError, ConnectionResetError):
            # It may have answered (413, say) before it closed: the answer is worth more than this error.
            pass
        except (OSError, h11.RemoteProtocolError) as error:
            raise ExecdUnreachableError(f"execd took no request: {error}") from error
        return self._head()

    def chunks(self, is_stopped: Callable[[], bool] | None = None) -> Iterator[bytes]:
        """Give the body piece by piece as it comes. Raises Stopped once is_stopped() is true; it may be resumed."""
        while True:
            event = self._next_event(is_stopped)
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return

    def read(self, *, max_bytes: int) -> bytes | None:
        """Read the whole body; None once it is longer than max_bytes."""
        body = bytearray()
        for chunk in self.chunks():
            body += chunk
            if len(body) > max_bytes:
                return None
        return bytes(body)

    def read_json(self) -> Any:
        """Read a JSON body of at most 16 MiB."""
        body = self.read(max_bytes=_MAX_JSON_BYTES)
        if body is None:
            raise ExecdUnreachableError(f"execd sent more than {_MAX_JSON_BYTES} bytes of JSON")
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            raise ExecdUnreachableError(f"execd sent bad JSON: {body[:80]!r}") from error

    def _head(self) -> h11.Response:
        event = self._next_event(None)
        if not isinstance(event, h11.Response):
            raise ExecdUnreachableError(f"execd sent {type(event).__name__} instead of an answer")
        return event

    def _next_event(self, is_stopped: Callable[[], bool] | None) -> object:
        while True:
            try:
                event = self._protocol.next_event()
                if event is not h11.NEED_DATA:
                    if isinstance(event, h11.InformationalResponse):
                        continue
                    return event
                self._protocol.receive_data(self._receive(is_stopped))
            except h11.RemoteProtocolError as error:
                raise ExecdUnreachableError(f"execd broke off or does not speak HTTP: {error}") from error

    def _receive(self, is_stopped: Callable[[], bool] | None) -> bytes:
        """Wait for bytes, looking at is_stopped meanwhile; empty at the end of the stream."""
        silent_since = time.monotonic()
        while True:
            if is_stopped is not None and is_stopped():
                raise Stopped
            left = silent_since + self._silence - time.monotonic()
            wait = left if is_stopped is None else min(left, _STOP_POLL_SECONDS)
            try:
                # poll, not select: descriptors above 1023 are normal on a busy node.
                poller = select.poll()
                poller.register(self._socket, select.POLLIN)
                if poller.poll(max(0.0, wait) * 1000):
                    return self._socket.recv(_READ_BYTES)
            except OSError as error:
                raise ExecdUnreachableError(f"the connection to execd broke: {error}") from error
            if left <= 0:
                raise ExecdUnreachableError(f"execd sent nothing for {self._silence:g} s")
