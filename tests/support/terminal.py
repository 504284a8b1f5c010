"""A client of execd's terminals, on a real WebSocket."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.support.execd import RunningExecd

WAIT_SECONDS = 10.0


@dataclass
class TerminalClient:
    """What one client saw: text frames in order, output by kind, replays as (offset, bytes)."""

    socket: ClientConnection
    frames: list[dict[str, Any]] = field(default_factory=list)
    replays: list[tuple[int, bytes]] = field(default_factory=list)
    stdout: bytes = b""
    stderr: bytes = b""

    def type(self, text: str) -> None:
        """Type, as bytes."""
        self.socket.send(b"\0" + text.encode())

    def say(self, **frame: Any) -> None:
        """Send a text frame."""
        self.socket.send(json.dumps(frame))

    def step(self) -> None:
        """Take one message. Raises ConnectionClosed."""
        message = self.socket.recv(timeout=WAIT_SECONDS)
        if isinstance(message, str):
            self.frames.append(json.loads(message))
        elif message[0] == 3:
            self.replays.append((int.from_bytes(message[1:9], "big", signed=True), message[9:]))
        elif message[0] == 1:
            self.stdout += message[1:]
        else:
            assert message[0] == 2
            self.stderr += message[1:]

    def until(self, text: str) -> None:
        """Take messages until the output holds a text."""
        while text.encode() not in self.stdout:
            self.step()

    def frame(self, kind: str) -> dict[str, Any]:
        """Take messages until a text frame of this type is there, and give the latest."""
        while not (found := [frame for frame in self.frames if frame["type"] == kind]):
            self.step()
        self.frames = [frame for frame in self.frames if frame["type"] != kind]
        return found[-1]

    def end(self) -> tuple[int, str]:
        """Take all messages; give the close code and reason."""
        try:
            while True:
                self.step()
        except ConnectionClosed as closed:
            frame = closed.rcvd
        if frame is None:
            raise AssertionError("the connection broke without a close frame")
        return frame.code, frame.reason


def new_terminal(execd: RunningExecd, **fields: Any) -> str:
    """Make a session and give its id."""
    response = execd.client.post("/pty", json=fields)
    assert response.status_code == 201, response.text
    return str(response.json()["session_id"])


@contextmanager
def attached(
    execd: RunningExecd, session_id: str, query: str = "", **options: Any
) -> Iterator[TerminalClient]:
    """Connect, and leave at the end of the block."""
    url = f"ws://127.0.0.1:{execd.port}/pty/{session_id}/ws{query}"
    options = {"compression": None, "proxy": None, "open_timeout": 10, "close_timeout": 2, **options}
    with connect(url, **options) as socket:
        yield TerminalClient(socket)
