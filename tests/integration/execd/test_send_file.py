"""Downloads that the kernel sends by itself: the same bytes, whatever it can do for the file."""

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import h11
import pytest

from execd.limits import Limits
from execd.options import Options
from execd.reaper import Reaper
from execd.server import Server
from execd.service import Service

SIZE = 3 * 1024 * 1024 + 7
real = os.sendfile
Sendfile = Callable[[int, int, int, int], int]


def refuses(*_: int) -> int:
    raise OSError(errno.EINVAL, "Invalid argument")


def refuses_later(target: int, source: int, offset: int, count: int) -> int:
    if offset >= 1024 * 1024:
        return refuses()
    return real(target, source, offset, count)


class SendsLittle:
    """Has no room before every second piece, and small pieces."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, target: int, source: int, offset: int, count: int) -> int:
        self.calls += 1
        if self.calls % 3 == 0:
            raise BlockingIOError
        return real(target, source, offset, min(count, 77_777))


async def ask(port: int, requests: list[bytes]) -> list[tuple[int, bytes]]:
    """Status and body of requests over one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    http = h11.Connection(h11.CLIENT)
    try:
        return [await ask_one(http, reader, writer, target) for target in requests]
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def ask_one(
    http: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: bytes
) -> tuple[int, bytes]:
    path, _, span = target.partition(b" ")
    headers = [("Host", "x")] + ([("Range", span.decode())] if span else [])
    writer.write(http.send(h11.Request(method="GET", target=path, headers=headers)) or b"")
    http.send(h11.EndOfMessage())
    status, body = 0, bytearray()
    while not isinstance(event := http.next_event(), h11.EndOfMessage):
        if event is h11.NEED_DATA:
            http.receive_data(await reader.read(65536))
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += event.data
    http.start_next_cycle()
    return status, bytes(body)


def answers_of(requests: list[bytes]) -> list[tuple[int, bytes]]:
    async def serve() -> list[tuple[int, bytes]]:
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        server = Server(Service(Options(), {}, Limits(), Reaper()).routes.handle, Limits())
        await server.start(listener)
        try:
            async with asyncio.timeout(30):
                return await ask(listener.getsockname()[1], requests)
        finally:
            await server.stop(grace_seconds=1)

    return asyncio.run(serve())


@pytest.mark.parametrize("sendfile", [real, refuses, refuses_later, SendsLittle()])
def test_the_bytes_are_those_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sendfile: Sendfile
) -> None:
    content = os.urandom(SIZE)
    (tmp_path / "f").write_bytes(content)
    calls = []
    monkeypatch.setattr(os, "sendfile", lambda *arguments: calls.append(1) or sendfile(*arguments))
    target = f"/files/download?path={tmp_path}/f".encode()
    whole, part, again = answers_of([target, target + b" bytes=1000-1400001", target])
    assert whole == again == (200, content)
    assert part == (206, content[1000:1400002])
    assert calls


def test_a_small_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").write_bytes(b"small")
    (tmp_path / "empty").touch()
    monkeypatch.setattr(os, "sendfile", refuses)
    targets = [f"/files/download?path={tmp_path}/{name}".encode() for name in ("f", "empty")]
    assert answers_of(targets) == [(200, b"small"), (200, b"")]


def test_a_file_that_shrinks_while_it_is_sent_breaks_the_answer_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(SIZE))

    def shrinks(target: int, source: int, offset: int, count: int) -> int:
        if offset:
            path.write_bytes(b"short")
        return real(target, source, offset, count)

    monkeypatch.setattr(os, "sendfile", shrinks)
    with pytest.raises(h11.RemoteProtocolError, match="closed connection"):
        answers_of([f"/files/download?path={path}".encode()])
