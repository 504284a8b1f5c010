"""The WebSocket's deadlines, against a server with short ones in this process."""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from execd.exchange import Exchange
from execd.handshake import check_handshake
from execd.limits import Limits
from execd.server import Server
from execd.websocket import MAX_MESSAGE_BYTES, WebSocket

SHORT = Limits(websocket_ping_seconds=0.1, websocket_read_seconds=0.4)
HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
)


class Echo:
    """Sends back what it gets, and notes how it ended."""

    def __init__(self) -> None:
        self.ended_by: str | None = None
        self.ended = asyncio.Event()

    async def handle(self, exchange: Exchange) -> None:
        try:
            socket = await WebSocket.accept(exchange, check_handshake(exchange))
            while (message := await socket.receive()) is not None:
                await socket.send(message)
            self.ended_by = "close"
        except BaseException as error:
            self.ended_by = type(error).__name__
            raise
        finally:
            self.ended.set()


def with_echo(work: Callable[[int, Echo], Awaitable[None]]) -> str | None:
    """Give how the server's side ended."""

    async def session() -> str | None:
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        echo = Echo()
        server = Server(echo.handle, SHORT)
        await server.start(listener)
        try:
            async with asyncio.timeout(10):
                await work(port, echo)
                await echo.ended.wait()
        finally:
            await server.stop(grace_seconds=0)
        return echo.ended_by

    return asyncio.run(session())


def connected(port: int) -> connect:
    return connect(f"ws://127.0.0.1:{port}/", proxy=None, max_size=None, ping_interval=None)


def test_a_client_that_answers_pings_is_kept() -> None:
    async def work(port: int, echo: Echo) -> None:
        async with connected(port) as client:
            started = time.monotonic()
            with suppress(TimeoutError):
                async with asyncio.timeout(1.2):
                    await client.recv()
            assert time.monotonic() - started > 1
            assert await say(client, "on") == "on"

    assert with_echo(work) == "close"


async def say(client: ClientConnection, message: str | bytes) -> str | bytes:
    await client.send(message)
    return await client.recv()


def test_a_client_of_which_nothing_is_heard_is_given_up() -> None:
    async def work(port: int, echo: Echo) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HANDSHAKE)
        started = time.monotonic()
        received = await reader.read()
        assert received.count(b"\x89\x00") >= 2
        assert 0.3 < time.monotonic() - started < 3
        writer.close()

    assert with_echo(work) == "TimeoutError"


def test_a_client_that_breaks_off_is_noticed() -> None:
    async def work(port: int, echo: Echo) -> None:
        _reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HANDSHAKE + b"\x81\x85")
        await writer.drain()
        writer.close()

    assert with_echo(work) == "close"


def test_the_largest_message_passes_and_a_larger_one_does_not() -> None:
    async def work(port: int, echo: Echo) -> None:
        async with connected(port) as client:
            largest = "é" * (MAX_MESSAGE_BYTES // 2)
            assert await say(client, largest) == largest
            await client.send([largest, "x"])
            with suppress(ConnectionClosed):
                await client.recv()
            assert client.close_code == 1009

    assert with_echo(work) == "close"


def test_fragments_are_put_together_around_control_frames() -> None:
    async def work(port: int, echo: Echo) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        key = bytes(4)
        writer.write(
            HANDSHAKE + b"\x01\x82" + key + b"\xc3\xa9" + b"\x89\x80" + key + b"\x00\x81" + key + b"\xc3"
        )
        writer.write(b"\x80\x81" + key + b"\xa9" + b"\x88\x80" + key)
        received = await reader.read()
        assert received.endswith(b"\x8a\x00\x81\x04\xc3\xa9\xc3\xa9\x88\x00")
        writer.close()

    assert with_echo(work) == "close"
