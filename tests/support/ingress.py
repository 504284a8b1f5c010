"""A running ingress whose sandboxes are programs of the test, and raw conversations with it."""

import asyncio
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from core.errors import ExecdUnreachableError, NotFoundError
from ingress.limits import Limits
from ingress.process import listen
from ingress.sandboxes import Sandboxes
from ingress.server import IngressServer
from models.live_sandboxes import WireState
from runtimes.base import EXECD_PORT, Runtime, SandboxHandle
from runtimes.fake import FakeRuntime
from services.sandbox_directory import SandboxTarget
from traffic.access import AccessNotes

NODE = UUID("00000000-0000-4000-8000-00000000000a")
TOKEN = "access-token-of-the-sandbox"
EXECD_TOKEN = "execd-token-of-the-runtime"


class PortRuntime(FakeRuntime):
    """Sandboxes whose ports are ports of this host. ports: by those inside; connects: those asked for, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.ports: dict[int, int] = {}
        self.connects: list[int] = []
        self.is_tokenless = False

    def find(self, name: str) -> SandboxHandle | None:
        return SandboxHandle("fake", name, "1")

    def access_token(self, handle: SandboxHandle) -> str | None:
        return None if self.is_tokenless else EXECD_TOKEN

    def connect(self, handle: SandboxHandle, port: int, *, timeout_seconds: float) -> socket.socket:
        self.connects.append(port)
        try:
            return socket.create_connection(("127.0.0.1", self.ports.get(port, port)), timeout_seconds)
        except OSError as error:
            raise ExecdUnreachableError(f"port {port} of process 1 does not answer: {error}") from error


class MemoryDirectory:
    """A directory of sandboxes that a test puts there. forgotten: those asked to be looked up anew."""

    def __init__(self) -> None:
        self.targets: dict[UUID, SandboxTarget] = {}
        self.forgotten: list[UUID] = []
        self.error: Exception | None = None

    async def resolve(self, sandbox_id: UUID) -> SandboxTarget:
        if self.error is not None:
            raise self.error
        try:
            return self.targets[sandbox_id]
        except KeyError:
            raise NotFoundError("sandbox", sandbox_id) from None

    def forget(self, sandbox_id: UUID) -> None:
        self.forgotten.append(sandbox_id)


@dataclass
class Ingress:
    """A running one with one sandbox. accessed: what the hook was told. get_ready: as its server's, from any thread."""

    port: int
    target: SandboxTarget
    directory: MemoryDirectory
    runtime: Runtime
    accessed: list[UUID] = field(default_factory=list)
    get_ready: Callable[[UUID, UUID], None] = lambda _sandbox, _node: None

    @property
    def id(self) -> str:
        return str(self.target.id)

    def change(self, **changes: Any) -> None:
        self.target = replace(self.target, **changes)
        self.directory.targets[self.target.id] = self.target

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), 5)

    def ask(
        self, port: int, method: str = "GET", rest: str = "/", headers: str = "", body: bytes = b""
    ) -> bytes:
        """One request by path, and everything that comes until the end."""
        return self.say(self.head(port, method, rest, "Connection: close\r\n" + headers) + body)

    def head(self, port: int, method: str = "GET", rest: str = "/", headers: str = "") -> bytes:
        """Head of a request by path."""
        return f"{method} /{self.id}/{port}{rest} HTTP/1.1\r\nHost: here\r\n{headers}\r\n".encode()

    def say(self, data: bytes) -> bytes:
        with self.connect() as connection:
            connection.sendall(data)
            return read_all(connection)


def make_target(**changes: Any) -> SandboxTarget:
    defaults: dict[str, Any] = {
        "id": uuid4(),
        "tenant_id": 1,
        "state": WireState.RUNNING,
        "access_token": TOKEN,
        "node_id": NODE,
        "runtime": "fake",
        "sandbox_name": "sm-test-1",
    }
    return SandboxTarget(**{**defaults, **changes})


@contextmanager
def running_ingress(
    *, runtime: Runtime | None = None, runtime_name: str = "fake", limits: Limits | None = None, **target: Any
) -> Iterator[Ingress]:
    """Run one in a thread."""
    made = make_target(runtime=runtime_name, **target)
    runtime = runtime or PortRuntime()
    directory = MemoryDirectory()
    directory.targets[made.id] = made
    limits = limits or Limits()
    accessed: list[UUID] = []
    servers: list[IngressServer] = []

    def build() -> IngressServer:
        sandboxes = Sandboxes(lambda: NODE, {made.runtime or "": runtime}, limits)
        server = IngressServer(directory, sandboxes, notes=AccessNotes(accessed.append), limits=limits)
        servers.append(server)
        return server

    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    with served(build, listener) as loop:

        def get_ready(sandbox_id: UUID, node_id: UUID) -> None:
            loop.call_soon_threadsafe(servers[0].get_ready, sandbox_id, node_id)

        yield Ingress(port, made, directory, runtime, accessed, get_ready)


@contextmanager
def served(
    build: Callable[[], IngressServer], listener: socket.socket
) -> Iterator[asyncio.AbstractEventLoop]:
    started = threading.Event()
    loop_of: list[asyncio.AbstractEventLoop] = []
    stop = asyncio.Event()

    async def serve() -> None:
        server = build()
        await server.start(listener)
        loop_of.append(asyncio.get_running_loop())
        started.set()
        await stop.wait()
        await server.stop(grace_seconds=0.2)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(10)
    try:
        yield loop_of[0]
    finally:
        loop_of[0].call_soon_threadsafe(stop.set)
        thread.join(20)
        assert not thread.is_alive()


def read_all(connection: socket.socket) -> bytes:
    parts = []
    while data := connection.recv(1 << 16):
        parts.append(data)
    return b"".join(parts)


def read_until(connection: socket.socket, end: bytes) -> bytes:
    data = b""
    while end not in data:
        more = connection.recv(1 << 16)
        assert more, data
        data += more
    return data


def rss_bytes() -> int:
    """Memory of this process, in which the ingress of a test runs."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def body_of(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[2]


__all__ = [
    "EXECD_PORT",
    "EXECD_TOKEN",
    "NODE",
    "TOKEN",
    "Ingress",
    "MemoryDirectory",
    "PortRuntime",
    "body_of",
    "make_target",
    "read_all",
    "read_until",
    "rss_bytes",
    "running_ingress",
    "served",
    "status_of",
]
