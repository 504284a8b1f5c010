"""One request and its response, as routes see them."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import h11

from execd.bodies import RawBody
from execd.errors import InvalidBodyError, PayloadTooLargeError, RequestTimeoutError
from execd.limits import Limits
from execd.streams import ByteStream
from execd.target import Target, parse_target

if TYPE_CHECKING:
    from execd.connection import Connection

__all__ = ["Exchange", "Handler", "Headers"]

Headers = Sequence[tuple[str, str]] | Sequence[tuple[bytes, bytes]]


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
            try:
                event = self._connection.event_at_hand()
                if event is h11.NEED_DATA:
                    allowed = limits.body_grace_seconds + received / limits.minimum_body_rate
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

    async def send(
        self, data: bytes, *, patient: bool = False, on_wait: Callable[[], None] | None = None
    ) -> None:
        """Send a part and wait until the client can take more.

        patient: wait as long as it takes; otherwise a client that takes nothing for a minute is given up.
        on_wait: called if it cannot take more at once.
        """
        await self._connection.write(h11.Data(data=data), patient=patient, on_wait=on_wait)

    async def upgrade(self, headers: Headers) -> ByteStream:
        """Answer 101 and leave HTTP. The request must have come whole, and have asked for it."""
        self.is_started = True
        await self._connection.stop_watching()
        await self.inform(101, headers)
        return self._connection.leave_http()

    def abort(self) -> None:
        """Drop the connection; whoever waits in `send` gets an OSError."""
        self._connection.abort()

    async def send_file(self, fd: int, first: int, count: int) -> int:
        """Send bytes of a file; gives how many could be sent without reading them, the rest is left to `send`.

        For responses with a content-length. Raises as `send`.
        """
        return await self._connection.send_file(fd, first, count)

    async def finish(self, last: bytes = b"", *, trailers: Headers = ()) -> None:
        """End a response begun with `start`. trailers: only for one without content-length, and a body.

        last: what is left to be sent, in the same write.
        """
        await self._end(*([h11.Data(data=last)] if last else []), h11.EndOfMessage(headers=_listed(trailers)))

    async def reply_chunked(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole response in one write, in the form of one that was begun and finished."""
        self.is_started = True
        await self._end(self._head(status, headers), h11.Data(data=body), h11.EndOfMessage())

    async def _end(self, *events: h11.Event) -> None:
        self._connection.write_soon(*events)
        # What the client sends after the end is its next request, which the watch must not take for itself: it is
        # told to end before the loop runs again.
        await self._connection.stop_watching()
        await self._connection.drain()

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
