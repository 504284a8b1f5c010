"""A port of a sandbox by way of the API: the real API before a real ingress."""

import contextlib
import json
import socket
import threading
from dataclasses import dataclass
from uuid import uuid4

import httpx
import pytest
from sqlalchemy.exc import OperationalError
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect as connect_websocket

from api.proxy.http import HttpRelay
from models.live_sandboxes import WireState
from tests.integration.api.conftest import ApiWorld, api, shared_api  # noqa: F401 -- fixtures are found by name
from tests.support.backends import answer_with, read_head, scripted_backend, websocket_backend
from tests.support.ingress import (
    EXECD_PORT,
    EXECD_TOKEN,
    TOKEN,
    Ingress,
    PortRuntime,
    body_of,
    read_all,
    read_until,
    rss_bytes,
    running_ingress,
    status_of,
)
from tests.support.invariants import SANDBOXES_BY_HAND

pytestmark = SANDBOXES_BY_HAND

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

INSERT = """
INSERT INTO sandbox_sessions (trial_id, tenant_id, entrypoint, access_token, node_id, runtime, sandbox_name, state,
                              is_secure)
VALUES (%(id)s, %(me)s, '{}', %(token)s, %(node)s, 'fake', 'sm-x', 'Running', %(secure)s)
"""


@dataclass
class Proxied:
    """An API, an ingress behind it, and a sandbox that both know."""

    api: ApiWorld
    ingress: Ingress

    @property
    def runtime(self) -> PortRuntime:
        return self.ingress.runtime

    def path(self, port: object, rest: str = "/", *, prefix: str = "/v1") -> str:
        return f"{prefix}/sandboxes/{self.ingress.id}/proxy/{port}{rest}"

    def ask(self, port: object, rest: str = "/", *, method: str = "GET", prefix: str = "/v1", **options):
        headers = {"OPEN-SANDBOX-API-KEY": self.api.key, **options.pop("headers", {})}
        url = self.api.url + self.path(port, rest, prefix=prefix)
        return httpx.request(method, url, headers=headers, timeout=10, **options)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", int(self.api.url.rpartition(":")[2])), 5)

    def head(self, port: int, method: str = "GET", rest: str = "/", headers: str = "") -> bytes:
        line = f"{method} {self.path(port, rest)} HTTP/1.1\r\nHost: here\r\nOPEN-SANDBOX-API-KEY: {self.api.key}\r\n"
        return f"{line}{headers}\r\n".encode()

    def websocket(self, port: int, rest: str = "/", **options):
        headers = {"OPEN-SANDBOX-API-KEY": self.api.key, **options.pop("headers", {})}
        url = f"ws{self.api.url.removeprefix('http')}{self.path(port, rest)}"
        return connect_websocket(url, additional_headers=headers, proxy=None, **options)

    def close_of(self, port: int, **options) -> tuple[int, str]:
        with self.websocket(port, **options) as client, pytest.raises(ConnectionClosed) as caught:
            client.recv(10)
        return caught.value.rcvd.code, caught.value.rcvd.reason


@pytest.fixture
def proxied(api):  # noqa: F811 -- a fixture
    (trial,) = api.world.trials(api.tenant_id)
    node = api.world.session().node_id
    with running_ingress(id=trial) as ingress:
        url = f"http://127.0.0.1:{ingress.port}"
        api.rows("UPDATE nodes SET ingress_url = %(url)s WHERE id = %(id)s RETURNING 1", url=url, id=node)
        api.rows(INSERT + " RETURNING 1", id=trial, token=TOKEN, node=node, secure=False)
        yield Proxied(api, ingress)


@pytest.mark.parametrize("prefix", ["/v1", ""])
@pytest.mark.parametrize(
    ("rest", "expected"),
    [("", b"/"), ("/", b"/"), ("/a%2Fb//c?x=%20&y", b"/a%2Fb//c?x=%20&y"), ("?q", b"/?q")],
)
def test_method_path_query_and_body_arrive(proxied, prefix, rest, expected):
    def script(connection, backend):
        backend.received.append(read_head(connection))
        backend.received.append(connection.recv(5))
        connection.sendall(b"HTTP/1.1 201 Made\r\nX-Own: 1\r\nContent-Length: 2\r\n\r\nok")

    with scripted_backend(script) as backend:
        answer = proxied.ask(backend.port, rest, method="PATCH", prefix=prefix, content=b"12345")
    assert (answer.status_code, answer.text, answer.headers["x-own"]) == (201, "ok", "1")
    assert len(answer.headers["x-request-id"]) == 32
    assert backend.received[0].startswith(b"PATCH " + expected + b" HTTP/1.1\r\n")
    assert backend.received[1] == b"12345"


def test_headers_follow_the_rules(proxied):
    headers = {
        "Authorization": "Bearer of-the-app",
        "Cookie": "a=b",
        "OpenSandbox-Secure-Access": TOKEN,
        "Forwarded": "for=6.6.6.6",
        "X-Forwarded-For": "6.6.6.6",
        "X-Forwarded-Own": "1",
        "X-Real-IP": "6.6.6.6",
        "Sandmill-Forwarded-For": "6.6.6.6",
        "OpenSandbox-Ingress-To": f"{uuid4()}-80",
        "OpenSandbox-Access-Renew": "skip",
        "X-EXECD-ACCESS-TOKEN": proxied.api.key,
        "X_EXECD_ACCESS_TOKEN": proxied.api.key,
        "OPEN_SANDBOX_API_KEY": proxied.api.key,
        "OPENSANDBOX-EGRESS-AUTH": "e",
        "X-Own": "1",
        "Host": "here:1",
    }
    with scripted_backend(answer_with(OK)) as backend:
        assert proxied.ask(backend.port, headers=headers).status_code == 200
    lines = backend.received[0].rstrip().split(b"\r\n")[1:]
    got = {name.lower(): value for name, _, value in (line.partition(b": ") for line in lines)}
    for name in (b"accept", b"accept-encoding", b"user-agent"):
        del got[name]
    assert got == {
        b"host": b"here:1",
        b"opensandbox-egress-auth": b"e",
        b"x-own": b"1",
        b"x-forwarded-for": b"127.0.0.1",
        b"x-forwarded-proto": b"http",
        b"x-forwarded-host": b"here:1",
        b"x-forwarded-prefix": proxied.path(backend.port, "").encode(),
    }
    assert proxied.ingress.accessed == []


def test_use_counts_unless_it_asks_not_to(proxied):
    with scripted_backend(answer_with(OK)) as backend:
        proxied.ask(backend.port)
    assert proxied.ingress.accessed == [proxied.ingress.target.id]


def test_execd_is_shown_its_own_token_and_the_client_none(proxied):
    with scripted_backend(answer_with(OK)) as backend:
        proxied.runtime.ports[EXECD_PORT] = backend.port
        answer = proxied.ask(EXECD_PORT, "/ping")
    assert answer.status_code == 200
    assert f"X-EXECD-ACCESS-TOKEN: {EXECD_TOKEN}".encode() in backend.received[0]
    assert TOKEN.encode() not in backend.received[0]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("/login?x", "{prefix}/login?x"),
        ("/", "{prefix}/"),
        ("//elsewhere/x", "//elsewhere/x"),
        ("http://elsewhere/x", "http://elsewhere/x"),
        ("next", "next"),
        ("{prefix}/x", "{prefix}/x"),
        ("{prefix}9/x", "{prefix}{prefix}9/x"),
    ],
)
def test_redirects_lead_to_the_same_port(proxied, value, expected):
    def script(connection, backend):
        read_head(connection)
        location = value.format(prefix=proxied.path(backend.port, "")).encode()
        connection.sendall(b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: " + location + b"\r\n\r\n")

    with scripted_backend(script) as backend:
        prefix = proxied.path(backend.port, "")
        assert proxied.ask(backend.port).headers["location"] == expected.format(prefix=prefix)


@pytest.mark.parametrize(
    "headers", [{}, {"OPEN-SANDBOX-API-KEY": "sm_" + "x" * 40}, {"Authorization": "Bearer x"}]
)
def test_only_those_with_a_key_come_in(proxied, headers):
    url = proxied.api.url + proxied.path(80)
    answer = httpx.get(url, headers=headers)
    assert answer.status_code == 401
    assert answer.json()["code"] == ("INVALID_API_KEY" if headers else "MISSING_API_KEY")
    assert "x-request-id" in answer.headers
    assert proxied.runtime.connects == []


@pytest.fixture
def soon_checked(monkeypatch):
    """Keys are looked at five times a second."""
    monkeypatch.setattr("api.proxy.key_watch.CHECK_SECONDS", 0.2)
    monkeypatch.setattr("services.tenants._CACHE_SECONDS", 0.2)


def revoke(proxied):
    sql = "UPDATE api_keys SET revoked_at = clock_timestamp() WHERE tenant_id = %(me)s RETURNING 1"
    proxied.api.rows(sql)


def test_a_websocket_ends_soon_after_its_key_is_revoked(proxied, soon_checked):
    """T62."""

    def echo(socket_):
        with contextlib.suppress(ConnectionClosed):
            for message in socket_:
                socket_.send(message)
        gone.set()

    gone = threading.Event()
    with websocket_backend(echo) as port, proxied.websocket(port) as client:
        for _ in range(5):  # over several looks at a key that is good
            client.send("on")
            assert client.recv(10) == "on"
            threading.Event().wait(0.2)
        revoke(proxied)
        with pytest.raises(ConnectionClosed) as caught:
            client.recv(10)
        assert gone.wait(10)
    assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (
        1008,
        "send a valid API key: 'Authorization: Bearer sm_...'",
    )


def test_an_answer_breaks_off_soon_after_its_key_is_revoked(proxied, soon_checked):
    """T62: for its client it is not whole, and its program learns that nobody listens."""
    gone = threading.Event()

    def script(connection, backend):
        read_head(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n")
        assert connection.recv(1) == b""
        gone.set()

    with scripted_backend(script) as backend, proxied.connect() as client:
        client.settimeout(10)
        client.sendall(proxied.head(backend.port))
        read_until(client, b"ok\r\n")
        revoke(proxied)
        assert client.recv(1) == b""
        assert gone.wait(10)


def test_a_request_without_an_answer_is_refused_soon_after_its_key_is_revoked(proxied, soon_checked):
    """T62."""

    def script(connection, backend):
        read_head(connection)
        revoke(proxied)
        assert connection.recv(1) == b""

    with scripted_backend(script) as backend:
        answer = proxied.ask(backend.port)
    assert (answer.status_code, answer.json()["code"]) == (401, "INVALID_API_KEY")


def test_a_database_that_is_away_ends_no_call(proxied, soon_checked, monkeypatch):
    def recheck(authenticator, key):
        asked.release()
        raise OperationalError("SELECT 1", None, OSError("away"))

    asked = threading.Semaphore(0)

    def script(connection, backend):
        read_head(connection)
        monkeypatch.setattr("services.tenants.Authenticator.recheck", recheck)
        assert asked.acquire(timeout=10)
        assert asked.acquire(timeout=10)
        connection.sendall(OK)

    with scripted_backend(script) as backend:
        assert proxied.ask(backend.port).text == "ok"


def test_the_key_may_be_a_bearer_and_is_told_to_nobody(proxied):
    with scripted_backend(answer_with(OK)) as backend:
        answer = httpx.get(
            proxied.api.url + proxied.path(backend.port),
            headers={"Authorization": f"Bearer {proxied.api.key}"},
        )
    assert answer.status_code == 200
    assert proxied.api.key.encode() not in backend.received[0]


def test_the_key_may_be_shown_as_the_token_of_execd_which_is_told_its_own(proxied):
    with scripted_backend(answer_with(OK)) as backend:
        proxied.runtime.ports[EXECD_PORT] = backend.port
        url = proxied.api.url + proxied.path(EXECD_PORT, "/ping")
        answer = httpx.get(url, headers={"X-EXECD-ACCESS-TOKEN": proxied.api.key})
    assert answer.status_code == 200
    assert f"X-EXECD-ACCESS-TOKEN: {EXECD_TOKEN}".encode() in backend.received[0]
    assert proxied.api.key.encode() not in backend.received[0]


@pytest.mark.parametrize(
    ("port", "shown", "code"),
    [
        (EXECD_PORT, "sm_" + "x" * 40, "INVALID_API_KEY"),
        (80, None, "MISSING_API_KEY"),
    ],
    ids=["a wrong key", "at another port, where it would reach the program"],
)
def test_the_token_of_execd_is_no_way_in_otherwise(proxied, port, shown, code):
    url = proxied.api.url + proxied.path(port)
    answer = httpx.get(url, headers={"X-EXECD-ACCESS-TOKEN": shown or proxied.api.key})
    assert (answer.status_code, answer.json()["code"]) == (401, code)
    assert proxied.runtime.connects == []


def test_sandboxes_of_others_and_of_nobody_are_not_there(proxied, shared_api):  # noqa: F811 -- a fixture
    with shared_api.new_tenant() as other, scripted_backend(answer_with(OK)) as backend:
        answers = [
            proxied.ask(backend.port, headers={"OPEN-SANDBOX-API-KEY": other.key}),
            httpx.get(
                f"{proxied.api.url}/v1/sandboxes/{uuid4()}/proxy/80",
                headers={"OPEN-SANDBOX-API-KEY": other.key},
            ),
            httpx.get(
                f"{proxied.api.url}/v1/sandboxes/x/proxy/80", headers={"OPEN-SANDBOX-API-KEY": other.key}
            ),
        ]
        assert backend.received == []
    for answer in answers:
        assert (answer.status_code, answer.json()["code"]) == (404, "DOCKER::SANDBOX_NOT_FOUND")
        assert answer.json().keys() == {"code", "message"}


@pytest.mark.parametrize("state", ["Failed", "Terminated"])
def test_what_has_become_of_a_sandbox_is_told_to_its_tenant_alone(proxied, shared_api, state):  # noqa: F811
    sql = """UPDATE sandbox_sessions SET state = %(state)s, state_reason = 'BAD_IMAGE', state_message = 'no such image',
             ended_at = clock_timestamp() WHERE trial_id = %(id)s RETURNING 1"""
    proxied.api.rows(sql, id=proxied.ingress.target.id, state=state)
    answer = proxied.ask(80)
    assert (answer.status_code, answer.json()["code"]) == (404, "DOCKER::SANDBOX_NOT_FOUND")
    told = f"sandbox {proxied.ingress.id} has ended, it is {state} (BAD_IMAGE: no such image)"
    assert answer.json()["message"] == told
    code, reason = proxied.close_of(80)
    assert (code, told.startswith(reason)) == (1008, True)
    with shared_api.new_tenant() as other:
        foreign = proxied.ask(80, headers={"OPEN-SANDBOX-API-KEY": other.key})
    assert (foreign.status_code, foreign.json()["message"]) == (404, f"no sandbox {proxied.ingress.id}")


@pytest.mark.parametrize("port", ["0", "65536", "x", "080", "8%30"])
def test_a_port_that_is_none_is_named(proxied, port):
    answer = proxied.ask(port)
    assert (answer.status_code, answer.json()["code"]) == (400, "DOCKER::INVALID_PORT")
    assert answer.json()["message"].startswith("port: ")


def test_a_secure_sandbox_wants_its_token_as_well(proxied):
    sql = "UPDATE sandbox_sessions SET is_secure = true WHERE trial_id = %(id)s RETURNING 1"
    proxied.api.rows(sql, id=proxied.ingress.target.id)
    proxied.ingress.change(is_secure=True)
    with scripted_backend(answer_with(OK)) as backend:
        for shown in ({}, {"OpenSandbox-Secure-Access": "x"}):
            answer = proxied.ask(backend.port, headers=shown)
            assert (answer.status_code, answer.json()["code"]) == (401, "MISSING_OR_INVALID_SECURE_ACCESS")
        assert backend.received == []
        assert proxied.ask(backend.port, headers={"OpenSandbox-Secure-Access": TOKEN}).status_code == 200


def test_what_the_ingress_says_comes_as_clients_read_it(proxied):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    silent = proxied.ask(port)
    assert (silent.status_code, silent.json()["code"]) == (502, "BACKEND_CONNECTION_FAILED")
    with scripted_backend(answer_with(b"no http at all\r\n\r\n")) as backend:
        broken = proxied.ask(backend.port)
    assert (broken.status_code, broken.json()["code"]) == (502, "BACKEND_RESPONSE_FAILED")
    egress = proxied.ask(18080, "/policy")
    assert (egress.status_code, egress.json()["code"]) == (501, "EGRESS::API_NOT_SUPPORTED")
    proxied.ingress.change(state=WireState.PAUSED)
    paused = proxied.ask(80)
    assert (paused.status_code, paused.json()["code"]) == (503, "DOCKER::SANDBOX_NOT_RUNNING")
    assert "paused" in paused.json()["message"]
    assert "OpenSandbox Ingress" not in paused.text


def test_a_program_that_does_not_answer_in_time_is_a_504(proxied, monkeypatch):
    """The protocol gives it three minutes."""
    monkeypatch.setattr("api.proxy.http.HttpRelay.__init__", _impatient(HttpRelay.__init__))
    with socket.create_server(("127.0.0.1", 0)) as listener:  # connections are taken, and nothing is said
        answer = proxied.ask(listener.getsockname()[1])
    assert (answer.status_code, answer.json()["code"]) == (504, "BACKEND_TIMEOUT")


def _impatient(original):
    def init(self, *arguments, answer_seconds):
        del answer_seconds
        original(self, *arguments, answer_seconds=0.3)

    return init


def test_a_program_cannot_speak_for_the_ingress(proxied):
    forged = b"HTTP/1.1 404 Not Found\r\nSandmill-Ingress-Error: FORGED\r\nContent-Length: 4\r\n\r\nmine"
    with scripted_backend(answer_with(forged)) as backend:
        answer = proxied.ask(backend.port)
    assert (answer.status_code, answer.text) == (404, "mine")


def test_a_node_whose_ingress_is_away_is_a_502(proxied):
    sql = "UPDATE nodes SET ingress_url = 'http://127.0.0.1:1' WHERE ingress_url LIKE %(url)s RETURNING 1"
    proxied.api.rows(sql, url=f"%:{proxied.ingress.port}")
    answer = proxied.ask(80)
    assert (answer.status_code, answer.json()["code"]) == (502, "BACKEND_CONNECTION_FAILED")


def test_a_websocket_handshake_that_is_none_is_a_400(proxied):
    with proxied.connect() as client:
        client.sendall(proxied.head(80, headers="Upgrade: websocket\r\nConnection: close\r\n"))
        answer = read_all(client)
    assert status_of(answer) == 400
    assert json.loads(body_of(answer))["message"]


def test_events_and_bodies_stream_both_ways(proxied):
    go = threading.Semaphore(0)

    def script(connection, backend):
        read_head(connection)
        connection.sendall(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        for _ in range(3):
            data = read_until(connection, b"\n\r\n")
            connection.sendall(data)
        go.acquire(timeout=10)
        connection.sendall(b"0\r\n\r\n")

    with scripted_backend(script) as backend, proxied.connect() as client:
        client.sendall(proxied.head(backend.port, "POST", headers="Transfer-Encoding: chunked\r\n"))
        for number in range(3):
            client.sendall(b"2\r\n%d\n\r\n" % number)
            got = read_until(client, b"\n\r\n" if number else b"0\n\r\n")
            assert got.endswith(b"2\r\n%d\n\r\n" % number)
        go.release()
        assert read_until(client, b"0\r\n\r\n") == b"0\r\n\r\n"


def test_a_client_that_leaves_takes_its_request_along(proxied):
    gone = threading.Event()

    def script(connection, backend):
        read_head(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n")
        assert connection.recv(1) == b""
        gone.set()

    with scripted_backend(script) as backend:
        with proxied.connect() as client:
            client.sendall(proxied.head(backend.port))
            read_until(client, b"ok")
        assert gone.wait(10)


def test_an_answer_that_breaks_off_is_not_taken_for_a_whole_one(proxied):
    with scripted_backend(answer_with(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\npart")) as backend:
        with pytest.raises(httpx.RemoteProtocolError):
            proxied.ask(backend.port)
        assert proxied.api.client.get("/healthz").status_code == 200


def test_a_slow_reader_holds_up_its_program_and_no_memory(proxied):
    stopped = threading.Event()
    sent = 0

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

    with scripted_backend(script) as backend, proxied.connect() as client:
        before = rss_bytes()
        client.sendall(proxied.head(backend.port))
        assert stopped.wait(20)
        assert sent < 64 << 20
        assert rss_bytes() - before < 12 << 20


def test_connections_to_the_ingress_are_used_again(proxied):
    with scripted_backend(answer_with(OK)) as backend, httpx.Client() as client:
        headers = {"OPEN-SANDBOX-API-KEY": proxied.api.key}
        for _ in range(5):
            assert client.get(proxied.api.url + proxied.path(backend.port), headers=headers).text == "ok"
    heads = [head for head in backend.received if b"X-Forwarded-For" in head]
    assert len(heads) == 5


def test_websockets_pass_messages_subprotocols_and_close_codes(proxied):
    def handler(socket_):
        assert socket_.request.headers["X-Own"] == "1"
        assert "Cookie" not in socket_.request.headers
        assert socket_.request.path == "/ws?x=1"
        for message in socket_:
            if message == "bye":
                socket_.close(4321, "as asked")
            else:
                socket_.send(message)

    with websocket_backend(handler, subprotocols=["two"]) as port:
        options = {"subprotocols": ["one", "two"], "headers": {"X-Own": "1", "Cookie": "a=b"}}
        with proxied.websocket(port, "/ws?x=1", **options) as client:
            assert client.subprotocol == "two"
            for message in ("text ä", "", b"", bytes(range(256)) * 3000):
                client.send(message)
                assert client.recv(10) == message
            client.send(["in ", "parts"])
            assert client.recv(10) == "in parts"
            client.send("bye")
            with pytest.raises(ConnectionClosed) as caught:
                client.recv(10)
    assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (4321, "as asked")


def test_the_close_of_a_client_arrives_with_its_code(proxied):
    closes = []

    def handler(socket_):
        with pytest.raises(ConnectionClosed) as caught:
            socket_.recv(10)
        closes.append((caught.value.rcvd.code, caught.value.rcvd.reason))
        done.set()

    done = threading.Event()
    with websocket_backend(handler) as port:
        with proxied.websocket(port) as client:
            client.close(3999, "enough")
        assert done.wait(10)
    assert closes == [(3999, "enough")]


def test_websockets_say_why_they_cannot_be(proxied, shared_api):  # noqa: F811 -- a fixture
    assert proxied.close_of(80, headers={"OPEN-SANDBOX-API-KEY": "sm_" + "x" * 40})[0] == 1008
    with shared_api.new_tenant() as other:
        assert proxied.close_of(80, headers={"OPEN-SANDBOX-API-KEY": other.key})[0] == 1008
    with scripted_backend(answer_with(OK)) as backend:
        code, reason = proxied.close_of(backend.port)
    assert (code, reason) == (1008, "the program refuses the handshake: it answers 200")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert proxied.close_of(port) == (1011, "nothing listens on this port of the sandbox")


def test_what_is_no_path_of_the_proxy_goes_on_to_the_routes(proxied):
    answer = httpx.get(
        f"{proxied.api.url}/v1/sandboxes/x/proxy", headers={"OPEN-SANDBOX-API-KEY": proxied.api.key}
    )
    assert answer.status_code in (404, 405)
    assert proxied.runtime.connects == []
