"""Every way by which execd starts a program in a sandbox: each takes a line for a shell and gives what it printed."""

import http.client
import json
from collections.abc import Callable, Mapping
from typing import Any

from websockets.sync.client import connect

from runtimes.base import Command
from tests.support.execd import wait_for
from tests.support.sandboxes import Box
from tests.support.terminal import TerminalClient

__all__ = ["ENTRY_POINTS", "call"]

_SECONDS = 30.0


def call(box: Box, verb: str, target: str, body: Mapping[str, Any] | None = None) -> tuple[int, bytes]:
    """Send execd a request as the control plane does: (status, body)."""
    connection = http.client.HTTPConnection("execd", timeout=_SECONDS)
    connection.sock = box.client._connect()
    try:
        content = None if body is None else json.dumps(body)
        connection.request(verb, target, content, {"Content-Type": "application/json", **_token(box)})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def _token(box: Box) -> dict[str, str]:
    return dict(box.client._headers)


def _shell(box: Box, line: str) -> str:
    return box.sh(line).out


def _argv(box: Box, line: str) -> str:
    return box.run(Command(argv=["sh", "-c", line])).out


def _child(box: Box, line: str) -> str:
    return box.sh(f"(({line}) & wait)").out


def _merged(box: Box, line: str) -> str:
    return box.run(Command(shell=line, merge_streams=True)).out


def _background(box: Box, line: str) -> str:
    status, events = call(box, "POST", "/command", {"command": line, "background": True})
    assert status == 200, events
    (first, *_) = [json.loads(event) for event in events.splitlines() if event]
    name = first["text"]

    def is_over() -> bool:
        return not json.loads(call(box, "GET", f"/command/status/{name}")[1])["running"]

    wait_for(is_over, seconds=_SECONDS)
    return call(box, "GET", f"/command/{name}/logs")[1].decode()


def _terminal(box: Box, line: str, query: str = "") -> str:
    status, made = call(box, "POST", "/pty", {"command": line})
    assert status == 201, made
    name = json.loads(made)["session_id"]
    try:
        with connect(
            f"ws://execd/pty/{name}/ws{query}",
            sock=box.client._connect(),
            additional_headers=_token(box),
            compression=None,
            proxy=None,
        ) as socket:
            client = TerminalClient(socket)
            client.end()
            return client.stdout.decode()
    finally:
        call(box, "DELETE", f"/pty/{name}")


def _pipes(box: Box, line: str) -> str:
    return _terminal(box, line, "?pty=0")


def _session(box: Box, line: str) -> str:
    status, made = call(box, "POST", "/session")
    assert status == 200, made
    name = json.loads(made)["session_id"]
    try:
        status, stream = call(box, "POST", f"/session/{name}/run", {"command": line})
        assert status == 200, stream
        events = [json.loads(event) for event in stream.splitlines() if event]
        return "".join(event["text"] for event in events if event["type"] == "stdout")
    finally:
        call(box, "DELETE", f"/session/{name}")


ENTRY_POINTS: dict[str, Callable[[Box, str], str]] = {
    "shell": _shell,
    "argv": _argv,
    "child": _child,
    "merged": _merged,
    "background": _background,
    "session": _session,
    "terminal": _terminal,
    "pipes": _pipes,
}
