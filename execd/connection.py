"""One client's connection: requests one after the other, each as an `Exchange`."""

import asyncio
import errno
import json
import os
import socket
from collections.abc import Callable, Iterable
from typing import Final, cast

import h11

from execd.errors import ExecdError
from execd.exchange import Exchange, Handler
from execd.limits import Limits
from execd.streams import READ_BYTES, ByteStream, take_all

__all__ = ["Connection"]

_MAX_PIPELINED_BYTES: Final = 64 * 1024
_LINGER_BYTES: Final = 4 * 1024 * 1024
_LINGER_SECONDS: Final = 1.0

_SENDFILE_BYTES: Final = 1024 * 1024
"""Of a file in one system call, which does not let others be served meanwhile."""

_CANNOT_SENDFILE: Final = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EOVERFLOW)
"""For this kind of file or socket, or on this kernel."""


class Connection:
    """One client: requests one after the other."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handler: Handler, limits: Limits
    ) -> None:
        self.limits = limits
        self.is_busy = False
        self._reader = reader
        self._writer = writer
        self._handler = handler
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.header_bytes)
        self._request: h11.Request | None = None
        self._watch: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Serve until the client or an error ends it."""
        while True:
            try:
                request = await self._next_request()
                exchange = Exchange(self, request) if request else None
            except h11.RemoteProtocolError as error:
                await self._reply_error(error.error_status_hint, "BAD_REQUEST", str(error))
                return
            except ExecdError as error:
                await self.refuse(error)
                return
            if exchange is None:
                return
            self.is_busy = True
            self._request = request
            try:
                await self._handler(exchange)
            finally:
                self.is_busy = False
                await self.stop_watching()
            if not await self._is_reusable():
                return

    def event_at_hand(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Give the next event of the request if it has come whole, else NEED_DATA. Raises h11.RemoteProtocolError."""
        return self._http.next_event()

    async def next_event(self) -> h11.Event | type[h11.PAUSED]:
        """Give the next event of the request, reading as needed. Raises h11.RemoteProtocolError."""
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return event  # type: ignore[return-value]  # NEED_DATA is the only other member of the union
            if self._http.they_are_waiting_for_100_continue:
                await self.write(h11.InformationalResponse(status_code=100, headers=[]))
            # h11 limits only headers that have not come whole: small reads until they have.
            size = READ_BYTES if self._http.their_state is h11.SEND_BODY else self.limits.header_bytes
            self._http.receive_data(await self._reader.read(size))

    async def write(
        self, *events: h11.Event, patient: bool = False, on_wait: Callable[[], None] | None = None
    ) -> None:
        """Send events in one write and wait for room. Raises OSError, TimeoutError when the client stalls.

        on_wait: called when there is none at once.
        """
        self.write_soon(*events)
        await self.drain(patient=patient, on_wait=on_wait)

    def write_soon(self, *events: h11.Event) -> None:
        """Send events in one write; `drain` is to follow."""
        parts = [self._http.send(event) for event in events]
        self._writer.write(b"".join([part for part in parts if part]))

    async def drain(self, *, patient: bool = False, on_wait: Callable[[], None] | None = None) -> None:
        """Wait for room; see `write`."""
        transport = self._writer.transport
        if not transport.is_closing() and not transport.get_write_buffer_size():
            return
        if on_wait is not None:
            on_wait()
        if patient:
            await self._writer.drain()
        else:
            async with asyncio.timeout(self.limits.write_stall_seconds):
                await self._writer.drain()

    async def send_file(self, fd: int, first: int, count: int) -> int:
        """Have the kernel send bytes of a file from its own memory; gives how many it could.

        Fewer if it cannot do so for this file, or the file has become shorter. Others are served meanwhile.
        Raises OSError, TimeoutError when the client stalls.
        """
        if self._writer.transport.get_write_buffer_size():
            return 0
        sent = 0
        # A descriptor of its own: the loop lets no one wait for that of a transport.
        with socket.socket(fileno=os.dup(self._writer.get_extra_info("socket").fileno())) as target:
            while sent < count:
                try:
                    size = os.sendfile(target.fileno(), fd, first + sent, min(count - sent, _SENDFILE_BYTES))
                except BlockingIOError:
                    async with asyncio.timeout(self.limits.write_stall_seconds):
                        await _writable(target)
                    continue
                except OSError as error:
                    if error.errno in _CANNOT_SENDFILE:
                        break
                    raise
                if not size:
                    break
                self._http.send_with_data_passthrough(h11.Data(data=cast("bytes", range(size))))
                sent += size
                await asyncio.sleep(0)
        return sent

    def has_whole_request(self) -> bool:
        """Take the end of a request whose body no one read, if it has come already."""
        while self._http.their_state is h11.SEND_BODY:
            try:
                if self._http.next_event() is h11.NEED_DATA:
                    return False
            except h11.RemoteProtocolError:
                return False
        return self.has_read_request

    @property
    def has_read_request(self) -> bool:
        """Say whether the request has been read to its end."""
        # One that asks for another protocol rests in the second state until it is answered.
        return self._http.their_state in (h11.DONE, h11.MIGHT_SWITCH_PROTOCOL)  # type: ignore[attr-defined]  # not in __all__

    async def begin_raw_body(self) -> tuple[int, bytes]:
        """Stop reading, for who reads the body from the socket; give its descriptor and what has come already."""
        if self._http.they_are_waiting_for_100_continue:
            await self.write(h11.InformationalResponse(status_code=100, headers=[]))
        received = self._http.trailing_data[0] + take_all(self._reader)
        self._reading.pause_reading()
        return self._writer.get_extra_info("socket").fileno(), received

    def resume_reading(self) -> None:
        """Read again, after the socket was read by another."""
        self._reading.resume_reading()

    @property
    def _reading(self) -> asyncio.ReadTransport:
        return cast("asyncio.ReadTransport", self._writer.transport)

    def end_raw_body(self, rest: bytes) -> None:
        """Go on behind a body that the parser has not seen. rest: what has come after it."""
        self._http = _parser_behind(self._request, self.limits)
        if rest:
            self._http.receive_data(rest)

    @property
    def local_port(self) -> int | None:
        """The TCP port of our side."""
        name = self._writer.get_extra_info("sockname")
        return name[1] if isinstance(name, tuple) else None

    def leave_http(self) -> ByteStream:
        """Hand over the connection after a 101; it is idle for `Server.stop`, since it has no end to wait for."""
        self.is_busy = False
        return ByteStream(self._reader, self._writer, self._http.trailing_data[0])

    def watch_peer(self, callback: Callable[[], None]) -> None:
        """Call back once the client closes its side."""
        self._watch = asyncio.get_running_loop().create_task(self._watch_peer(callback))

    async def stop_watching(self) -> None:
        """End `watch_peer`; what it has read is kept for the next request."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
            self._watch = None

    async def refuse(self, error: ExecdError) -> None:
        """Answer an error outside of any route, and close."""
        await self._reply_error(error.status, error.code, error.message, error.headers)

    def abort(self) -> None:
        """Close without sending what is buffered."""
        self._writer.transport.abort()

    def drop(self) -> None:
        """Close; a client that does not take what is still buffered loses it after a while."""
        if self._watch is not None:
            self._watch.cancel()
        self._writer.close()
        if self._writer.transport.get_write_buffer_size():
            asyncio.get_running_loop().call_later(
                self.limits.write_stall_seconds, self._writer.transport.abort
            )

    async def _next_request(self) -> h11.Request | None:
        """Give the next request; None when the client closed or was silent for too long."""
        if not self._http.trailing_data[0]:
            try:
                async with asyncio.timeout(self.limits.idle_seconds):
                    data = await self._reader.read(self.limits.header_bytes)
            except TimeoutError:
                return None
            self._http.receive_data(data)
        event = self.event_at_hand()
        if event is h11.NEED_DATA:
            async with asyncio.timeout(self.limits.header_seconds):
                event = await self.next_event()
        if not isinstance(event, h11.Request):
            return None
        if {b"content-length", b"transfer-encoding"} <= {name for name, _ in event.headers}:
            # A relay in front may have gone by the other one, and take the rest for a request of somebody else's.
            raise h11.RemoteProtocolError("content-length and transfer-encoding exclude each other")
        return event

    async def _is_reusable(self) -> bool:
        """Make ready for the next request; False (after a lingering close) if that is not possible."""
        if self._http.our_state is h11.DONE and self.has_whole_request():
            self._http.start_next_cycle()
            return True
        await self._linger()
        return False

    async def _linger(self) -> None:
        """Take what the client still sends, for a moment: a reset would destroy the answer on its way."""
        if self._writer.can_write_eof():
            self._writer.write_eof()
        rest = _LINGER_BYTES
        try:
            async with asyncio.timeout(_LINGER_SECONDS):
                while rest > 0 and (data := await self._reader.read(READ_BYTES)):
                    rest -= len(data)
        except TimeoutError:
            return

    async def _reply_error(
        self, status: int, code: str, message: str, fields: Iterable[tuple[str, str]] = ()
    ) -> None:
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        body = json.dumps({"code": code, "message": message}).encode("ascii")
        headers = [
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
            ("connection", "close"),
            *fields,
        ]
        await self.write(
            h11.Response(status_code=status, headers=headers), h11.Data(data=body), h11.EndOfMessage()
        )
        await self._linger()

    async def _watch_peer(self, callback: Callable[[], None]) -> None:
        pipelined = 0
        try:
            while data := await self._reader.read(READ_BYTES):
                pipelined += len(data)
                self._http.receive_data(data)
                if pipelined > _MAX_PIPELINED_BYTES:
                    return  # the rest waits in the socket; only a failing write can tell the end now
        except OSError:
            pass
        callback()
        # A writer that waits for room would not notice by itself.
        self.abort()


async def _writable(target: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    is_writable = loop.create_future()
    loop.add_writer(target, _resolve, is_writable)
    try:
        await is_writable
    finally:
        loop.remove_writer(target)


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def _parser_behind(request: h11.Request | None, limits: Limits) -> h11.Connection:
    """Give a parser that has seen a request like this one whole: what counts for the answer is in its head."""
    http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.header_bytes)
    if request is not None:
        kept = [b"Connection: " + value for name, value in request.headers if name == b"connection"]
        head = [b"POST / HTTP/" + request.http_version, b"Host: execd", *kept, b"", b""]
        http.receive_data(b"\r\n".join(head))
        for _ in ("request", "its end"):
            http.next_event()
    return http
