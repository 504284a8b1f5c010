"""What goes in at one end comes out at the other, byte for byte and as it comes."""

import random
import socket
import threading
import zlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.sync.client import connect as connect_websocket

from tests.support.backends import answer_with, read_head, scripted_backend, websocket_backend
from tests.support.ingress import body_of, read_all, read_until, rss_bytes, status_of

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.mark.parametrize(
    "rest",
    ["", "/", "?", "?a=b", "/a%2Fb//c/../d;x?q=%20+%zz&q", "/%e4%f6/\xe4?\xff", "//x", "/proxy/1/"],
)
def test_method_path_and_query_arrive_as_they_were_written(ingress, rest):
    with scripted_backend(answer_with(OK)) as backend:
        line = f"pAtCh-X /{ingress.id}/{backend.port}{rest} HTTP/1.1\r\nHost: h\r\n\r\n".encode("latin-1")
        with ingress.connect() as client:
            client.sendall(line)
            assert read_until(client, b"ok").endswith(b"ok")
    expected = rest.encode("latin-1")
    expected = expected if expected.startswith(b"/") else b"/" + expected
    assert backend.received[0].split(b"\r\n")[0] == b"pAtCh-X " + expected + b" HTTP/1.1"


@pytest.mark.parametrize("name", ["OpenSandbox-Ingress-To", "OPEN-SANDBOX-INGRESS", "Host"])
def test_header_and_host_lead_as_the_path_does_and_leave_the_path_alone(ingress, name):
    with scripted_backend(answer_with(OK)) as backend:
        key = f"{ingress.id}-{backend.port}"
        key = f"{key}.sandboxes.example.org" if name == "Host" else key
        host = "" if name == "Host" else "Host: h\r\n"
        answer = ingress.say(
            f"GET /status.ok?x HTTP/1.1\r\n{host}{name}: {key}\r\nConnection: close\r\n\r\n".encode()
        )
    assert status_of(answer) == 200
    assert backend.received[0].startswith(b"GET /status.ok?x HTTP/1.1\r\n")
    assert (b"OpenSandbox-Ingress-To".lower() in backend.received[0].lower()) is False
    assert b"X-Forwarded-Prefix" not in backend.received[0]


def test_headers_keep_their_writing_order_and_repetitions_both_ways(ingress):
    head = b"X-b: 1\r\nX-A: \xe4\r\nx-b:   2 \r\nAccept-Encoding: br\r\nCookie: a=b\r\n"
    response = (
        b"HTTP/1.1 299 As It Is\r\nSet-Cookie: a\r\nset-cookie: b\r\nContent-Encoding: gzip\r\n"
        b"Content-Length: 3\r\n\r\n\0\1\2"
    )
    with scripted_backend(answer_with(response)) as backend:
        answer = ingress.ask(backend.port, headers=head.decode("latin-1")).replace(
            b"Connection: close\r\n", b""
        )
    assert answer == response
    lines = backend.received[0].split(b"\r\n")
    assert lines[1:7] == [
        b"Host: here",
        b"X-b: 1",
        b"X-A: " + "ä".encode(),
        b"x-b: 2",
        b"Accept-Encoding: br",
        b"Cookie: a=b",
    ]


def echo(connection: socket.socket, backend) -> None:
    """Answer with the body, in chunks, while it comes; the trailers come back as well."""
    backend.received.append(read_head(connection))
    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    data = b""
    while not data.endswith(b"\r\n\r\n"):
        data += connection.recv(1 << 16)
        while b"\r\n" in data:
            size, _, rest = data.partition(b"\r\n")
            size = int(size.split(b";")[0], 16)
            if size == 0 or len(rest) < size + 2:
                break
            connection.sendall(b"%x\r\n%b\r\n" % (size, rest[:size]))
            data = rest[size + 2 :]
        if data.startswith(b"0\r\n") and data.endswith(b"\r\n\r\n"):
            connection.sendall(data)
            return


def test_chunks_go_both_ways_at_once_with_their_trailers(ingress):
    with scripted_backend(echo) as backend, ingress.connect() as client:
        client.sendall(
            ingress.head(backend.port, "POST", headers="TE: trailers\r\nTransfer-Encoding: chunked\r\n")
        )
        read_until(client, b"\r\n\r\n")
        for part in (b"a", b"bc" * 700, b"\0\r\n"):
            client.sendall(b"%x;ext=1\r\n%b\r\n" % (len(part), part))
            assert read_until(client, part + b"\r\n") == b"%x\r\n%b\r\n" % (len(part), part)
        client.sendall(b"0\r\nX-Sum: 7\r\nOPEN-SANDBOX-API-KEY: k\r\n\r\n")
        assert read_until(client, b"\r\n\r\n") == b"0\r\nX-Sum: 7\r\n\r\n"
    assert b"\r\nTE: trailers\r\nConnection: TE\r\n" in backend.received[0]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pieces=st.lists(st.binary(min_size=1, max_size=300), max_size=8),
    cuts=st.lists(st.integers(1, 60), min_size=1, max_size=20),
    seed=st.integers(0, 99),
)
def test_any_body_arrives_however_it_is_cut_into_packets(echo_ingress, pieces, cuts, seed):
    ingress, port = echo_ingress
    data = b"".join([b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces]) + b"0\r\n\r\n"
    data = (
        f"PUT /{ingress.id}/{port}/ HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n".encode() + data
    )
    with ingress.connect() as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        position = 0
        for cut in [*cuts, len(data)]:
            client.sendall(data[position : position + cut])
            position += cut
        answer = read_until(client, b"0\r\n\r\n")
    assert unchunk(body_of(answer)) == b"".join(pieces)


def unchunk(data: bytes) -> bytes:
    content = b""
    while True:
        size, _, data = data.partition(b"\r\n")
        if int(size, 16) == 0:
            return content
        content += data[: int(size, 16)]
        data = data[int(size, 16) + 2 :]


@pytest.fixture(scope="module")
def echo_ingress():
    from tests.support.ingress import running_ingress  # noqa: PLC0415

    with running_ingress() as ingress, scripted_backend(echo) as backend:
        yield ingress, backend.port


def test_events_arrive_one_by_one(ingress):
    go = threading.Semaphore(0)

    def script(connection, backend):
        read_head(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        for number in range(3):
            assert go.acquire(timeout=10)
            connection.sendall(b"data: %d\n\n" % number)

    with scripted_backend(script) as backend, ingress.connect() as client:
        client.sendall(ingress.head(backend.port))
        assert b"Transfer-Encoding: chunked" in read_until(client, b"\r\n\r\n")
        for number in range(2):
            go.release()
            assert read_until(client, b"\n\n\r\n") == b"9\r\ndata: %d\n\n\r\n" % number
        go.release()
        assert read_until(client, b"0\r\n\r\n") == b"9\r\ndata: 2\n\n\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("method", "response"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nETag: x\r\nContent-Length: 99\r\n\r\n"),
        ("GET", b"HTTP/1.1 204 No Content\r\nX: y\r\n\r\n"),
        ("DELETE", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
    ],
)
def test_answers_without_a_body_have_none_and_the_connection_goes_on(ingress, method, response):
    with scripted_backend(answer_with(response)) as backend, ingress.connect() as client:
        for _ in range(2):
            client.sendall(ingress.head(backend.port, method))
            assert read_until(client, b"\r\n\r\n") == response


def test_continue_and_hints_are_passed_on_and_asked_of_nobody_else(ingress):
    def script(connection, backend):
        backend.received.append(read_head(connection))
        connection.sendall(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n")
        backend.received.append(connection.recv(4))
        connection.sendall(OK)

    with scripted_backend(script) as backend, ingress.connect() as client:
        client.sendall(
            ingress.head(backend.port, "POST", headers="Expect: 100-continue\r\nContent-Length: 4\r\n")
        )
        hints = read_until(client, b"Continue\r\n\r\n")
        assert hints == b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"body")
        assert read_until(client, b"ok").startswith(b"HTTP/1.1 200 OK\r\n")
    assert backend.received[1] == b"body"
    assert b"Expect: 100-continue" in backend.received[0]


def test_a_refusal_comes_through_while_the_body_is_still_sent(ingress):
    def script(connection, backend):
        read_head(connection)
        connection.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 5\r\nConnection: close\r\n\r\nlarge")

    with scripted_backend(script) as backend, ingress.connect() as client:
        client.sendall(ingress.head(backend.port, "POST", headers=f"Content-Length: {1 << 30}\r\n"))
        client.settimeout(10)
        try:
            for _ in range(200):
                client.sendall(bytes(1 << 16))
        except OSError:
            pass
        answer = read_until(client, b"large")
    assert status_of(answer) == 413
    assert b"Connection: close" in answer


def test_a_client_that_leaves_takes_its_request_along(ingress):
    gone = threading.Event()

    def script(connection, backend):
        read_head(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n")
        assert connection.recv(1) == b""
        gone.set()

    with scripted_backend(script) as backend:
        with ingress.connect() as client:
            client.sendall(ingress.head(backend.port))
            read_until(client, b"ok")
        assert gone.wait(10)


def test_a_client_that_has_only_ended_its_direction_gets_its_answer(ingress):
    def script(connection, backend):
        read_head(connection)
        assert connection.recv(1) == b""
        connection.sendall(OK)

    with scripted_backend(script) as backend, ingress.connect() as client:
        client.sendall(ingress.head(backend.port))
        client.shutdown(socket.SHUT_WR)
        assert read_all(client).endswith(b"ok")


@pytest.mark.parametrize("head", [b"Content-Length: 100\r\n", b"Transfer-Encoding: chunked\r\n", b""])
def test_an_answer_that_breaks_off_is_not_taken_for_a_whole_one(ingress, head):
    sent = b"64\r\npart" if b"chunked" in head else b"part"

    def script(connection, backend):
        read_head(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n" + sent)
        if not head:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    with scripted_backend(script) as backend:
        answer = ingress.ask(backend.port)
    assert status_of(answer) == 200
    assert not answer.endswith(b"0\r\n\r\n")
    if head:
        assert b"part" in answer


def test_an_old_client_gets_plain_bytes_and_an_end(ingress):
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX: y\r\n\r\n"
    with scripted_backend(answer_with(b"HTTP/1.1 103 Early Hints\r\n\r\n" + chunked)) as backend:
        answer = ingress.say(f"GET /{ingress.id}/{backend.port}/ HTTP/1.0\r\n\r\n".encode())
    assert answer == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nok"


def test_pipelined_requests_are_answered_in_turn(ingress):
    with scripted_backend(answer_with(OK)) as backend, ingress.connect() as client:
        one = f"GET /{ingress.id}/{backend.port}/%d HTTP/1.1\r\nHost: h\r\n\r\n"
        client.sendall("".join([one % number for number in range(5)]).encode())
        data = b""
        while data.count(b"ok") < 5:
            data += client.recv(1000)
        assert data.count(b"HTTP/1.1 200") == 5
    assert [head.split()[1] for head in backend.received] == [b"/0", b"/1", b"/2", b"/3", b"/4"]


def test_websockets_pass_frames_subprotocols_pings_and_close_codes(ingress):
    def handler(socket_):
        assert socket_.request.headers["X-Own"] == "1"
        assert socket_.request.headers["Cookie"] == "a=b"
        for message in socket_:
            if message == "bye":
                socket_.ping().wait(10)
                socket_.close(4321, "as asked")
            else:
                socket_.send(message)

    with (
        websocket_backend(handler, subprotocols=["two"]) as port,
        connect_websocket(
            f"ws://127.0.0.1:{ingress.port}/{ingress.id}/{port}/ws?x=1",
            subprotocols=["one", "two"],
            additional_headers={"X-Own": "1", "Cookie": "a=b"},
            proxy=None,
        ) as client,
    ):
        assert client.subprotocol == "two"
        assert client.ping().wait(10)
        for message in ("text ä", bytes(range(256)) * 1000):
            client.send(message)
            assert client.recv(10) == message
        client.send("bye")
        with pytest.raises(Exception, match=r"4321.*as asked"):
            client.recv(10)


def test_other_protocols_pass_and_each_direction_ends_by_itself(ingress):
    def script(connection, backend):
        backend.received.append(read_head(connection))
        connection.sendall(b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: own/1\r\n\r\nhello")
        data = read_all(connection)
        connection.sendall(b"got " + data)

    with scripted_backend(script) as backend, ingress.connect() as client:
        client.sendall(
            ingress.head(backend.port, "GET", headers="Connection: keep-alive, Upgrade\r\nUpgrade: own/1\r\n")
            + b"early "
        )
        read_until(client, b"hello")
        client.sendall(b"\0later")
        client.shutdown(socket.SHUT_WR)
        assert read_all(client) == b"got early \0later"
    assert b"\r\nConnection: Upgrade\r\nUpgrade: own/1\r\n" in backend.received[0]


def test_a_refused_upgrade_is_an_answer_like_others(ingress):
    with scripted_backend(answer_with(OK)) as backend, ingress.connect() as client:
        for _ in range(2):
            client.sendall(
                ingress.head(backend.port, "GET", headers="Connection: Upgrade\r\nUpgrade: own/1\r\n")
            )
            assert status_of(read_until(client, b"ok")) == 200


@pytest.mark.slow
def test_a_gigabyte_passes_each_way_in_flat_memory(ingress):
    size = 1 << 30
    block = random.Random(1).randbytes(1 << 20)

    def script(connection, backend):
        read_head(connection)
        left = check = 0
        left = size
        while left:
            data = connection.recv(1 << 20)
            left -= len(data)
            check = zlib.crc32(data, check)
        backend.received.append(b"%d" % check)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(size >> 20):
            connection.sendall(block)

    with scripted_backend(script) as backend, ingress.connect() as client:
        client.settimeout(100)
        client.sendall(ingress.head(backend.port, "POST", headers=f"Content-Length: {size}\r\n"))
        before, check = rss_bytes(), 0
        for _ in range(size >> 20):
            client.sendall(block)
            check = zlib.crc32(block, check)
        _, _, first = read_until(client, b"\r\n\r\n").partition(b"\r\n\r\n")
        got = len(first)
        while got < size:
            got += len(client.recv(1 << 20))
        assert rss_bytes() - before < 32 << 20
    assert backend.received == [b"%d" % check]


def test_a_slow_reader_holds_up_its_program_and_no_memory(ingress):
    sent = 0
    stopped = threading.Event()

    def script(connection, backend):
        nonlocal sent
        read_head(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (1 << 30))
        connection.settimeout(1)
        try:
            while True:
                connection.sendall(bytes(1 << 16))
                sent += 1 << 16
        except TimeoutError:
            stopped.set()

    with scripted_backend(script) as backend, ingress.connect() as client:
        before = rss_bytes()
        client.sendall(ingress.head(backend.port))
        assert stopped.wait(20)
        # What the kernel holds for the two connections, and next to nothing of ours.
        assert sent < 64 << 20
        assert rss_bytes() - before < 8 << 20
