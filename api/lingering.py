"""Answers that come before the end of a request reach its client: what is still on its way is read and dropped."""

import asyncio
import contextlib
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["Lingering", "LingeringMiddleware"]

_IDLE_SECONDS: Final = 2.0
"""Of silence, after which the client is taken to have heard."""
_TOTAL_SECONDS: Final = 30.0
"""After which it is cut off, however much it has to send."""


class LingeringMiddleware:
    """Plain ASGI, around all that may answer early: a refusal by length, by key, by path."""

    def __init__(self, app: ASGIApp) -> None:
        """app: the next layer."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection of any kind."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        call = Lingering(scope, receive, send)
        await self._app(scope, call.receive, call.send)


class Lingering:
    """Receive and send of one request, so that the end of its answer waits for the end of its body.

    A connection that is closed while bytes of its client are unread is reset, and a reset takes along the answer that
    lies in the client's buffer. Where the connection stays open, the server below reads on by itself.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Watch a request from its beginning."""
        self._receive = receive
        self._send = send
        self._heard = asyncio.Event()
        # A client that waits for being told to go on sends nothing after an answer.
        self._is_over = not _closes(scope) or any(name == b"expect" for name, _ in scope["headers"])

    async def receive(self) -> Message:
        """Give the next message of the request."""
        message = await self._receive()
        self._is_over = self._is_over or not message.get("more_body")
        self._heard.set()
        return message

    async def send(self, message: Message) -> None:
        """Send a message of an answer after which nobody else asks for messages of the request."""
        if _is_last(message) and not self._is_over:
            reader = asyncio.create_task(self._read_on())
            try:
                await self.send_while_read(message)
            finally:
                reader.cancel()
                await asyncio.wait([reader])
            return
        await self._send(message)

    async def send_while_read(self, message: Message) -> None:
        """Send a message of an answer while somebody else goes on to ask for messages of the request."""
        if not _is_last(message) or self._is_over:
            await self._send(message)
            return
        if message.get("body"):
            await self._send({**message, "more_body": True})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TOTAL_SECONDS):
                while not self._is_over:
                    self._heard.clear()
                    async with asyncio.timeout(_IDLE_SECONDS):
                        await self._heard.wait()
        await self._send({"type": "http.response.body", "body": b""})

    async def _read_on(self) -> None:
        while not self._is_over:
            await self.receive()


def _is_last(message: Message) -> bool:
    return message["type"] == "http.response.body" and not message.get("more_body")


def _closes(scope: Scope) -> bool:
    """Whether the connection ends with the answer."""
    options = [value.lower() for name, value in scope["headers"] if name == b"connection"]
    return scope["http_version"] == "1.0" or any(b"close" in value for value in options)
