"""Clients that are slow, silent or gone, against a server with short limits in this process."""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Awaitable, Callable

import pytest

from execd.daemon import open_listener
from execd.errors import ExecdError
from execd.exchange import Exchange, Handler
from execd.limits import Limits
from execd.options import Options
from execd.server import Server

SHORT = Limits(
    idle_seconds=0.2,
    header_seconds=0.2,
    body_grace_seconds=0.2,
    minimum_body_rate=1000,
    write_stall_seconds=0.2,
)
Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]
HEAD = b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"


async def read_all(exchange: Exchange) -> None:
    try:
        await exchange.reply(200, await exchange.read_body())
    except ExecdError as error:
        await exchange.reply_json(error.status, {"code": error.code})


async def read_raw(exchange: Exchange) -> None:
    try:
        body = exchange.raw_body(max_bytes=100_000)
        try:
            while not body.is_complete:
                await body.receive()
        finally:
            body.close()
        await exchange.reply(200)
    except ExecdError as error:
        await exchange.reply_json(error.status, {"code": error.code})


def with_client(
    work: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[float]],
    handler: Callable[[Exchange], Awaitable[None]] = read_all,
) -> float:
    async def session() -> float:
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        server = Server(handler, SHORT)
        await server.start(listener)
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        try:
            async with asyncio.timeout(5):
                return await work(reader, writer)
        finally:
            writer.close()
            await server.stop(grace_seconds=0)

    return asyncio.run(session())


async def seconds_until_closed(reader: asyncio.StreamReader) -> float:
    started = time.monotonic()
    assert await reader.read() == b""
    return time.monotonic() - started


def test_a_silent_connection_is_closed() -> None:
    assert 0.1 < with_client(lambda reader, _writer: seconds_until_closed(reader)) < 2


def test_a_header_that_does_not_end_is_given_up() -> None:
    async def work(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> float:
        writer.write(b"GET / HTTP/1.1\r\nHost:")
        return await seconds_until_closed(reader)

    assert 0.1 < with_client(work) < 2


any_reading = pytest.mark.parametrize("handler", [read_all, read_raw])


@any_reading
@pytest.mark.parametrize("pause", [0.05, 10], ids=["drip", "stop"])
def test_a_body_below_the_minimum_rate_is_refused(pause: float, handler: Handler) -> None:
    async def drip(writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"x")
            await asyncio.sleep(pause)

    async def work(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> float:
        writer.write(HEAD % 100_000)
        dripping = asyncio.create_task(drip(writer))
        try:
            assert (await reader.readline()).startswith(b"HTTP/1.1 408")
        finally:
            dripping.cancel()
        return 0

    with_client(work, handler)


@any_reading
def test_a_body_above_the_minimum_rate_may_take_longer_than_the_grace(handler: Handler) -> None:
    async def work(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> float:
        writer.write(HEAD % 2000)
        for _ in range(10):
            writer.write(b"x" * 200)
            await asyncio.sleep(0.05)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        return 0

    with_client(work, handler)


@pytest.mark.parametrize(
    "head", [HEAD % 100_001, HEAD.partition(b"Content")[0] + b"Transfer-Encoding: chunked\r\n\r\n"]
)
def test_a_raw_body_above_its_limit_is_refused(head: bytes) -> None:
    async def work(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> float:
        writer.write(head + b"f000\r\n" + b"x" * 0xF000 + b"\r\nf000\r\n" + b"x" * 0xF000)
        assert (await reader.readline()).startswith(b"HTTP/1.1 413")
        return 0

    with_client(work, read_raw)


def test_a_client_that_takes_nothing_is_given_up() -> None:
    gave_up = asyncio.Event()

    async def flood(exchange: Exchange) -> None:
        await exchange.start(200, [])
        try:
            while True:
                await exchange.send(b"x" * 100_000)
        except TimeoutError:
            gave_up.set()
            raise

    async def work(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> float:
        writer.transport.pause_reading()
        started = time.monotonic()
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await gave_up.wait()
        return time.monotonic() - started

    assert 0.1 < with_client(work, flood) < 3


def test_a_patient_write_waits_until_the_client_is_gone() -> None:
    noticed, ended = asyncio.Event(), asyncio.Event()

    async def flood(exchange: Exchange) -> None:
        exchange.on_disconnect(noticed.set)
        await exchange.start(200, [])
        try:
            while True:
                await exchange.send(b"x" * 100_000, patient=True)
        except ConnectionError:
            ended.set()
            raise

    async def work(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> float:
        writer.transport.pause_reading()
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.sleep(0.5)  # well past the stall limit of other writes
        assert not ended.is_set()
        writer.transport.abort()
        await noticed.wait()
        await ended.wait()
        return 0

    with_client(work, flood)


def test_a_client_that_never_takes_its_answer_is_let_go_of() -> None:
    """Closing alone would wait for it as long as it lives."""

    async def give_much(exchange: Exchange) -> None:
        await exchange.reply(200, bytes(30_000_000))

    async def work(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> float:
        writer.transport.pause_reading()
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.sleep(1.0)  # that it is silent is the point
        writer.transport.resume_reading()
        received = 0
        with contextlib.suppress(ConnectionError):
            while part := await reader.read(1 << 20):
                received += len(part)
        return received

    assert with_client(work, give_much) < 30_000_000


@pytest.mark.parametrize("is_inherited", [False, True], ids=["own port", "inherited"])
def test_small_writes_are_not_held_back(is_inherited: bool) -> None:
    """Else each command waits 40 ms for an acknowledgement that its client delays."""
    options = Options(host="127.0.0.1", port=0)
    with socket.create_server(("127.0.0.1", 0)) as parent:
        if is_inherited:
            options.listen_fd = os.dup(parent.fileno())
        listener = open_listener(options)

        async def session() -> int:
            accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

            def look(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                own = writer.get_extra_info("socket")
                accepted.set_result(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
                writer.close()

            async with await asyncio.start_server(look, sock=listener):
                _, writer = await asyncio.open_connection(*listener.getsockname())
                value = await accepted
                writer.close()
                return value

        assert asyncio.run(session()) == 1
