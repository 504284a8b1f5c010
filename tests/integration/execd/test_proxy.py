"""The relay: what goes in on one side comes out on the other."""

import contextlib
import gzip
import hashlib
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.support.backends import (
    Scripted,
    answer_with,
    http_backend,
    read_head,
    scripted_backend,
    websocket_backend,
)
from tests.support.execd import RunningExecd, running_execd, wait_for

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.fixture
def execd(shared_execd: RunningExecd) -> RunningExecd:
    return shared_execd


class Reflecting(BaseHTTPRequestHandler):
    """Answers with what it was asked: the method and path in headers, the digest of the body in it."""

    protocol_version = "HTTP/1.1"

    def reflect(self) -> None:
        digest = hashlib.sha256()
        size = 0
        for part in self.parts():
            digest.update(part)
            size += len(part)
        body = f"{size} {digest.hexdigest()}".encode()
        self.send_response(200)
        self.send_header("X-Method", self.command)
        self.send_header("X-Path", self.path)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def parts(self) -> Iterator[bytes]:
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            rest = int(self.headers.get("Content-Length", 0))
            while rest:
                part = self.rfile.read(min(rest, 65536))
                rest -= len(part)
                yield part

    def __getattr__(self, name: str) -> object:
        if name.startswith("do_"):
            return self.reflect
        raise AttributeError(name)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


def exchange(execd: RunningExecd, request: bytes) -> bytes:
    """Send bytes, and give all that comes until the connection is closed."""
    with socket.create_connection(("127.0.0.1", execd.port), timeout=10) as connection:
        connection.sendall(request)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
        return received


def head_lines(head: bytes) -> list[bytes]:
    return head.removesuffix(b"\r\n\r\n").split(b"\r\n")


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND"])
def test_every_method_and_its_body_pass(execd: RunningExecd, method: str) -> None:
    with http_backend(Reflecting) as port:
        response = execd.client.request(method, f"/proxy/{port}/a/b?c=d", content=b"body")
    assert (response.status_code, response.headers["x-method"]) == (200, method)
    assert response.headers["x-path"] == "/a/b?c=d"
    assert response.text == f"4 {hashlib.sha256(b'body').hexdigest()}"


@pytest.mark.parametrize(
    ("target", "seen"),
    [
        (b"", b"/"),
        (b"/", b"/"),
        (b"?q=1", b"/?q=1"),
        (b"/a%2Fb/%7e/../x//y/.?q=%20+%zz&q&=&%", b"/a%2Fb/%7e/../x//y/.?q=%20+%zz&q&=&%"),
        (b"/%ff%00;v=1?a=b?c#d", b"/%ff%00;v=1?a=b?c#d"),
        (b"//double?http://x/?y", b"//double?http://x/?y"),
    ],
)
def test_targets_pass_byte_for_byte(execd: RunningExecd, target: bytes, seen: bytes) -> None:
    with scripted_backend(answer_with(OK)) as backend:
        line = b"GET /proxy/%d%b HTTP/1.1\r\n" % (backend.port, target)
        answer = exchange(execd, line + b"Host: x\r\nConnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert head_lines(backend.received[0])[0] == b"GET " + seen + b" HTTP/1.1"


def test_request_headers_pass_as_written_without_those_of_the_hop_and_the_token(execd: RunningExecd) -> None:
    with scripted_backend(answer_with(OK)) as backend:
        exchange(
            execd,
            b"GET /proxy/%d/ HTTP/1.1\r\nHost: App.example:8080\r\nx-b: 1\r\nX-A: 2\r\nx-b: 3\r\nCookie: a=b\r\n"
            b"Authorization: Bearer t\r\nX-EXECD-ACCESS-TOKEN: secret\r\nKeep-Alive: 5\r\nX-Hop: 1\r\n"
            b"TE: trailers, gzip\r\nProxy-Authorization: p\r\nX-Forwarded-For: 1.2.3.4\r\n"
            b"X-Forwarded-Prefix: /front/\r\nConnection: close, X-Hop\r\n\r\n" % backend.port,
        )
    assert head_lines(backend.received[0])[1:] == [
        b"Host: App.example:8080",
        b"x-b: 1",
        b"X-A: 2",
        b"x-b: 3",
        b"Cookie: a=b",
        b"Authorization: Bearer t",
        b"X-Forwarded-For: 1.2.3.4",
        b"X-Forwarded-Prefix: /front/proxy/%d" % backend.port,
        b"TE: trailers",
        b"Connection: close",
    ]


def test_response_headers_and_the_reason_pass_as_written(execd: RunningExecd) -> None:
    response = (
        b"HTTP/1.1 299 Quite Fine\r\nSet-Cookie: a=1; Path=/\r\nx-Lower: v\r\nSet-Cookie: b=2\r\nServer: s\r\n"
        b"Date: yesterday\r\nConnection: close, x-mine\r\nX-Mine: hop\r\nKeep-Alive: timeout=5\r\n"
        b"Content-Length: 0\r\n\r\n"
    )
    with scripted_backend(answer_with(response)) as backend:
        answer = exchange(
            execd, b"GET /proxy/%d/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % backend.port
        )
    assert head_lines(answer) == [
        b"HTTP/1.1 299 Quite Fine",
        b"Set-Cookie: a=1; Path=/",
        b"x-Lower: v",
        b"Set-Cookie: b=2",
        b"Server: s",
        b"Date: yesterday",
        b"Content-Length: 0",
        b"Connection: close",
    ]


@pytest.mark.parametrize(
    ("method", "response", "body"),
    [
        (b"HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n", b""),
        (b"GET", b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"GET", b"HTTP/1.1 304 Not Modified\r\nETag: x\r\nContent-Length: 99\r\n\r\n", b""),
        (b"GET", b"HTTP/1.0 200 OK\r\n\r\nuntil the end", b"d\r\nuntil the end\r\n0\r\n\r\n"),
        (b"GET", b"HTTP/1.1 206 Part\r\nContent-Range: bytes 0-1/9\r\nContent-Length: 2\r\n\r\nab", b"ab"),
    ],
    ids=["head", "204", "304", "http/1.0", "206"],
)
def test_answers_without_a_body_or_its_length_keep_their_form(
    execd: RunningExecd, method: bytes, response: bytes, body: bytes
) -> None:
    with scripted_backend(answer_with(response)) as backend:
        request = b"%b /proxy/%d/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % (method, backend.port)
        head, _, rest = exchange(execd, request).partition(b"\r\n\r\n")
    assert rest == body
    for line in head_lines(response.partition(b"\r\n\r\n")[0])[1:]:
        assert line in head_lines(head)


def test_compressed_bodies_pass_as_they_are(execd: RunningExecd) -> None:
    packed = gzip.compress(b"x" * 10_000)
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
    with scripted_backend(answer_with(head + packed)) as backend:
        request = b"GET /proxy/%d/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % backend.port
        answer = exchange(execd, request)
    assert answer.endswith(b"\r\n\r\n" + packed)
    assert b"Content-Encoding: gzip" in answer


def test_trailers_pass_both_ways(execd: RunningExecd) -> None:
    def script(connection: socket.socket, backend: Scripted) -> None:
        backend.received.append(read_head(connection))
        data = b""
        while not data.endswith(b"\r\n\r\n"):
            data += connection.recv(4096)
        backend.received.append(data)
        connection.sendall(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n2\r\nhi\r\n"
        )
        connection.sendall(b"0\r\nX-Sum: 7\r\n\r\n")

    with scripted_backend(script) as backend:
        answer = exchange(
            execd,
            b"POST /proxy/%d/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
            b"3\r\nabc\r\n0\r\nX-Count: 3\r\n\r\n" % backend.port,
        )
    assert backend.received[1] == b"3\r\nabc\r\n0\r\nX-Count: 3\r\n\r\n"
    assert b"\r\nTrailer: X-Sum\r\n" in answer
    assert answer.endswith(b"2\r\nhi\r\n0\r\nX-Sum: 7\r\n\r\n")


@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunked"])
def test_large_bodies_are_streamed(execd: RunningExecd, is_chunked: bool) -> None:
    size = 16_000_000
    part = bytes(range(256)) * 4096
    parts = [part[: min(len(part), size - at)] for at in range(0, size, len(part))]
    before = execd.rss_kib()
    with http_backend(Reflecting) as port:
        headers = {} if is_chunked else {"Content-Length": str(size)}
        response = execd.client.post(f"/proxy/{port}/", content=iter(parts), headers=headers)
    assert response.text == f"{size} {hashlib.sha256(b''.join(parts)).hexdigest()}"
    assert execd.rss_kib() - before < 8_000


def test_a_slow_reader_holds_up_its_backend_and_not_execd(execd: RunningExecd) -> None:
    sent = 0
    is_stuck = threading.Event()

    def script(connection: socket.socket, backend: Scripted) -> None:
        nonlocal sent
        read_head(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        connection.settimeout(0.3)
        try:
            while sent < 200_000_000:
                sent += connection.send(bytes(65536))
        except TimeoutError:
            is_stuck.set()

    before = execd.rss_kib()
    with scripted_backend(script) as backend, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        client.connect(("127.0.0.1", execd.port))
        client.sendall(b"GET /proxy/%d/ HTTP/1.1\r\nHost: x\r\n\r\n" % backend.port)
        assert is_stuck.wait(20)
        assert execd.client.get("/ping").status_code == 200
        assert execd.rss_kib() - before < 8_000
    assert 0 < sent < 50_000_000


def test_events_are_seen_as_they_come(execd: RunningExecd) -> None:
    with (
        scripted_backend(event_script) as backend,
        execd.client.stream("GET", f"/proxy/{backend.port}/") as response,
    ):
        assert response.headers["content-type"] == "text/event-stream"
        lines = (line.removeprefix("data: ") for line in response.iter_lines())
        seen = [time.time() - float(line) for line in lines if line]
    assert len(seen) == 4
    assert sorted(seen)[1] < 0.2


def event_script(connection: socket.socket, backend: Scripted) -> None:
    read_head(connection)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
    for _ in range(4):
        connection.sendall(b"data: %f\n\n" % time.time())
        time.sleep(0.1)  # what the client measures is how long an event is on its way


def test_the_answer_may_begin_before_the_body_ended(execd: RunningExecd) -> None:
    """An echo in both directions at once."""

    def script(connection: socket.socket, backend: Scripted) -> None:
        read_head(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while not (data := connection.recv(4096)).startswith(b"0\r\n"):
            connection.sendall(data)
        connection.sendall(data)

    with (
        scripted_backend(script) as backend,
        socket.create_connection(("127.0.0.1", execd.port), timeout=10) as client,
    ):
        client.sendall(
            b"POST /proxy/%d/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" % backend.port
        )
        assert b"200 OK" in read_head(client)
        for word in (b"4\r\nping\r\n", b"4\r\npong\r\n", b"0\r\n\r\n"):
            client.sendall(word)
            received = b""
            while len(received) < len(word):
                received += client.recv(len(word) - len(received))
            assert received == word


def test_a_client_that_expects_100_waits_for_the_backend(execd: RunningExecd) -> None:
    def willing(connection: socket.socket, backend: Scripted) -> None:
        backend.received.append(read_head(connection))
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        backend.received.append(connection.recv(5))
        connection.sendall(OK)

    refusal = answer_with(b"HTTP/1.1 417 No\r\nContent-Length: 0\r\n\r\n")
    for script, first in ((willing, b"HTTP/1.1 100 "), (refusal, b"HTTP/1.1 417 No")):
        with (
            scripted_backend(script) as backend,
            socket.create_connection(("127.0.0.1", execd.port), timeout=10) as client,
        ):
            client.sendall(
                b"POST /proxy/%d/ HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"
                % backend.port
            )
            assert read_head(client).startswith(first)
            assert b"Expect: 100-continue" in head_lines(backend.received[0])
            if script is willing:
                client.sendall(b"hello")
                assert read_head(client).startswith(b"HTTP/1.1 200 OK")
                assert backend.received[1] == b"hello"


def test_a_backend_that_does_not_know_of_expectations_gets_the_body_all_the_same(execd: RunningExecd) -> None:
    def script(connection: socket.socket, backend: Scripted) -> None:
        read_head(connection)
        backend.received.append(connection.recv(5))
        connection.sendall(OK)

    with scripted_backend(script) as backend:
        response = execd.client.post(
            f"/proxy/{backend.port}/", content=b"hello", headers={"Expect": "100-continue"}
        )
    assert response.text == "ok"
    assert backend.received == [b"hello"]


def test_early_hints_pass(execd: RunningExecd) -> None:
    response = b"HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n" + OK
    with scripted_backend(answer_with(response)) as backend:
        request = b"GET /proxy/%d/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % backend.port
        answer = exchange(execd, request)
    assert answer.startswith(b"HTTP/1.1 103 ")
    assert b"\r\nLink: </a>; rel=preload\r\n" in answer
    assert answer.endswith(b"ok")


def test_the_connection_of_the_client_is_kept(execd: RunningExecd) -> None:
    with (
        http_backend(Reflecting) as port,
        socket.create_connection(("127.0.0.1", execd.port), timeout=10) as client,
    ):
        for number in range(3):
            client.sendall(
                b"POST /proxy/%d/%d HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx" % (port, number)
            )
            head = read_head(client)
            assert b"X-Path: /%d\r\n" % number in head
            assert b"close" not in head
            client.recv(66)


@pytest.mark.parametrize(
    "place", ["/proxy", "/proxy/", "/proxy//x", "/proxy/x/", "/proxy/0/", "/proxy/65536/"]
)
def test_a_port_must_be_given(execd: RunningExecd, place: str) -> None:
    response = execd.client.get(place)
    assert (response.status_code, response.json()["code"]) == (400, "INVALID_QUERY")
    assert "port" in response.json()["message"]


def test_execd_does_not_relay_to_itself(execd: RunningExecd) -> None:
    response = execd.client.get(f"/proxy/{execd.port}/ping")
    assert response.status_code == 400
    assert "own" in response.json()["message"]
    assert execd.client.get(f"/proxy/0{execd.port}/ping"[:12]).status_code in (400, 502)


def test_nobody_on_the_port_is_502(execd: RunningExecd) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        response = execd.client.post(f"/proxy/{unused.getsockname()[1]}/", content=b"x" * 100_000)
    assert (response.status_code, response.json()["code"]) == (502, "BACKEND_CONNECTION_FAILED")
    assert "Connection refused" in response.json()["message"]


@pytest.mark.parametrize(
    "response",
    [
        b"",
        b"220 mail ready\r\n",
        b"HTTP/1.1 200 OK\r\nX",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
    ],
    ids=["nothing", "no http", "half a head", "endless head"],
)
def test_answers_that_cannot_be_read_are_502(execd: RunningExecd, response: bytes) -> None:
    with scripted_backend(answer_with(response)) as backend:
        answer = execd.client.get(f"/proxy/{backend.port}/")
    assert (answer.status_code, answer.json()["code"]) == (502, "BACKEND_RESPONSE_FAILED")


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhalf",
    ],
    ids=["length", "chunked"],
)
def test_an_answer_that_breaks_off_breaks_off_for_the_client(execd: RunningExecd, response: bytes) -> None:
    with scripted_backend(answer_with(response)) as backend, pytest.raises(httpx.RemoteProtocolError):
        execd.client.get(f"/proxy/{backend.port}/")


def test_a_refusal_before_the_body_was_read_reaches_the_client(execd: RunningExecd) -> None:
    def script(connection: socket.socket, backend: Scripted) -> None:
        read_head(connection)
        connection.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 4\r\n\r\nlate")

    with scripted_backend(script) as backend:
        response = execd.client.post(f"/proxy/{backend.port}/", content=b"x" * 300_000)
    assert (response.status_code, response.text) == (413, "late")


def test_a_client_that_leaves_leaves_the_backend(execd: RunningExecd) -> None:
    left: list[bytes] = []

    def script(connection: socket.socket, backend: Scripted) -> None:
        read_head(connection)
        backend.received.append(b"")
        left.append(connection.recv(1))

    with scripted_backend(script) as backend:
        with socket.create_connection(("127.0.0.1", execd.port), timeout=10) as client:
            client.sendall(b"GET /proxy/%d/ HTTP/1.1\r\nHost: x\r\n\r\n" % backend.port)
            wait_for(lambda: backend.received)
        wait_for(lambda: left)
    assert left == [b""]


def test_a_broken_request_body_is_the_clients_fault(execd: RunningExecd) -> None:
    with http_backend(Reflecting) as port:
        answer = execd.raw(
            b"POST /proxy/%d/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n" % port
        )
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"INVALID_REQUEST_BODY" in answer


def test_a_program_on_the_other_loopback_is_found(execd: RunningExecd) -> None:
    try:
        with scripted_backend(answer_with(OK), host="::1") as backend:
            assert execd.client.get(f"/proxy/{backend.port}/").text == "ok"
    except OSError as error:
        pytest.skip(f"this machine has no IPv6: {error}")


def test_old_clients_without_host_are_served(execd: RunningExecd) -> None:
    with scripted_backend(
        answer_with(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n")
    ) as backend:
        answer = exchange(execd, b"GET /proxy/%d/ HTTP/1.0\r\n\r\n" % backend.port)
    assert answer.endswith(b"\r\n\r\nhi")
    assert b"Host: 127.0.0.1:%d" % backend.port in head_lines(backend.received[0])


def test_connect_is_refused(execd: RunningExecd) -> None:
    answer = execd.raw(b"CONNECT /proxy/80/ HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 405 ")


def test_the_relay_demands_the_token_and_keeps_it(bundle: Path, tmp_path: Path) -> None:
    with (
        running_execd(bundle, tmp_path, flags=["--access-token", "t"]) as execd,
        scripted_backend(answer_with(OK)) as backend,
    ):
        assert execd.client.get(f"/proxy/{backend.port}/").status_code == 401
        answer = execd.client.get(f"/proxy/{backend.port}/", headers={"X-EXECD-ACCESS-TOKEN": "t"})
        assert answer.text == "ok"
    assert len(backend.received) == 1
    assert b"token" not in backend.received[0].lower()


def test_websockets_pass_with_headers_subprotocols_and_all_kinds_of_messages(execd: RunningExecd) -> None:
    seen: list[str] = []

    def echo(socket: object) -> None:
        seen.extend([socket.request.headers["X-One"], socket.request.headers["Cookie"], socket.request.path])
        for message in socket:
            socket.send(message)

    with (
        websocket_backend(echo, subprotocols=["chat"], max_size=None) as port,
        connect(
            f"ws://127.0.0.1:{execd.port}/proxy/{port}/ws/x?y=%20",
            additional_headers={"X-One": "1", "Cookie": "c=d"},
            subprotocols=["chat"],
            max_size=None,
            proxy=None,
        ) as client,
    ):
        assert client.subprotocol == "chat"
        assert client.response.headers.get("Sec-WebSocket-Extensions") is not None
        for message in ("text", b"bytes", b"x" * 3_000_000, ""):
            client.send(message)
            assert client.recv(timeout=10) == message
        client.ping().wait(5)
        client.close(4321, "bye")
    assert seen == ["1", "c=d", "/ws/x?y=%20"]


def test_the_close_of_a_backend_reaches_the_client(execd: RunningExecd) -> None:
    with (
        websocket_backend(lambda socket: socket.close(4100, "enough")) as port,
        connect(f"ws://127.0.0.1:{execd.port}/proxy/{port}/", proxy=None) as client,
    ):
        with pytest.raises(ConnectionClosed) as closed:
            client.recv(timeout=10)
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4100, "enough")


def test_other_protocols_pass_too_and_each_direction_ends_by_itself(execd: RunningExecd) -> None:
    def script(connection: socket.socket, backend: Scripted) -> None:
        backend.received.append(read_head(connection))
        connection.sendall(b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: tcp\r\n\r\nhello")
        data = b""
        while part := connection.recv(4096):
            data += part
        connection.sendall(data[::-1])

    with (
        scripted_backend(script) as backend,
        socket.create_connection(("127.0.0.1", execd.port), timeout=10) as client,
    ):
        client.sendall(
            b"POST /proxy/%d/attach HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\nabc"
            % backend.port
        )
        assert read_head(client).startswith(b"HTTP/1.1 101 ")
        assert client.recv(5, socket.MSG_WAITALL) == b"hello"
        client.sendall(b"def")
        client.shutdown(socket.SHUT_WR)
        assert client.recv(100, socket.MSG_WAITALL) == b"fedcba"


def test_an_upgrade_that_the_backend_declines_is_an_ordinary_answer(execd: RunningExecd) -> None:
    with scripted_backend(answer_with(OK)) as backend:
        answer = execd.client.get(
            f"/proxy/{backend.port}/", headers={"Connection": "Upgrade", "Upgrade": "websocket"}
        )
    assert answer.text == "ok"


def wait_for_the_end(socket: object) -> None:
    with contextlib.suppress(ConnectionClosed):
        for _ in socket:
            pass


def test_abandoned_relays_leave_nothing_behind(bundle: Path, tmp_path: Path) -> None:
    with (
        running_execd(bundle, tmp_path) as execd,
        websocket_backend(wait_for_the_end) as port,
        http_backend(Reflecting) as http_port,
    ):
        execd.client.get("/ping")
        before = execd.descriptors()
        for number in range(40):
            with socket.create_connection(("127.0.0.1", execd.port), timeout=10) as client:
                head = b"POST /proxy/%d/ HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n" % http_port
                client.sendall(head[: number % len(head)] if number % 3 == 0 else head)
            with connect(f"ws://127.0.0.1:{execd.port}/proxy/{port}/", proxy=None, close_timeout=0.1) as ws:
                ws.socket.shutdown(socket.SHUT_RDWR)
        wait_for(lambda: execd.descriptors() <= before, seconds=10)
        assert execd.client.get("/ping").status_code == 200
