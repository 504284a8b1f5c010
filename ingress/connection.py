"""One client's connection: requests one after the other."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from core.logging import get_logger
from core.metrics import INGRESS_REFUSED
from ingress.errors import IngressError
from ingress.limits import Limits
from traffic.bodies import BodyReader, request_framing
from traffic.errors import MessageError
from traffic.headers import INGRESS_ERROR
from traffic.heads import RequestHead, format_head, read_request, values_of
from traffic.streams import Stream

__all__ = ["Connection", "Handler"]

log = get_logger(__name__)

_LINGER_BYTES: Final = 4 << 20
_REASONS: Final = {
    200: b"OK",
    400: b"Bad Request",
    401: b"Unauthorized",
    404: b"Not Found",
    405: b"Method Not Allowed",
    408: b"Request Timeout",
    431: b"Request Header Fields Too Large",
    501: b"Not Implemented",
    502: b"Bad Gateway",
    503: b"Service Unavailable",
    504: b"Gateway Timeout",
}


class Connection:
    """Reads requests strictly and hands them on."""

    def __init__(self, stream: Stream, handler: "Handler", limits: Limits) -> None:
        self.stream = stream
        self.is_busy = False
        self._handler = handler
        self._limits = limits

    async def run(self) -> None:
        """Serve until the client or an error ends it."""
        wait_seconds = self._limits.head_seconds
        while True:
            try:
                async with asyncio.timeout(wait_seconds):
                    if not await self.stream.wait():
                        return
            except TimeoutError:
                return
            wait_seconds = self._limits.idle_seconds
            self.is_busy = True
            if not await self._serve():
                await self._linger()
                return
            self.is_busy = False

    async def refuse(self, error: IngressError) -> None:
        """Answer an error whatever is asked, and close."""
        await self.reply_error(error, goes_on=False)
        await self._linger()

    async def reply(
        self,
        status: int,
        body: bytes,
        *,
        content_type: bytes = b"text/plain; charset=utf-8",
        headers: "list[tuple[bytes, bytes]] | None" = None,
        goes_on: bool = True,
        is_head: bool = False,
    ) -> None:
        """Send an answer of our own."""
        lines = [
            (b"Content-Type", content_type),
            (b"Content-Length", b"%d" % len(body)),
            *(headers or []),
            *([] if goes_on else [(b"Connection", b"close")]),
        ]
        head = format_head(b"HTTP/1.1 %d %b" % (status, _REASONS.get(status, b"")), lines)
        await self.stream.write(head if is_head else head + body)

    async def reply_error(self, error: IngressError, *, goes_on: bool, is_head: bool = False) -> None:
        """Send an error."""
        INGRESS_REFUSED.labels(str(error.status)).inc()
        later = error.retry_after_seconds
        headers = [] if later is None else [(b"Retry-After", b"%d" % later)]
        headers.append((INGRESS_ERROR, error.code.encode()))
        await self.reply(
            error.status,
            error.body,
            content_type=error.content_type,
            headers=headers,
            goes_on=goes_on,
            is_head=is_head,
        )

    async def _serve(self) -> bool:
        """Handle one request; False: this was the last one."""
        try:
            try:
                async with asyncio.timeout(self._limits.head_seconds):
                    request = await read_request(self.stream)
            except TimeoutError:
                raise MessageError("the head of the request does not come", status=408) from None
            if request is None:
                return False
            _check(request)
            body = BodyReader(self.stream, request_framing(request))
        except MessageError as error:
            await self.reply_error(IngressError(error.status, error.message), goes_on=False)
            return False
        return await self._handler(self, request, body)

    async def _linger(self) -> None:
        """Take what the client still sends, for a moment: a reset would destroy the answer on its way."""
        self.stream.write_eof()
        rest = _LINGER_BYTES
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.linger_seconds):
                while rest > 0 and (data := await self.stream.read()):
                    rest -= len(data)


Handler = Callable[[Connection, RequestHead, BodyReader], Awaitable[bool]]
"""Answers a request. False: the connection cannot go on. Raises ConnectionError when the client has gone."""


def _check(request: RequestHead) -> None:
    """Refuse what is no request for a proxy of this kind. Raises MessageError."""
    hosts = values_of(request.headers, b"host")
    if len(hosts) > 1 or (not hosts and request.version >= 11):
        raise MessageError("there must be one Host")
    if request.method == b"CONNECT":
        raise MessageError("CONNECT is not spoken here", status=405)
    is_asterisk = request.target == b"*" and request.method == b"OPTIONS"
    if not (request.target.startswith(b"/") or is_asterisk):
        raise MessageError("the target of the request is no path")
