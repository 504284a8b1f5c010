"""Terminals and the relay in real sandboxes: what they need of a runtime is a loopback and pseudo-terminals."""

import contextlib
import json

from websockets.sync.client import connect

from tests.support.entry_points import call
from tests.support.execd import wait_for
from tests.support.terminal import TerminalClient

PORT = 8321
SERVER = f"""
import socket
listener = socket.create_server(("127.0.0.1", {PORT}))
while True:
    client = listener.accept()[0]
    path = client.makefile("rb").readline().split()[1]
    client.sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\n" + path)
    client.shutdown(socket.SHUT_WR)
    while client.recv(4096): pass
    client.close()
"""


def test_programs_of_a_sandbox_are_reached_by_the_relay(shared_box):
    box = shared_box
    argv = [*box.python_argv, "-c", SERVER]
    status, events = call(box, "POST", "/command", {"argv": argv, "background": True})
    assert status == 200, events
    status, body = wait_for(lambda: answer(box), seconds=20)
    assert (status, body) == (200, b"/a%20b?c=d")
    assert call(box, "GET", "/proxy/9/")[0] == 502


def answer(box):
    status, body = call(box, "GET", f"/proxy/{PORT}/a%20b?c=d")
    return (status, body) if status != 502 else None


def test_a_terminal_outlives_its_client_and_not_its_deletion(shared_box):
    box = shared_box
    status, made = call(box, "POST", "/pty")
    assert status == 201, made
    name = json.loads(made)["session_id"]
    with terminal(box, name) as client:
        client.type("sleep 1000 & echo JOB=$!.\n")
        client.until(".\r\n")
    with terminal(box, name, "?takeover=1") as client:
        client.frame("connected")
        assert client.replays
        client.type("jobs | grep -c Running; tty\n")
        client.until("/dev/pts/")
    assert call(box, "DELETE", f"/pty/{name}")[0] == 200
    assert box.sh("grep -l '^sleep' /proc/[0-9]*/comm | wc -l").out == "0\n"


@contextlib.contextmanager
def terminal(box, name, query=""):
    with connect(
        f"ws://execd/pty/{name}/ws{query}",
        sock=box.client._connect(),
        additional_headers=dict(box.client._headers),
        compression=None,
        proxy=None,
    ) as socket:
        yield TerminalClient(socket)
