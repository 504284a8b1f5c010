"""The server side of a WebSocket: frames by wsproto, limits and deadlines by this module.

Imported when the first client comes, since wsproto costs more time than all of execd's start.
"""

import asyncio
import time
from typing import Final

from wsproto.connection import SERVER, Connection, ConnectionState
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, TextMessage
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import generate_accept_token

from execd.exchange import Exchange
from execd.limits import Limits
from execd.streams import ByteStream

__all__ = ["MAX_MESSAGE_BYTES", "WebSocket"]

MAX_MESSAGE_BYTES: Final = 1024 * 1024


class WebSocket:
    """An open WebSocket. One task may receive while others send."""

    def __init__(self, stream: ByteStream, limits: Limits) -> None:
        self._stream = stream
        self._limits = limits
        self._protocol = Connection(SERVER)
        self._message = bytearray()
        self._next_ping = time.monotonic() + limits.websocket_ping_seconds

    @classmethod
    async def accept(cls, exchange: Exchange, key: str) -> "WebSocket":
        """Answer a handshake that `execd.handshake` found in order. key: of the request. No extension is agreed on."""
        token = generate_accept_token(key.encode("ascii")).decode("ascii")
        stream = await exchange.upgrade(
            [("upgrade", "websocket"), ("connection", "Upgrade"), ("sec-websocket-accept", token)]
        )
        return cls(stream, exchange.limits)

    async def receive(self) -> bytes | str | None:
        """Give the next message; None when the socket is closed, by whomever.

        Answers pings, and sends its own. Raises TimeoutError if nothing came for a minute of waiting, OSError.
        """
        while True:
            event = next(self._protocol.events(), None)
            if event is None:
                if self._protocol.state is not ConnectionState.OPEN:
                    return None
                data = await self._read()
                if not data:
                    return None
                self._protocol.receive_data(data)
            elif isinstance(event, (TextMessage, BytesMessage)):
                if len(self._message) + len(event.data) > MAX_MESSAGE_BYTES:
                    self.close(
                        CloseReason.MESSAGE_TOO_BIG, f"a message is larger than {MAX_MESSAGE_BYTES} bytes"
                    )
                    return None
                message = self._collect(event)
                if message is not None:
                    return message
            elif not await self._answer(event):
                return None

    async def send(self, message: bytes | str) -> None:
        """Send a message and wait until the client can take more. Raises OSError, also after the end."""
        if self._protocol.state is not ConnectionState.OPEN:
            raise ConnectionResetError("the WebSocket is closed")
        event = TextMessage(message) if isinstance(message, str) else BytesMessage(message)
        await self._stream.write(self._protocol.send(event))

    def send_soon(self, message: str) -> None:
        """Send a last word without waiting. Does nothing on a socket that is closed."""
        if self._protocol.state is ConnectionState.OPEN:
            self._stream.write_soon(self._protocol.send(TextMessage(message)))

    def close(self, code: int, reason: str) -> None:
        """Begin the end, without waiting for it. Does nothing on a socket that is closed."""
        if self._protocol.state in (ConnectionState.OPEN, ConnectionState.REMOTE_CLOSING):
            self._stream.write_soon(self._protocol.send(CloseConnection(code, reason)))

    def abort(self) -> None:
        """Drop the connection; whoever waits in `send` gets an OSError."""
        self._stream.abort()

    def _collect(self, event: TextMessage | BytesMessage) -> bytes | str | None:
        """Add a part of a message; give the message when it is whole."""
        self._message += event.data.encode() if isinstance(event, TextMessage) else event.data
        if not event.message_finished:
            return None
        whole, self._message = bytes(self._message), bytearray()
        return whole.decode() if isinstance(event, TextMessage) else whole

    async def _answer(self, event: Event) -> bool:
        """React to a frame that is no data; False at the end of the connection."""
        if isinstance(event, Ping):
            await self._stream.write(self._protocol.send(event.response()))
        elif isinstance(event, CloseConnection):
            # The client's own close, or what wsproto says to frames that it cannot read.
            self.close(event.code, event.reason or "")
            return False
        return True

    async def _read(self) -> bytes:
        deadline = time.monotonic() + self._limits.websocket_read_seconds
        while True:
            try:
                async with asyncio.timeout(min(self._next_ping, deadline) - time.monotonic()):
                    return await self._stream.read()
            except TimeoutError:
                if time.monotonic() >= deadline:
                    raise
                self._next_ping = time.monotonic() + self._limits.websocket_ping_seconds
                if self._protocol.state is ConnectionState.OPEN:
                    await self._stream.write(self._protocol.send(Ping()))
