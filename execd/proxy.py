"""The relay to programs of the sandbox: bytes and headers pass as they are, in both directions at once."""

import asyncio
import contextlib
from typing import Final

import h11

from execd.errors import BackendError, ExecdError, MethodNotAllowedError
from execd.exchange import Exchange
from execd.proxy_backend import Backend
from execd.proxy_headers import has_token, kept_headers, request_headers, response_headers, split_target
from execd.streams import ByteStream, SocketStream

__all__ = ["relay"]

_CONTINUE_SECONDS: Final = 1.0
"""A backend that does not know `Expect: 100-continue` gets the body after this time."""


async def relay(exchange: Exchange) -> None:
    """Send a request on to the port in its path, and the answer back.

    Raises InvalidQueryError, MethodNotAllowedError, BackendError.
    """
    if exchange.method == "CONNECT":
        raise MethodNotAllowedError("the relay takes all methods but CONNECT")
    port, target = split_target(exchange.target.raw, own_port=exchange.local_port)
    request = exchange.request
    # Asked for with a body, another protocol could begin in the middle of it.
    upgrades = has_token(request.headers, b"connection", b"upgrade") and exchange.has_header("upgrade")
    upgrades = upgrades and not (
        exchange.has_header("transfer-encoding") or exchange.header("content-length")
    )
    headers = request_headers(request, port, upgrades=upgrades)
    outgoing = h11.Request(method=request.method, target=target, headers=headers)
    backend = await Backend.connect(port)
    relaying = _Relaying(exchange, backend)
    try:
        with contextlib.suppress(OSError):  # it may have answered all the same
            await backend.send(outgoing)
        await relaying.run()
    finally:
        backend.close()


class _Relaying:
    """One request on its way, the body in a task beside the response."""

    def __init__(self, exchange: Exchange, backend: Backend) -> None:
        self._exchange = exchange
        self._backend = backend
        self._may_send_body = asyncio.Event()
        self._client_error: ExecdError | None = None
        if not has_token(exchange.request.headers, b"expect", b"100-continue"):
            self._may_send_body.set()

    async def run(self) -> None:
        """Relay to the end of the response, or of what takes its place."""
        upload = asyncio.get_running_loop().create_task(self._send_body())
        switching: h11.InformationalResponse | None = None
        try:
            head = await self._head()
            if isinstance(head, h11.Response):
                await self._send_back(head)
            else:
                switching = head
        except BackendError as error:
            raise self._client_error or error from None
        finally:
            upload.cancel()
            await asyncio.wait([upload])
        if not upload.cancelled():
            upload.result()  # whatever it did not expect is to be seen
        if switching is not None:
            await self._tunnel(switching)

    async def _send_body(self) -> None:
        if not self._may_send_body.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CONTINUE_SECONDS):
                    await self._may_send_body.wait()
        try:
            async for event in self._exchange.relayed_body():
                if isinstance(event, h11.EndOfMessage):
                    event = h11.EndOfMessage(headers=kept_headers(event.headers))  # noqa: PLW2901
                try:
                    await self._backend.send(event)
                except OSError:
                    return  # its answer, if it gave one, says why it wants no more
        except (ExecdError, OSError) as error:
            self._client_error = error if isinstance(error, ExecdError) else None
            self._backend.abort()
            return
        self._exchange.on_disconnect(self._backend.abort)

    async def _head(self) -> h11.Response | h11.InformationalResponse:
        """Give the response, or the 101 that comes in its place; send on what goes before it."""
        while True:
            event = await self._backend.next_event()
            if isinstance(event, h11.Response):
                return event
            if not isinstance(event, h11.InformationalResponse):
                raise BackendError("the connection was closed before the answer")
            if event.status_code == 101:
                return event
            if event.status_code == 100:
                self._may_send_body.set()
            elif self._exchange.request.http_version >= b"1.1":
                await self._exchange.inform(event.status_code, response_headers(event))

    async def _send_back(self, response: h11.Response) -> None:
        exchange = self._exchange
        await exchange.start(response.status_code, response_headers(response), reason=response.reason)
        while isinstance(event := await self._backend.next_event(), h11.Data):
            # However slow the client: the backend waits with it.
            await exchange.send(event.data, patient=True)
        trailers = kept_headers(event.headers) if isinstance(event, h11.EndOfMessage) else []
        await exchange.finish(trailers=trailers if exchange.request.http_version >= b"1.1" else [])

    async def _tunnel(self, switching: h11.InformationalResponse) -> None:
        client = await self._exchange.upgrade(response_headers(switching))
        backend = self._backend.leave_http()
        loop = asyncio.get_running_loop()
        pumps = [loop.create_task(_pump(client, backend)), loop.create_task(_pump(backend, client))]
        try:
            await asyncio.gather(*pumps)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.wait(pumps)


async def _pump(source: ByteStream | SocketStream, sink: ByteStream | SocketStream) -> None:
    """Carry one direction to its end, and pass that on too."""
    while data := await source.read():
        await sink.write(data)
    sink.write_eof()
