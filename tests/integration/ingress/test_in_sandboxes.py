"""The ingress before real sandboxes."""

import contextlib
import json
import os
import socket

import pytest
from websockets.sync.client import connect as connect_websocket

from runtimes.base import Command
from tests.support.entry_points import call
from tests.support.execd import wait_for
from tests.support.ingress import EXECD_PORT, TOKEN, body_of, read_until, running_ingress, status_of
from tests.support.runtime_fixtures import (  # noqa: F401 -- fixtures are found by name
    real_kind,
    runtime_folder,
    shared_box,
)

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(os.geteuid() != 0, reason="other ports of a sandbox are reached by setns"),
]

ECHO = """
import socket, sys, threading
family = socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET
listener = socket.create_server((sys.argv[1], int(sys.argv[2])), family=family)
def serve(client):
    head = b''
    while not head.endswith(b'\\r\\n\\r\\n'):
        head += client.recv(1)
    client.sendall(b'HTTP/1.1 101 Switching\\r\\nConnection: Upgrade\\r\\nUpgrade: echo\\r\\n\\r\\n')
    while data := client.recv(65536):
        client.sendall(data)
    client.close()
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


@pytest.fixture
def boxed(shared_box):  # noqa: F811 -- a fixture
    box = shared_box
    name = box.handle.runtime
    with running_ingress(runtime=box.runtime, runtime_name=name, sandbox_name=box.handle.name) as ingress:
        yield box, ingress


def start(box, *argv: str) -> None:
    status, events = call(box, "POST", "/command", {"argv": [*box.python_argv, *argv], "background": True})
    assert status == 200, events


def secured(more: str = "") -> str:
    return f"OpenSandbox-Secure-Access: {TOKEN}\r\n{more}"


def test_commands_run_through_the_ingress(boxed):
    _box, ingress = boxed
    body = json.dumps({"command": "printf 'a\\nb'; exit 3"}).encode()
    headers = secured(f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n")
    with ingress.connect() as client:
        for _ in range(3):
            client.sendall(ingress.head(EXECD_PORT, "POST", "/command", headers) + body)
            answer = read_until(client, b"0\r\n\r\n")
            assert status_of(answer) == 200
            assert b'"text":"a\\n"' in answer
            assert b'"exit_code":3' in answer


def test_a_web_server_is_reached_by_its_port(boxed):
    box, ingress = boxed
    assert box.sh("mkdir -p /tmp/www && printf hello > /tmp/www/file").code == 0
    python = "python3 -m http.server 8123 --bind 127.0.0.1 --directory /tmp/www"
    shell = (
        f"exec {python}" if box.handle.runtime == "local" else "exec httpd -f -p 127.0.0.1:8123 -h /tmp/www"
    )
    status, events = call(box, "POST", "/command", {"command": shell, "background": True})
    assert status == 200, events
    answer = wait_for(lambda: served(ingress, 8123, "/file"), seconds=20)
    assert body_of(answer) == b"hello"
    assert status_of(ingress.ask(8123, rest="/none")) == 404


def test_a_program_on_the_other_loopback_is_reached_as_well(boxed):
    box, ingress = boxed
    if box.sh("grep -q ' lo$' /proc/net/if_inet6").code != 0:
        pytest.skip("no IPv6 in there")
    start(box, "-c", ECHO, "::1", "8125")
    upgrade = "Connection: Upgrade\r\nUpgrade: echo\r\n"
    wait_for(lambda: listens(box, 8125), seconds=20)
    with ingress.connect() as client:
        client.sendall(ingress.head(8125, headers=upgrade))
        assert status_of(read_until(client, b"\r\n\r\n")) == 101
        client.sendall(b"ping")
        assert read_until(client, b"ping") == b"ping"
        client.shutdown(socket.SHUT_WR)
        assert client.recv(10) == b""


def test_terminals_are_websockets_through_the_ingress(boxed):
    _box, ingress = boxed
    body = b"{}"
    answer = ingress.ask(EXECD_PORT, "POST", "/pty", secured("Content-Length: 2\r\n"), body)
    assert status_of(answer) == 201
    name = json.loads(answer[answer.index(b"{") : answer.rindex(b"}") + 1])["session_id"]
    url = f"ws://127.0.0.1:{ingress.port}/{ingress.id}/{EXECD_PORT}/pty/{name}/ws"
    with connect_websocket(
        url, additional_headers={"OpenSandbox-Secure-Access": TOKEN}, proxy=None
    ) as client:
        said = b""
        client.send(b"\0echo IN$((1+1))SIDE\n")
        while b"IN2SIDE" not in said:
            frame = client.recv(10)
            said += frame if isinstance(frame, bytes) else b""
    assert status_of(ingress.ask(EXECD_PORT, "DELETE", f"/pty/{name}", secured())) == 200


def test_a_command_ends_with_the_client_that_waits_for_it(boxed):
    box, ingress = boxed
    body = json.dumps({"command": "exec sleep 4321"}).encode()
    with ingress.connect() as client:
        client.sendall(
            ingress.head(EXECD_PORT, "POST", "/command", secured(f"Content-Length: {len(body)}\r\n")) + body
        )
        read_until(client, b"init")
        wait_for(lambda: sleepers(box) == 1, seconds=10)
    wait_for(lambda: sleepers(box) == 0, seconds=20)


def test_a_sandbox_reaches_nothing_by_itself_through_the_ingress(boxed):
    """What listens on the host's loopback is not there for it, and neither is the ingress."""
    box, ingress = boxed
    assert status_of(ingress.ask(ingress.port)) == 502
    code = f"import socket; socket.socket().connect(('127.0.0.1', {ingress.port}))"
    assert b"refused" in box.python(code).of("stderr")


def served(ingress, port, rest):
    answer = ingress.ask(port, rest=rest)
    return answer if status_of(answer) == 200 else None


def listens(box, port):
    return box.sh(f"grep -q ':{port:04X} .* 0A ' /proc/net/tcp /proc/net/tcp6").code == 0


def sleepers(box) -> int:
    with contextlib.suppress(ValueError):
        return int(
            box.run(Command(shell="grep -al '^sleep.4321' /proc/[0-9]*/cmdline 2>/dev/null | wc -l")).out
        )
    return -1
