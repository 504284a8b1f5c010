"""One client's connection: requests one after the other, each as an `Exchange`."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import h11

from execd.bodies import RawBody
from execd.errors import ExecdError, InvalidBodyError, PayloadTooLargeError, RequestTimeoutError
from execd.streams import READ_BYTES, ByteStream, take_all
from execd.target import Target, parse_target

__all__ = ["Connection", "Exchange", "Handler", "Headers", "Limits"]

_MAX_PIPELINED_BYTES: Final = 64 * 1024
_LINGER_BYTES: Final = 4 * 1024 * 1024
_LINGER_SECONDS: Final = 1.0

Headers = Sequence[tuple[str, str]] | Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client may take.

    minimum_body_rate: bytes per second of a body once body_grace_seconds are over. stream_end_seconds: to fetch the
    rest of a command's stream after the command ended. websocket_read_seconds: of silence, pongs included, until a
    WebSocket is given up.
    """

    connections: int = 256
    header_bytes: int = 16 * 1024
    json_bytes: int = 16 * 1024 * 1024
    upload_bytes: int = 16 * 1024**3
    idle_seconds: float = 120.0
    header_seconds: float = 20.0
    body_grace_seconds: float = 60.0
    minimum_body_rate: int = 1024
    write_stall_seconds: float = 60.0
    stream_end_seconds: float = 300.0
    websocket_ping_seconds: float = 30.0
    websocket_read_seconds: float = 60.0


class Exchange:
    """One request and its response. Bytes go out only through `reply…`, or `start` and `send`.

    path_values: what stands in the path where the route has a name in braces.
    """

    def __init__(self, connection: "Connection", request: h11.Request) -> None:
        self.method = request.method.decode("ascii")
        self.target: Target = parse_target(request.target)
        self.path_values: dict[str, str] = {}
        self.request = request
        self._headers = {bytes(name): bytes(value) for name, value in request.headers}
        self._connection = connection
        self._is_read_elsewhere = False
        self.is_started = False

    @property
    def limits(self) -> Limits:
        """Limits of this server."""
        return self._connection.limits

    def header(self, name: str) -> str | None:
        """Give a request header; the last one if it was repeated."""
        value = self._headers.get(name.lower().encode("ascii"))
        return None if value is None else value.decode("latin-1")

    def has_header(self, name: str) -> bool:
        """Say whether a header was sent, be it empty."""
        return name.lower().encode("ascii") in self._headers

    def header_values(self, name: str) -> list[str]:
        """Give all values of a header that may be repeated, in order."""
        wanted = name.lower().encode("ascii")
        return [value.decode("latin-1") for key, value in self.request.headers if key == wanted]

    def has_whole_request(self) -> bool:
        """Say whether nothing of the request is outstanding; what has come of a body nobody read is dropped."""
        return self._connection.has_whole_request()

    @property
    def local_port(self) -> int | None:
        """The TCP port that the client connected to; None for other sockets."""
        return self._connection.local_port

    async def body(self, *, max_bytes: int) -> AsyncIterator[bytes]:
        """Give the body as it comes. Raises PayloadTooLargeError, RequestTimeoutError, InvalidBodyError."""
        declared = self.header("content-length")
        if declared is not None and int(declared) > max_bytes:
            raise PayloadTooLargeError(f"the body is larger than {max_bytes} bytes")
        received = 0
        started = time.monotonic()
        limits = self.limits
        while True:
            allowed = limits.body_grace_seconds + received / limits.minimum_body_rate
            try:
                async with asyncio.timeout(started + allowed - time.monotonic()):
                    event = await self._connection.next_event()
            except TimeoutError as error:
                raise RequestTimeoutError("the body comes too slowly") from error
            except h11.RemoteProtocolError as error:
                raise InvalidBodyError(f"the body is broken: {error}") from error
            if not isinstance(event, h11.Data):
                return
            received += len(event.data)
            if received > max_bytes:
                raise PayloadTooLargeError(f"the body is larger than {max_bytes} bytes")
            yield bytes(event.data)

    def raw_body(self, *, max_bytes: int) -> RawBody:
        """Take the body past the parser, which is much faster for a large one. To be closed. Raises as `body`."""
        is_chunked = self.header("transfer-encoding") is not None
        length = None if is_chunked else int(self.header("content-length") or 0)
        return RawBody(self._connection, length=length, max_bytes=max_bytes)

    async def relayed_body(self) -> AsyncIterator[h11.Data | h11.EndOfMessage]:
        """Give the body as it comes, however large and slow, and last its end with the trailers.

        The response may go out meanwhile. Raises InvalidBodyError.
        """
        self._is_read_elsewhere = True
        while True:
            try:
                event = await self._connection.next_event()
            except h11.RemoteProtocolError as error:
                raise InvalidBodyError(f"the body is broken: {error}") from error
            if isinstance(event, h11.Data):
                yield event
            else:
                yield event if isinstance(event, h11.EndOfMessage) else h11.EndOfMessage()
                return

    async def read_body(self) -> bytes:
        """Give the whole body of a JSON route. Raises as `body`."""
        return b"".join([part async for part in self.body(max_bytes=self.limits.json_bytes)])

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """Call back once if the client goes away during the response. The body must have been read."""
        self._connection.watch_peer(callback)

    async def stop_watching(self) -> None:
        """End what `on_disconnect` began; `finish` does so by itself."""
        await self._connection.stop_watching()

    async def reply(self, status: int, body: bytes = b"", *, headers: Headers = ()) -> None:
        """Send a whole response."""
        self.is_started = True
        await self._connection.write(
            self._head(status, [*headers, ("content-length", str(len(body)))]),
            h11.Data(data=body),
            h11.EndOfMessage(),
        )

    async def reply_json(self, status: int, document: Any, *, headers: Headers = ()) -> None:
        """Send a JSON document."""
        body = json.dumps(document, separators=(",", ":")).encode("ascii")
        await self.reply(status, body, headers=[("content-type", "application/json"), *headers])

    async def start(self, status: int, headers: Headers, *, first: bytes = b"", reason: bytes = b"") -> None:
        """Begin a response whose body follows by `send`; chunked unless headers hold a content-length."""
        self.is_started = True
        await self._connection.write(self._head(status, headers, reason), h11.Data(data=first))

    async def inform(self, status: int, headers: Headers) -> None:
        """Send what goes before a response: 102, 103."""
        await self._connection.write(h11.InformationalResponse(status_code=status, headers=_listed(headers)))

    async def send(self, data: bytes, *, patient: bool = False) -> None:
        """Send a part and wait until the client can take more.

        patient: wait as long as it takes; otherwise a client that takes nothing for a minute is given up.
        """
        await self._connection.write(h11.Data(data=data), patient=patient)

    async def upgrade(self, headers: Headers) -> ByteStream:
        """Answer 101 and leave HTTP. The request must have come whole, and have asked for it."""
        self.is_started = True
        await self._connection.stop_watching()
        await self.inform(101, headers)
        return self._connection.leave_http()

    def abort(self) -> None:
        """Drop the connection; whoever waits in `send` gets an OSError."""
        self._connection.abort()

    async def finish(self, *, trailers: Headers = ()) -> None:
        """End a response begun with `start`. trailers: only for one without content-length, and a body."""
        # What the client sends after the end is its next request, which the watch must not take for itself.
        await self._connection.stop_watching()
        await self._connection.write(h11.EndOfMessage(headers=_listed(trailers)))

    def _head(self, status: int, headers: Headers, reason: bytes = b"") -> h11.Response:
        # What is left of a body that no one wants makes the connection useless: the client must know.
        has_whole = (
            self._connection.has_read_request
            if self._is_read_elsewhere
            else self._connection.has_whole_request()
        )
        closing = () if has_whole else (("connection", "close"),)
        return h11.Response(status_code=status, headers=[*headers, *closing], reason=reason)


def _listed(headers: Headers) -> Any:
    """For h11, whose types know no sequence."""
    return list(headers)


Handler = Callable[[Exchange], Awaitable[None]]


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

    async def write(self, *events: h11.Event, patient: bool = False) -> None:
        """Send events in one write and wait for room. Raises OSError, TimeoutError when the client stalls."""
        parts = [self._http.send(event) for event in events]
        self._writer.write(b"".join([part for part in parts if part]))
        if patient:
            await self._writer.drain()
        else:
            async with asyncio.timeout(self.limits.write_stall_seconds):
                await self._writer.drain()

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
        await self._reply_error(error.status, error.code, error.message)

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
        async with asyncio.timeout(self.limits.header_seconds):
            event = await self.next_event()
        return event if isinstance(event, h11.Request) else None

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

    async def _reply_error(self, status: int, code: str, message: str) -> None:
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        body = json.dumps({"code": code, "message": message}).encode("ascii")
        headers = [
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
            ("connection", "close"),
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
