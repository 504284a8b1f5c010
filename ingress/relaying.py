"""One request on its way into a sandbox, and the answer on its way back, both at once."""

import asyncio
import contextlib

from traffic.backends import Backend
from traffic.bodies import CHUNKED, UNTIL_CLOSE, BodyReader, BodyWriter
from traffic.errors import BackendError, MessageError
from traffic.headers import passing_headers
from traffic.heads import RequestHead, ResponseHead, format_head, keeps_alive
from traffic.messages import read_answer, returned_headers
from traffic.streams import Stream
from traffic.tunnel import tunnel

__all__ = ["Relaying"]


class Relaying:
    """A request whose head was read and whose backend is connected.

    is_started: something of an answer has gone to the client. is_framed: whose end it can tell from a break.
    client_error: what was wrong with the client's body. status: of the answer, 0 until it has come.
    """

    def __init__(
        self,
        client: Stream,
        request: RequestHead,
        body: BodyReader,
        backend: Backend,
        *,
        upgrades: bool,
        body_silence_seconds: float,
    ) -> None:
        """upgrades: the request asks for another protocol. body_silence_seconds: until an answer has begun."""
        self.is_started = False
        self.is_framed = True
        self.client_error: MessageError | None = None
        self.status = 0
        self._client = client
        self._request = request
        self._body = body
        self._backend = backend
        self._upgrades = upgrades
        self._can_reuse = False
        self._silence = body_silence_seconds
        self._writer = BodyWriter(is_chunked=body.framing == CHUNKED)

    async def run(self, head: bytes) -> bool:
        """Relay to the end of the answer, or of what takes its place. True: the client's connection can go on.

        head: as the backend gets it. Raises BackendError, or MessageError for the client's body, as long as is_started
        is false; ConnectionError when the client has gone.
        """
        upload: asyncio.Task[None] | None = None
        self._client.on_lost = self._backend.stream.abort
        try:
            first = self._next_part(self._body.at_hand())
            with contextlib.suppress(ConnectionError):  # it may have answered all the same
                await self._backend.stream.write(head + first)
            if self._body.is_complete:
                self._follow_client()
            else:
                upload = asyncio.get_running_loop().create_task(self._upload())
            return await self._download()
        except BackendError:
            if self.client_error is not None:
                raise self.client_error from None
            raise
        finally:
            if upload is not None:
                upload.cancel()
                await asyncio.wait([upload])
            self._client.on_lost = self._client.on_eof = None

    @property
    def is_backend_reusable(self) -> bool:
        """Whether the backend's connection has nothing left of this exchange. Good once `run` has returned."""
        return self._can_reuse and self._body.is_complete and not self._client.is_eof

    def _follow_client(self) -> None:
        """A client that ends its direction ends the backend's, too: that knows best what it means."""
        self._client.on_eof = self._backend.stream.write_eof
        if self._client.is_eof:
            self._backend.stream.write_eof()

    def _next_part(self, content: bytes) -> bytes:
        framed = self._writer.frame(content)
        if not self._body.is_complete:
            return framed
        return framed + self._writer.end(passing_headers(self._body.trailers, is_request=True))

    async def _upload(self) -> None:
        try:
            while not self._body.is_complete:
                content = await self._next_content()
                await self._backend.stream.write(self._next_part(content))
        except MessageError as error:
            self.client_error = error
            self._backend.stream.abort()
        except ConnectionError:
            return  # its answer, if it gave one, says why it wants no more
        else:
            self._follow_client()

    async def _next_content(self) -> bytes:
        while not self.is_started:
            try:
                async with asyncio.timeout(self._silence):
                    return await self._body.read()
            except TimeoutError:
                # Who answers already may well be talked to for as long as it takes.
                if not self.is_started:
                    raise MessageError("the body of the request does not come", status=408) from None
        return await self._body.read()

    async def _download(self) -> bool:
        head, body = await read_answer(
            self._backend.stream,
            method=self._request.method,
            upgrades=self._upgrades,
            on_interim=self._send_interim,
        )
        self.status = head.status
        if head.status == 101:
            await self._tunnel(head)
            return False
        is_modern = self._request.version >= 11
        is_chunked = is_modern and body.framing in (CHUNKED, UNTIL_CLOSE)
        goes_on = keeps_alive(self._request) and self._body.is_complete and not self._client.is_eof
        headers = returned_headers(head, body.framing, is_chunked=is_chunked)
        if not goes_on:
            headers.append((b"Connection", b"close"))
        self.is_framed = is_chunked or body.framing not in (CHUNKED, UNTIL_CLOSE)
        writer = BodyWriter(is_chunked=is_chunked)
        out = _format(head, headers)
        try:
            content = body.at_hand()
            while True:
                out += writer.frame(content)
                if body.is_complete:
                    out += writer.end(passing_headers(body.trailers, is_request=False))
                if out:
                    self.is_started = True
                    await self._client.write(out)
                if body.is_complete:
                    break
                out, content = b"", await body.read()
        except MessageError as error:
            raise BackendError(f"the answer is broken: {error.message}") from error
        self._can_reuse = body.framing != UNTIL_CLOSE and keeps_alive(head)
        return goes_on

    async def _send_interim(self, head: ResponseHead) -> None:
        if self._request.version >= 11:
            await self._client.write(_format(head, returned_headers(head, 0, is_chunked=False)))

    async def _tunnel(self, head: ResponseHead) -> None:
        self._client.on_lost = self._client.on_eof = None
        self.is_started = True
        await self._client.write(_format(head, returned_headers(head, 0, is_chunked=False)))
        await tunnel(self._client, self._backend.stream)


def _format(head: ResponseHead, headers: list[tuple[bytes, bytes]]) -> bytes:
    return format_head(b"HTTP/1.1 %d %b" % (head.status, head.reason), headers)
