"""The published client against a whole installation, in both flavours, written once."""

import contextlib
import inspect
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opensandbox import Sandbox, SandboxManager
from opensandbox.config import ConnectionConfig
from opensandbox.config.connection_sync import ConnectionConfigSync
from opensandbox.sync import SandboxManagerSync, SandboxSync
from pydantic import BaseModel

from tests.support.running_stack import RunningStack, running_stack
from tests.support.sdk import event_loop

__all__ = ["IMAGES", "LIVE_FLAVOURS", "LiveClient", "LiveServer", "live_client", "live_server"]

IMAGES = {"local": "host", "docker": "sandmill-test:debian"}
"""What sandboxes of each runtime are made from."""

ENTRYPOINT = ["tail", "-f", "/dev/null"]


@dataclass(frozen=True)
class LiveServer:
    """An installation with one runtime, and a key for it."""

    runtime: str
    stack: RunningStack
    environment: Mapping[str, str]

    @property
    def image(self) -> str:
        return IMAGES[self.runtime]

    @property
    def domain(self) -> str:
        return self.stack.api_url.removeprefix("http://")

    @property
    def key(self) -> str:
        return self.stack.api_key

    @property
    def redis_url(self) -> str:
        """Of the installation's own Redis, as its worker was given it."""
        pid = self.stack.pids("workers")[0]
        variables = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
        return next(text.partition("=")[2] for text in variables if text.startswith("REDIS_URL="))

    @property
    def variables(self) -> dict[str, str]:
        """By which official programs find it."""
        return {"OPEN_SANDBOX_DOMAIN": self.domain, "OPEN_SANDBOX_API_KEY": self.key}


@contextlib.contextmanager
def live_server(runtime: str, folder: Path, **environment: str) -> Iterator[LiveServer]:
    """Run an installation until the block ends."""
    settings = {
        "SANDMILL_RUNTIME": runtime,
        "SANDMILL_RUNTIMES": f'["{runtime}"]',
        "SANDMILL_INGRESS_PORT": str(_free_port()),
        "SANDMILL_WORKER_CPU_MILLICORES": "64000",
        **environment,
    }
    with running_stack(folder, settings) as stack:
        yield LiveServer(runtime, stack, settings)


class LiveClient:
    """Sandbox and SandboxManager of one flavour. The asynchronous ones are called like the others."""

    def __init__(self, server: LiveServer, connect: "Callable[..., Any]", sandbox: Any, manager: Any) -> None:
        self.server = server
        self.connect_config = connect
        self.sandbox = sandbox
        self._manager = manager

    def config(self, **changes: Any) -> Any:
        values = {"domain": self.server.domain, "api_key": self.server.key, "disable_metrics": True}
        return self.connect_config(**{**values, **changes})

    @contextlib.contextmanager
    def opened(self, *, config: Any = None, **options: Any) -> Iterator[Any]:
        """A sandbox that is killed when the block ends, if it is still there."""
        values = {"image": self.server.image, "entrypoint": ENTRYPOINT, **options}
        if values.get("snapshot_id"):
            del values["image"]
        made = self.sandbox.create(connection_config=config or self.config(), **values)
        try:
            yield made
        finally:
            with contextlib.suppress(Exception):
                made.kill()
            made.close()

    @contextlib.contextmanager
    def managed(self) -> Iterator[Any]:
        manager = self._manager.create(connection_config=self.config())
        try:
            yield manager
        finally:
            manager.close()


@contextlib.contextmanager
def _synchronous(server: LiveServer) -> Iterator[LiveClient]:
    yield LiveClient(server, ConnectionConfigSync, SandboxSync, SandboxManagerSync)


@contextlib.contextmanager
def _asynchronous(server: LiveServer) -> Iterator[LiveClient]:
    with event_loop() as run:
        yield LiveClient(server, ConnectionConfig, _Blocking(Sandbox, run), _Blocking(SandboxManager, run))


LIVE_FLAVOURS = {"sync": _synchronous, "async": _asynchronous}


@contextlib.contextmanager
def live_client(flavour: str, server: LiveServer) -> Iterator[LiveClient]:
    """A client of a flavour (see LIVE_FLAVOURS)."""
    with LIVE_FLAVOURS[flavour](server) as client:
        yield client


class _Blocking:
    """An asynchronous class or object with the calls of the synchronous one, all the way down."""

    def __init__(self, inner: Any, run: Callable[[Any], Any]) -> None:
        self._inner = inner
        self._run = run

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if not callable(value):
            return self._wrapped(value)

        def call(*positional: Any, **named: Any) -> Any:
            plain = [item._inner if isinstance(item, _Blocking) else item for item in positional]
            result = value(*plain, **named)
            if inspect.isawaitable(result):
                result = self._run(_awaited(result))
            return self._wrapped(result)

        return call

    def _wrapped(self, value: Any) -> Any:
        kind = type(value)
        if not kind.__module__.startswith("opensandbox.") or issubclass(kind, BaseModel):
            return value
        has_calls = any(inspect.iscoroutinefunction(getattr(kind, name, None)) for name in dir(kind))
        return _Blocking(value, self._run) if has_calls else value


async def _awaited(result: Any) -> Any:
    return await result


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
