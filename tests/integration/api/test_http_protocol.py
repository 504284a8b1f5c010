"""What the API's server takes for a request at all. The application behind it counts what reached it."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI, Request, WebSocket
from fastapi.responses import StreamingResponse
from pydantic import SecretStr
from websockets.sync.client import connect

from api.http_protocol import StrictHttpProtocol
from core.config import Settings
from ingress.limits import Limits
from launcher.programs import api_command, api_options
from tests.integration.api.conftest import AppThread

SECOND = b"GET /second HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"


@dataclass
class Served:
    """A server, and the paths and bodies of what it took for requests."""

    url: str
    heard: list[tuple[str, bytes]] = field(default_factory=list)

    def say(self, data: bytes) -> bytes:
        """Send bytes, give all that comes until the server closes."""
        with self.connect() as client:
            client.sendall(data)
            return read_all(client)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", httpx.URL(self.url).port), timeout=10)


class HastyProtocol(StrictHttpProtocol):
    """Waits less long."""

    head_seconds = 0.5


@contextlib.contextmanager
def running(**options: Any) -> Iterator[Served]:
    app = FastAPI()
    with AppThread(app, **options) as server:
        served = Served(server.url)

        @app.post("/unread")
        async def unread() -> str:
            return "unread"

        @app.websocket("/ws")
        async def echo(websocket: WebSocket) -> None:
            await websocket.accept()
            while True:
                await websocket.send_text(await websocket.receive_text())

        @app.get("/client")
        async def client(request: Request) -> str:
            return f"{request.client.host if request.client else None} {request.url.scheme}"

        @app.get("/stream")
        async def stream() -> StreamingResponse:
            return StreamingResponse(count())

        @app.api_route("/{path:path}", methods=["GET", "POST"])
        async def hear(path: str, request: Request) -> str:
            served.heard.append((path, await request.body()))
            return "heard"

        yield served


async def count() -> AsyncIterator[bytes]:
    for number in range(4):
        await asyncio.sleep(0.3)
        yield b"%d" % number


@pytest.fixture
def served() -> Iterator[Served]:
    with running() as served:
        yield served


@pytest.fixture
def hasty() -> Iterator[Served]:
    with running(http=HastyProtocol) as served:
        yield served


def settings(**values: Any) -> Settings:
    return Settings(database_url=SecretStr("postgresql:"), redis_url=SecretStr("redis:"), **values)


def read_all(client: socket.socket) -> bytes:
    data = b""
    while more := client.recv(1 << 16):
        data += more
    return data


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", 400),
        (b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", 400),
        (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", 400),
        (b"Transfer-Encoding: gzip, chunked\r\n", 501),
        (b"Transfer-Encoding : chunked\r\n", 400),
        (b"Content-Length: 5, 5\r\n", 400),
        (b"Content-Length: 5\r\nContent-Length: 5\r\n", 400),
        (b"Content-Length: +5\r\n", 400),
        (b"Content-Length: 99999999999999999999\r\n", 400),
        (b"Content-Length: 9999999999999999999999999\r\n", 400),
        (b"X: a\r\n folded\r\n", 400),
        (b"X: a\r\n\tfolded\r\n", 400),
        (b"X: a\nY: b\r\n", 400),
        (b"X: a\rY: b\r\n", 400),
        (b"X: a\x7f\r\n", 400),
        (b"Host: second\r\n", 400),
    ],
)
def test_a_head_that_can_be_read_in_two_ways_is_refused_and_ends_its_connection(served, head, status):
    body = b"0\r\n\r\n" if b"hunked" in head else b"hello"
    answer = served.say(b"POST /first HTTP/1.1\r\nHost: h\r\n" + head + b"\r\n" + body + SECOND)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"\r\nConnection: close\r\n" in answer
    assert b'{"code": "bad_request", "message": "' in answer
    assert served.heard == []


@pytest.mark.parametrize(
    "first",
    [b"GET /first HTTP/1.1\nHost: h\n\n", b"GET /first HTTP/1.1\r\nHost: h\n\r\n"],
    ids=["all", "one"],
)
def test_lines_that_end_in_lf_alone_are_refused(served, first):
    answer = served.say(first + SECOND)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"a line of the head ends in other than CR and LF" in answer
    assert served.heard == []


def test_a_later_request_of_a_connection_is_judged_like_the_first(served):
    good = b"POST /good HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello"
    bad = b"POST /bad HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    answer = served.say(good + bad + SECOND)
    assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == [b"200", b"400"]
    assert b"Content-Length and Transfer-Encoding exclude each other" in answer
    assert served.heard == [("good", b"hello")]


def test_good_requests_pass_however_they_come(served):
    whole = (
        b"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\n\n\n\r\n0\r\n\r\n"
        + SECOND
    )
    with served.connect() as client:
        for position in range(0, len(whole), 3):
            client.sendall(whole[position : position + 3])
        answer = read_all(client)
    assert answer.count(b"HTTP/1.1 200 ") == 2
    assert served.heard == [("a", b"\n\n"), ("second", b"")]


def test_the_answer_reaches_a_client_that_goes_on_sending(served):
    with served.connect() as client:
        client.sendall(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5, 5\r\n\r\n" + b"x" * (1 << 20))
        client.shutdown(socket.SHUT_WR)
        assert read_all(client).startswith(b"HTTP/1.1 400 ")


GOOD = b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello"


def test_heads_have_as_long_to_come_as_at_the_ingress():
    assert StrictHttpProtocol.head_seconds == Limits().head_seconds


@pytest.mark.parametrize("before", [b"", GOOD], ids=["first", "later"])
def test_a_head_that_does_not_come_to_its_end_ends_its_connection(hasty, before):
    answers = hasty.say(before + b"GET /half HTTP/1.1\r\nHost:").split(b"HTTP/1.1 ")[1:]
    assert [answer[:3] for answer in answers] == [b"200", b"408"][not before :]
    assert b'{"code": "request_timeout", "message": "the head of the request does not come"}' in answers[-1]


def test_a_half_head_after_a_rest_ends_its_connection(hasty):
    with hasty.connect() as client:
        client.sendall(GOOD)
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        client.sendall(b"GET /half")
        assert b"HTTP/1.1 408 " in read_all(client)


def test_a_head_that_comes_byte_by_byte_has_no_longer(hasty):
    with hasty.connect() as client, contextlib.suppress(ConnectionError):
        for byte in (b"GET / HTTP/1.1\r\nX: " + b"x" * 1000)[:1000]:
            client.sendall(bytes([byte]))
            client.settimeout(0.05)
            with contextlib.suppress(TimeoutError):
                assert client.recv(1 << 16).startswith(b"HTTP/1.1 408 ")
                return
    pytest.fail("the head was awaited to its end")


def test_a_connection_that_says_nothing_is_closed(hasty):
    assert hasty.say(b"") == b""


def test_an_idle_connection_a_slow_body_and_a_slow_answer_have_their_own_times(hasty):
    with hasty.connect() as client:
        client.sendall(GOOD)
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        time.sleep(0.8)  # more than a head may take
        client.sendall(GOOD[:-3])
        time.sleep(0.8)
        client.sendall(GOOD[-3:] + b"GET /stream HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        answers = read_all(client)
    assert answers.count(b"HTTP/1.1 200 ") == 2
    assert answers.endswith(b"1\r\n3\r\n0\r\n\r\n")
    assert hasty.heard == [("a", b"hello"), ("a", b"hello")]


def test_a_websocket_may_be_silent(hasty):
    with connect(hasty.url.replace("http", "ws") + "/ws") as client:
        time.sleep(0.8)
        client.send("here")
        assert client.recv(timeout=10) == "here"


def test_an_idle_connection_ends_also_if_its_last_body_ended_after_the_answer():
    with running(timeout_keep_alive=1) as served, served.connect() as client:
        client.sendall(GOOD.replace(b"/a", b"/unread")[:-5])
        answer = b""
        while not answer.endswith(b'"unread"'):  # its head may come first
            piece = client.recv(1 << 16)
            assert piece, answer
            answer += piece
        assert answer.startswith(b"HTTP/1.1 200 ")
        client.sendall(b"hello")
        assert read_all(client) == b""


@pytest.mark.parametrize(
    ("trusted", "seen"),
    [
        ((), "127.0.0.1 http"),
        (("10.0.0.7",), "127.0.0.1 http"),
        (("127.0.0.1",), "192.0.2.1 https"),
        (("127.0.0.0/8", "10.0.0.7"), "192.0.2.1 https"),
    ],
    ids=str,
)
def test_who_a_client_is_says_only_a_proxy_of_the_settings(monkeypatch, trusted, seen):
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    command = api_command("127.0.0.1", 80, api_options(settings(api_trusted_proxies=trusted)))
    words = list(command[command.index("uvicorn") + 1 :])
    given = uvicorn.main.make_context("uvicorn", words).params
    options = {name: given[name] for name in ("proxy_headers", "forwarded_allow_ips")}
    with running(**options) as served:
        headers = {"X-Forwarded-For": "192.0.2.1", "X-Forwarded-Proto": "https"}
        assert httpx.get(f"{served.url}/client", headers=headers).json() == seen


def test_the_api_of_the_launcher_believes_no_proxy():
    assert "--no-proxy-headers" in api_command("127.0.0.1", 80)
    assert "--no-proxy-headers" in api_options(settings())
