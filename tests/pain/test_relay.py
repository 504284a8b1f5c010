"""What users of similar services found wrong with relays and terminals, against execd.

Their headers, compressed answers and events are tried in `integration/execd/test_proxy.py` (B-085, B-089, B-091).
HTTP/2 (B-086) is not offered by execd, and what asks for it is answered in HTTP/1.1.
"""

import contextlib
import random
import socket
import time
from http.server import BaseHTTPRequestHandler

import pytest
from websockets.exceptions import ConnectionClosed

from tests.support.backends import answer_with, http_backend, scripted_backend
from tests.support.execd import RunningExecd, is_alive, wait_for
from tests.support.terminal import attached, new_terminal


class App(BaseHTTPRequestHandler):
    """Opens /ws from a page that may be mounted anywhere, and sets a cookie for all of its host."""

    def do_GET(self) -> None:
        root = self.headers.get("X-Forwarded-Prefix", "")
        self.send_response(302)
        self.send_header("Location", f"{root}/ws")
        self.send_header("Set-Cookie", f"a=b; Path={root}/")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Say nothing."""


def test_an_app_learns_where_it_is_mounted(shared_execd: RunningExecd) -> None:
    """B-088."""
    with http_backend(App) as port:
        response = shared_execd.client.get(f"/proxy/{port}/")
    assert response.headers["location"] == f"/proxy/{port}/ws"
    assert response.headers["set-cookie"] == f"a=b; Path=/proxy/{port}/"


def test_http_2_is_not_offered(shared_execd: RunningExecd) -> None:
    """B-086."""
    with scripted_backend(answer_with(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")) as backend:
        headers = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABk"}
        response = shared_execd.client.get(f"/proxy/{backend.port}/", headers=headers)
    assert (response.http_version, response.text) == ("HTTP/1.1", "ok")
    assert shared_execd.raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("spelling", ["{port}", "0{port}", "{port}?x", "{port}//"])
def test_the_daemons_own_port_is_not_behind_the_relay(shared_execd: RunningExecd, spelling: str) -> None:
    """B-103."""
    place = spelling.format(port=shared_execd.port)
    response = shared_execd.client.get(f"/proxy/{place}/ping")
    assert response.status_code == 400


def test_starts_that_are_broken_off_at_bad_moments_leave_nothing(execd: RunningExecd) -> None:
    """B-046, for terminals: between the handshake, the start and the first output."""
    rng = random.Random(46)
    sessions = [new_terminal(execd, command="echo PID=$$.; exec sleep 1000") for _ in range(40)]
    execd.client.get("/ping")
    before = execd.descriptors()
    for session in sessions:
        with contextlib.suppress(ConnectionError, ConnectionClosed), socket.socket() as client:
            client.connect(("127.0.0.1", execd.port))
            client.sendall(
                f"GET /pty/{session}/ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n".encode()
            )
            time.sleep(rng.uniform(0, 0.005))  # what is tried is any moment
    started = time.monotonic()
    assert execd.run("echo ok").output() == b"ok\n"
    assert time.monotonic() - started < 5
    pids = []
    for session in sessions:
        with attached(execd, session, "?takeover=1") as client:
            while not b"".join([*(data for _, data in client.replays), client.stdout]).endswith(b".\r\n"):
                client.step()
            printed = b"".join([*(data for _, data in client.replays), client.stdout])
        pids.append(int(printed.split(b"=")[1].split(b".")[0]))
        assert execd.client.delete(f"/pty/{session}").status_code == 200
    assert not any(is_alive(pid) for pid in pids)
    wait_for(lambda: execd.descriptors() <= before, seconds=10)
