"""What the ingress answers itself, and what it keeps from those behind it."""

import socket
import threading
from http.server import BaseHTTPRequestHandler

import pytest

from core.errors import NotSupportedError, UnavailableError
from ingress.limits import Limits
from models.live_sandboxes import WireState
from services.sandbox_directory import SandboxEndedError
from tests.support.backends import answer_with, http_backend, read_head, scripted_backend
from tests.support.ingress import (
    EXECD_PORT,
    EXECD_TOKEN,
    TOKEN,
    body_of,
    make_target,
    read_all,
    read_until,
    running_ingress,
    status_of,
)

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
SMUGGLED = "GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n"


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", 400),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", 400),
        ("Transfer-Encoding: gzip, chunked\r\n", 501),
        ("Transfer-Encoding: chunked, identity\r\n", 501),
        ("Transfer-Encoding: \x0bchunked\r\n", 400),
        ("Transfer-Encoding : chunked\r\n", 400),
        ("Content-Length: 4\r\nContent-Length: 4\r\n", 400),
        ("Content-Length: 4, 4\r\n", 400),
        ("Content-Length: +4\r\n", 400),
        ("Content-Length: 0x4\r\n", 400),
        ("Content-Length: -1\r\n", 400),
        ("Content-Length: \r\n", 400),
        ("Content-Length: 9999999999999999999\r\n", 400),
        ("X: a\r\n folded\r\n", 400),
        ("X: a\nContent-Length: 4\r\n", 400),
        ("X: a\rContent-Length: 4\r\n", 400),
        ("X: a\0b\r\n", 400),
        (": empty\r\n", 400),
        ("no colon\r\n", 400),
        ("Host: second\r\n", 400),
        ("X: " + "a" * (70 << 10) + "\r\n", 431),
        ("X: a\r\n" * 300, 431),
    ],
)
def test_a_head_that_can_be_read_in_two_ways_reaches_nobody(ingress, head, status):
    with scripted_backend(answer_with(OK)) as backend:
        start = f"POST /{ingress.id}/{backend.port}/ HTTP/1.1\r\nHost: h\r\n"
        answer = ingress.say(f"{start}{head}\r\n{SMUGGLED}".encode("latin-1"))
    assert status_of(answer) == status
    assert answer.count(b"HTTP/1.1") == 1
    assert b"\r\nConnection: close\r\n" in answer
    assert body_of(answer).startswith(b"OpenSandbox Ingress: ")
    assert backend.received == []


@pytest.mark.parametrize(
    "line",
    [
        "GET {path} HTTP/1.1 ",
        "GET  {path} HTTP/1.1",
        "GET {path} HTTP/2.0",
        "GET {path} http/1.1",
        "GET {path}",
        "GET\t{path} HTTP/1.1",
        "GET http://h{path} HTTP/1.1",
        "GET {path}\x7f HTTP/1.1",
        "G\x01T {path} HTTP/1.1",
        "\x16\x03\x01 {path} HTTP/1.1",
    ],
)
def test_a_request_line_that_is_none_reaches_nobody(ingress, line):
    with scripted_backend(answer_with(OK)) as backend:
        line = line.format(path=f"/{ingress.id}/{backend.port}/")
        answer = ingress.say(f"{line}\r\nHost: h\r\n\r\n".encode("latin-1"))
    assert status_of(answer) == 400
    assert backend.received == []


@pytest.mark.parametrize(
    "body",
    [
        "4\nwiki\r\n0\r\n\r\n",
        "44\nwiki\r\n0\r\n\r\n",
        "4\r\nwikiX\r\n0\r\n\r\n",
        "0x4\r\nwiki\r\n0\r\n\r\n",
        " 4\r\nwiki\r\n0\r\n\r\n",
        "-4\r\nwiki\r\n0\r\n\r\n",
        "\r\n",
        "4;a\rb\r\nwiki\r\n0\r\n\r\n",
        "4;a\nb\r\nwiki\r\n0\r\n\r\n",
        "ffffffffffffffff\r\n",
        "4;" + "a" * 5000 + "\r\nwiki\r\n0\r\n\r\n",
        "0\r\n folded\r\n\r\n",
        "0\r\n" + "X: " + "a" * 3000 + "\r\n" + ("X: " + "a" * 3000 + "\r\n") * 6 + "\r\n",
    ],
)
def test_a_body_that_can_be_read_in_two_ways_is_no_request(ingress, body):
    def script(connection, backend):
        backend.received.append(read_head(connection))
        backend.received.append(read_all(connection))

    with scripted_backend(script) as backend:
        start = (
            f"POST /{ingress.id}/{backend.port}/ HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        answer = ingress.say(f"{start}{body}{SMUGGLED}".encode("latin-1"))
    assert status_of(answer) == 400
    assert b"smuggled" not in b"".join(backend.received)
    assert not b"".join(backend.received[1:]).endswith(b"0\r\n\r\n")


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok!",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok",
        b"HTTP/1.1 2x0 OK\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 102 Processing\r\n\r\n" * 40,
        b"SSH-2.0-OpenSSH_9\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * (80 << 10) + b"\r\n\r\n",
        b"HTTP/1.1 200",
        b"",
    ],
)
def test_an_answer_that_is_none_is_a_502(ingress, response):
    with scripted_backend(answer_with(response)) as backend:
        answer = ingress.ask(backend.port)
    final = answer.replace(b"HTTP/1.1 102 Processing\r\n\r\n", b"")
    assert status_of(final) == 502
    assert body_of(final).startswith(b"OpenSandbox Ingress: port ")


def test_what_a_program_says_unasked_is_not_the_answer_of_the_next(ingress):
    forged = OK + b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged"
    with scripted_backend(answer_with(forged)) as backend, ingress.connect() as client:
        for _ in range(2):
            client.sendall(ingress.head(backend.port))
            assert read_until(client, b"ok").endswith(b"\r\n\r\nok")
    assert len(backend.received) == 2


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/", 404),
        ("/{id}", 404),
        ("/{id}/", 404),
        ("/{id}/0/", 404),
        ("/{id}/080/", 404),
        ("/{id}/65536/", 400),
        ("/{id}/80x/", 404),
        ("/{id}%2F80/", 404),
        ("/../{id}/80/", 404),
        ("/00000000-0000-4000-8000-000000000000/80/", 404),
    ],
)
def test_a_path_without_sandbox_and_port_is_refused(ingress, path, status):
    answer = ingress.say(
        f"GET {path.format(id=ingress.id)} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode()
    )
    assert status_of(answer) == status
    assert body_of(answer).startswith(b"OpenSandbox Ingress: ")


@pytest.mark.parametrize(
    "value", ["x", "{id}", "{id}-", "{id}-0", "{id}-99999", "{id}-80-1-sig", "{id}-80,{id}-81"]
)
def test_a_bad_route_header_is_not_passed_over(ingress, value):
    """The path would lead somewhere, too."""
    answer = ingress.ask(9, headers=f"OpenSandbox-Ingress-To: {value.format(id=ingress.id)}\r\n")
    assert status_of(answer) == 400


def test_health_needs_no_sandbox(ingress):
    assert body_of(ingress.say(b"GET /status.ok HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")) == b"OK"
    head = ingress.say(b"HEAD /status.ok HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
    assert (status_of(head), body_of(head)) == (200, b"")


@pytest.mark.parametrize(
    ("state", "status", "word"),
    [
        (WireState.PAUSED, 503, b"paused"),
        (WireState.PAUSING, 503, b"paused"),
        (WireState.PENDING, 503, b"not running yet"),
        (WireState.RESUMING, 503, b"not running yet"),
        (WireState.STOPPING, 404, b"ended"),
        (WireState.FAILED, 404, b"ended"),
        (WireState.TERMINATED, 404, b"ended"),
    ],
)
def test_a_sandbox_that_does_not_run_says_so(ingress, state, status, word):
    ingress.change(state=state)
    answer = ingress.ask(9)
    assert status_of(answer) == status
    assert word in body_of(answer)
    assert (b"Retry-After: 1" in answer) == (word == b"not running yet")
    assert ingress.runtime.connects == []


def test_why_a_sandbox_has_ended_is_told_to_who_has_its_token(ingress):
    ingress.directory.error = SandboxEndedError(
        ingress.target.id,
        tenant_id=1,
        access_token=TOKEN,
        state="Failed",
        reason="BAD_IMAGE",
        cause="no such image",
    )
    told = f"sandbox {ingress.id} has ended, it is Failed (BAD_IMAGE: no such image)".encode()
    for answer in (
        ingress.ask(9, headers=f"OpenSandbox-Secure-Access: {TOKEN}\r\n"),
        ingress.ask(9, rest=f"/~{TOKEN}/"),
    ):
        assert status_of(answer) == 404
        assert told in body_of(answer)
    for answer in (
        ingress.ask(9),
        ingress.ask(9, headers=f"OpenSandbox-Secure-Access: {TOKEN}x\r\n"),
        ingress.ask(9, rest=f"/~{TOKEN}x/"),
    ):
        assert status_of(answer) == 404
        assert body_of(answer) == f"OpenSandbox Ingress: there is no sandbox {ingress.id}\n".encode()


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"node_id": make_target().id}, 404),
        ({"node_id": None}, 503),
        ({"sandbox_name": None}, 503),
        ({"runtime": "docker"}, 502),
    ],
)
def test_a_sandbox_of_another_place_is_not_looked_for_here(ingress, changes, status):
    ingress.change(**changes)
    assert status_of(ingress.ask(9)) == status
    assert ingress.runtime.connects == []


def test_a_directory_that_does_not_answer_is_a_503(ingress):
    ingress.directory.error = UnavailableError("the database does not answer: try again soon")
    assert status_of(ingress.ask(9)) == 503


def test_a_port_nobody_listens_on_is_a_502_and_is_looked_up_anew(ingress):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    answer = ingress.ask(port)
    assert status_of(answer) == 502
    assert b"process" not in body_of(answer), "words of the host"
    assert ingress.directory.forgotten == [ingress.target.id]


def test_a_port_that_takes_no_connection_is_a_504(ingress):
    def connect(handle, port, *, timeout_seconds):
        raise NotSupportedError("slow") from TimeoutError()

    ingress.runtime.connect = connect
    assert status_of(ingress.ask(9)) == 504


@pytest.mark.parametrize("shown", [None, "", "wrong", TOKEN[:-1], TOKEN + "x", EXECD_TOKEN, "twice"])
def test_execd_is_for_those_with_the_access_token(ingress, shown):
    headers = "" if shown is None else f"OpenSandbox-Secure-Access: {shown}\r\n"
    headers = f"OpenSandbox-Secure-Access: {TOKEN}\r\n" * 2 if shown == "twice" else headers
    answer = ingress.ask(EXECD_PORT, headers=headers + f"X-EXECD-ACCESS-TOKEN: {EXECD_TOKEN}\r\n")
    assert status_of(answer) == 401
    assert b"OpenSandbox-Secure-Access" in body_of(answer)
    assert ingress.runtime.connects == []


def test_the_access_token_becomes_that_of_execd(ingress):
    headers = (
        f"OpenSandbox-Secure-Access: {TOKEN}\r\nX-EXECD-ACCESS-TOKEN: guess\r\n"
        "Authorization: Bearer k\r\nCookie: c\r\nX-Own: 1\r\n"
    )
    with scripted_backend(answer_with(OK)) as backend:
        ingress.runtime.ports[EXECD_PORT] = backend.port
        assert status_of(ingress.ask(EXECD_PORT, headers=headers)) == 200
    got = backend.received[0]
    assert got.count(b"X-EXECD-ACCESS-TOKEN") == 1
    assert f"\r\nX-EXECD-ACCESS-TOKEN: {EXECD_TOKEN}\r\n".encode() in got
    for secret in (TOKEN.encode(), b"guess", b"Authorization", b"Cookie"):
        assert secret not in got
    assert b"\r\nX-Own: 1\r\n" in got


@pytest.mark.parametrize(("shown", "status"), [(TOKEN, 200), (TOKEN[:-1] + "X", 401), (EXECD_TOKEN * 2, 401)])
def test_the_access_token_may_stand_in_the_path(ingress, shown, status):
    with scripted_backend(answer_with(OK)) as backend:
        ingress.runtime.ports[EXECD_PORT] = backend.port
        assert status_of(ingress.ask(EXECD_PORT, rest=f"/~{shown}/ping?q=1")) == status
    if status == 200:
        assert backend.received[0].startswith(b"GET /ping?q=1 HTTP/1.1\r\n")
        assert TOKEN.encode() not in backend.received[0]
    else:
        assert ingress.runtime.connects == []


def test_an_execd_without_a_token_of_its_own_is_shown_none(ingress):
    ingress.runtime.is_tokenless = True
    headers = f"OpenSandbox-Secure-Access: {TOKEN}\r\nX-EXECD-ACCESS-TOKEN: guess\r\n"
    with scripted_backend(answer_with(OK)) as backend:
        ingress.runtime.ports[EXECD_PORT] = backend.port
        assert status_of(ingress.ask(EXECD_PORT, headers=headers)) == 200
    assert b"X-EXECD" not in backend.received[0]


@pytest.mark.parametrize(("headers", "status"), [("", 401), (f"OpenSandbox-Secure-Access: {TOKEN}\r\n", 200)])
def test_other_ports_are_closed_only_if_the_sandbox_is_secure(ingress, headers, status):
    with scripted_backend(answer_with(OK)) as backend:
        assert status_of(ingress.ask(backend.port)) == 200
        ingress.change(is_secure=True)
        assert status_of(ingress.ask(backend.port, headers=headers)) == status


def test_headers_of_other_hops_and_of_ours_stay_out_of_the_sandbox(ingress):
    headers = (
        f"OpenSandbox-Secure-Access: {TOKEN}x\r\nOPEN-SANDBOX-API-KEY: sm_k\r\nX-Forwarded-For: 6.6.6.6\r\n"
        "X-Forwarded-Proto: https\r\nx-forwarded-own: 1\r\nForwarded: for=6.6.6.6\r\nX-Real-IP: 6.6.6.6\r\n"
        "Sandmill-Forwarded-For: 6.6.6.6\r\nOpenSandbox-Access-Renew: skip\r\nProxy-Authorization: p\r\n"
        "X-EXECD-ACCESS-TOKEN: sm_k\r\nX_Execd_Access_Token: sm_k\r\nOPEN_SANDBOX_API_KEY: sm_k\r\n"
        "X_Forwarded_For: 6.6.6.6\r\nSandmill_Forwarded-For: 6.6.6.6\r\n"
        "Keep-Alive: 5\r\nTE: gzip\r\nConnection: X-Named, Host\r\nX-Named: 1\r\nUpgrade: h2c\r\n"
        "HTTP2-Settings: AAA\r\n"
    )
    with scripted_backend(answer_with(OK)) as backend:
        assert status_of(ingress.ask(backend.port, headers=headers)) == 200
    got = backend.received[0]
    assert got.split(b"\r\n")[1:] == [
        b"Host: here",
        b"X-Forwarded-For: 127.0.0.1",
        b"X-Forwarded-Proto: http",
        b"X-Forwarded-Host: here",
        f"X-Forwarded-Prefix: /{ingress.id}/{backend.port}".encode(),
        b"",
        b"",
    ]


def test_a_proxy_of_ours_tells_on_who_asked_it(ingress):
    headers = (
        f"OpenSandbox-Secure-Access: {TOKEN}\r\nSandmill-Forwarded-For: 6.6.6.6\r\n"
        "Sandmill-Forwarded-Proto: https\r\nSandmill-Forwarded-Host: api\r\nSandmill-Forwarded-Prefix: /p\r\n"
    )
    with scripted_backend(answer_with(OK)) as backend:
        ingress.ask(backend.port, headers=headers)
    assert (
        b"X-Forwarded-For: 6.6.6.6\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: api\r\nX-Forwarded-Prefix: /p\r\n"
        in backend.received[0]
    )


def test_hop_headers_of_the_answer_stay_behind(ingress):
    response = (
        b"HTTP/1.1 200 OK\r\nConnection: X-Named\r\nX-Named: 1\r\nKeep-Alive: 5\r\nProxy-Authenticate: x\r\n"
        b"Content-Length: 2\r\nX: y\r\n\r\nok"
    )
    with scripted_backend(answer_with(response)) as backend:
        answer = ingress.ask(backend.port)
    assert answer == b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX: y\r\nConnection: close\r\n\r\nok"


def test_egress_answers_that_it_is_not_there(ingress):
    answer = ingress.ask(18080, "PATCH", "/policy")
    assert status_of(answer) == 501
    assert b"Content-Type: application/json" in answer
    assert body_of(answer).startswith(b'{"code": "EGRESS::API_NOT_SUPPORTED", "message": "')


def test_use_is_told_once_in_a_while_and_only_of_those_let_in(ingress):
    ingress.ask(EXECD_PORT)
    assert ingress.accessed == []
    with scripted_backend(answer_with(OK)) as backend:
        ingress.ask(backend.port, headers="OpenSandbox-Access-Renew: skip\r\n")
        assert ingress.accessed == []
        for _ in range(3):
            ingress.ask(backend.port)
    assert ingress.accessed == [ingress.target.id]


class Polite(BaseHTTPRequestHandler):
    """Keeps its connections."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    do_POST = do_GET  # noqa: N815 -- the name of the standard library

    def log_message(self, *_):
        pass


@pytest.mark.parametrize(
    ("port", "method", "connects"), [(EXECD_PORT, "POST", 1), (80, "GET", 1), (80, "POST", 3)]
)
def test_connections_to_execd_are_used_again_and_those_to_others_with_care(ingress, port, method, connects):
    with http_backend(Polite) as backend, ingress.connect() as client:
        ingress.runtime.ports[port] = backend
        for _ in range(3):
            client.sendall(
                f"{method} /{ingress.id}/{port}/ HTTP/1.1\r\nHost: h\r\n"
                f"OpenSandbox-Secure-Access: {TOKEN}\r\nContent-Length: 0\r\n\r\n".encode()
            )
            read_until(client, b"ok")
    assert len(ingress.runtime.connects) == connects


def test_a_request_that_may_be_repeated_outlives_a_connection_that_just_closed(ingress):
    answered = threading.Semaphore(0)

    def script(connection, backend):
        read_head(connection)
        backend.received.append(b"")
        connection.sendall(OK)
        if len(backend.received) == 1:
            read_head(connection)  # the second request comes in, and the connection closes
            backend.received.append(b"closed")
        answered.release()

    with scripted_backend(script) as backend, ingress.connect() as client:
        for _ in range(2):
            client.sendall(ingress.head(backend.port))
            assert status_of(read_until(client, b"ok")) == 200
    assert backend.received == [b"", b"closed", b""]


def test_slow_heads_and_idle_connections_are_closed():
    with running_ingress(limits=Limits(head_seconds=0.2, idle_seconds=0.2)) as ingress:
        assert ingress.say(b"") == b""
        answer = ingress.say(b"GET / HTTP/1.1\r\nHost:")
        assert status_of(answer) == 408
        answer = ingress.say(b"GET /status.ok HTTP/1.1\r\nHost: h\r\n\r\n")
        assert answer.endswith(b"OK")


def test_a_body_that_stops_coming_is_given_up_until_there_is_an_answer():
    def script(connection, backend):
        backend.received.append(read_head(connection) + read_all(connection))

    with (
        running_ingress(limits=Limits(body_silence_seconds=0.2)) as ingress,
        scripted_backend(script) as backend,
    ):
        answer = ingress.ask(backend.port, "POST", headers="Content-Length: 9\r\n", body=b"half")
    assert status_of(answer) == 408
    assert backend.received[0].endswith(b"half")


def test_one_sandbox_takes_so_many_requests_at_a_time():
    with running_ingress(limits=Limits(per_sandbox=1)) as ingress:

        def script(connection, backend):
            backend.received.append(read_head(connection))
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no")
            connection.recv(1)

        with scripted_backend(script) as backend, ingress.connect() as client:
            client.sendall(ingress.head(backend.port))
            read_until(client, b"\r\n\r\n")
            answer = ingress.ask(backend.port)
            assert status_of(answer) == 503
            assert b"Retry-After: 1" in answer


def test_connections_beyond_the_limit_are_told():
    with running_ingress(limits=Limits(connections=1)) as ingress, ingress.connect() as client:
        client.sendall(b"GET /status.ok HTTP/1.1\r\nHost: h\r\n\r\n")
        read_until(client, b"OK")
        assert status_of(ingress.say(b"GET /status.ok HTTP/1.1\r\nHost: h\r\n\r\n")) == 503
