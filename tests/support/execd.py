"""A real execd as a child process, and a small reader of its event stream."""

import json
import os
import signal
import socket
import subprocess
import time
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from execd.bundle import bundle_command

Part = tuple[str, tuple[str, bytes, str]]
"""Of a form, as httpx takes it: name, and file name, content and type."""


@dataclass
class Outcome:
    """Everything one command stream said."""

    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def id(self) -> str:
        return self.events[0]["text"]

    @property
    def last(self) -> dict[str, Any]:
        return self.events[-1]

    def output(self, stream: str = "stdout") -> bytes:
        """The exact bytes of a stream."""
        parts = [event for event in self.events if event["type"] == stream]
        return b"".join([b64decode(e["b64"]) if "b64" in e else e["text"].encode() for e in parts])


@dataclass
class RunningExecd:
    """One daemon. port: where it listens on 127.0.0.1."""

    process: subprocess.Popen[bytes]
    port: int
    client: httpx.Client
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def run(self, command: str | None = None, **fields: Any) -> Outcome:
        """Run a command to its end."""
        body = {"command": command, **fields} if command is not None else fields
        with self.client.stream("POST", "/command", json=body) as response:
            assert response.status_code == 200, response.read()
            return Outcome(list(read_events(response)))

    @contextmanager
    def streaming(self, command: str, **fields: Any) -> Iterator[Iterator[dict[str, Any]]]:
        """Run a command and look at its events while it runs; leaving the block closes the connection."""
        body = {"command": command, **fields}
        with (
            httpx.Client(base_url=self.url, timeout=20) as client,
            client.stream("POST", "/command", json=body) as response,
        ):
            assert response.status_code == 200, response.read()
            yield read_events(response)

    def upload(self, *files: list[Part], prefix: str = "") -> httpx.Response:
        """Write files in one request; see `file_parts`. prefix: before the route, for another user's rights."""
        parts = [part for parts in files for part in parts]
        return self.client.post(f"{prefix}/files/upload", files=parts)

    def raw(self, data: bytes) -> bytes:
        """Send bytes on a new connection and give all that comes back until it is closed or silent."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
            connection.sendall(data)
            received = b""
            try:
                while chunk := connection.recv(65536):
                    received += chunk
            except TimeoutError:
                pass
            return received

    def rss_kib(self) -> int:
        return int(status_field(self.pid, "VmRSS").split()[0])

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))


@contextmanager
def running_execd(
    bundle: Path,
    work: Path,
    *,
    flags: Sequence[str] = (),
    env: dict[str, str] | None = None,
    prefix: Sequence[str] = (),
    pass_fds: Sequence[int] = (),
) -> Iterator[RunningExecd]:
    """Start the bundle on an inherited listening socket; stop it and check that it stops."""
    log = work / "execd.log"
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        port = listener.getsockname()[1]
        argv = bundle_command(
            str(bundle), args=["--listen-fd", str(listener.fileno()), "--log-level", "info", *flags]
        )
        with log.open("wb") as log_file:
            process = subprocess.Popen(
                [*prefix, *argv],
                pass_fds=[listener.fileno(), *pass_fds],
                env={"PATH": os.environ["PATH"], "HOME": str(work)} if env is None else env,
                cwd=work,
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=log_file,
            )
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20)
    try:
        yield RunningExecd(process, port, client, log)
    finally:
        client.close()
        process.terminate()
        try:
            process.wait(10)
        finally:
            process.kill()
            process.wait()


def file_parts(path: object, data: bytes, **metadata: Any) -> list[Part]:
    """The two parts of one file of an upload."""
    document = json.dumps({"path": str(path), **metadata}).encode()
    return [
        ("metadata", ("metadata", document, "application/json")),
        ("file", ("ignored", data, "application/octet-stream")),
    ]


def read_events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """Parse frames strictly: one bare JSON line and one empty line each."""
    lines = response.iter_lines()
    for line in lines:
        yield json.loads(line)
        assert next(lines) == ""


def until(events: Iterator[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """Read events up to the first output that contains text."""
    seen = []
    for event in events:
        seen.append(event)
        if event["type"] in ("stdout", "stderr") and text in event["text"]:
            return seen
    raise AssertionError(f"{text!r} never came: {seen}")


def wait_for(condition: Callable[[], Any], *, seconds: float = 5.0) -> Any:
    """Poll until the condition holds and give its value."""
    deadline = time.monotonic() + seconds
    pause = 0.002
    while not (value := condition()):
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(pause)
        pause = min(pause * 2, 0.05)
    return value


def status_field(pid: int, name: str) -> str:
    """A line of /proc/PID/status."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return line.split(":", 1)[1].strip()
    raise KeyError(name)


def is_alive(pid: int) -> bool:
    """Whether the process exists and still runs, be it in threads other than its first."""
    try:
        return status_field(pid, "State")[0] not in "ZX" or int(status_field(pid, "Threads")) > 1
    except (FileNotFoundError, ProcessLookupError):
        return False


def end_process(pid: int) -> None:
    """Kill one process that a test left alive on purpose."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def names_in(folder: Path) -> list[str]:
    """Names of a directory's entries."""
    return [path.name for path in folder.iterdir()]
