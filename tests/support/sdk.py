"""The services of the published OpenSandbox client, led straight to an execd: no server in between."""

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from opensandbox.adapters.factory import AdapterFactory
from opensandbox.config import ConnectionConfig
from opensandbox.config.connection_sync import ConnectionConfigSync
from opensandbox.models.execd import ExecutionHandlers
from opensandbox.models.execd_sync import ExecutionHandlersSync
from opensandbox.models.sandboxes import SandboxEndpoint
from opensandbox.sync.adapters.factory import AdapterFactorySync
from opensandbox.sync.services import CommandsSync, FilesystemSync, HealthSync, MetricsSync

__all__ = ["FLAVOURS", "Services", "connected", "event_loop"]

CALL_SECONDS = 60
"""Longer than any call of a test; a coroutine that hangs ends the test and not the run."""


@dataclass(frozen=True)
class Services:
    """One client's services. The asynchronous ones are called like the others, and do not differ to a test."""

    commands: CommandsSync
    files: FilesystemSync
    health: HealthSync
    metrics: MetricsSync


@contextmanager
def _synchronous(endpoint: SandboxEndpoint, **config: Any) -> Iterator[Services]:
    made = ConnectionConfigSync(protocol="http", disable_metrics=True, **config).with_transport_if_missing()
    try:
        yield _services(AdapterFactorySync(made), endpoint, lambda service: service)
    finally:
        made.close_transport_if_owned()


@contextmanager
def _asynchronous(endpoint: SandboxEndpoint, **config: Any) -> Iterator[Services]:
    with event_loop() as run:
        made = ConnectionConfig(protocol="http", disable_metrics=True, **config).with_transport_if_missing()
        try:
            yield _services(AdapterFactory(made), endpoint, lambda service: _Blocking(service, run))
        finally:
            run(made.close_transport_if_owned())


FLAVOURS = {"sync": _synchronous, "async": _asynchronous}


@contextmanager
def connected(flavour: str, endpoint: SandboxEndpoint, **config: Any) -> Iterator[Services]:
    """Connect a client of a flavour (see FLAVOURS). config: more of its connection's configuration."""
    with FLAVOURS[flavour](endpoint, **config) as services:
        yield services


Run = Callable[[Coroutine[Any, Any, Any]], Any]


def _services(factory: Any, endpoint: SandboxEndpoint, wrap: Callable[[Any], Any]) -> Services:
    return Services(
        commands=wrap(factory.create_command_service(endpoint)),
        files=wrap(factory.create_filesystem_service(endpoint)),
        health=wrap(factory.create_health_service(endpoint)),
        metrics=wrap(factory.create_metrics_service(endpoint)),
    )


@contextmanager
def event_loop() -> Iterator[Run]:
    """An event loop in a thread of its own, so that several threads of a test may have calls under way."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield lambda coroutine: asyncio.run_coroutine_threadsafe(coroutine, loop).result(CALL_SECONDS)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


class _Blocking:
    """An asynchronous service with the calls of the synchronous one."""

    def __init__(self, service: Any, run: Run) -> None:
        self._service = service
        self._run = run

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._service, name)

        def call(*positional: Any, **named: Any) -> Any:
            if named.get("handlers") is not None:
                named["handlers"] = _asynchronous_handlers(named["handlers"])
            result = method(*positional, **named)
            if inspect.isawaitable(result):
                result = self._run(_awaited(result))
            if hasattr(result, "__aiter__"):
                return self._pieces(result)
            return _Blocking(result, self._run) if isinstance(result, type(self._service)) else result

        return call

    def _pieces(self, stream: AsyncIterator[bytes]) -> Iterator[bytes]:
        async def following() -> bytes | None:
            return await anext(stream, None)

        while (piece := self._run(following())) is not None:
            yield piece


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result


def _asynchronous_handlers(handlers: ExecutionHandlersSync) -> ExecutionHandlers:
    made = ExecutionHandlers(skip_accumulation=handlers.skip_accumulation)
    for name in ExecutionHandlers.model_fields:
        handler = getattr(handlers, name)
        if callable(handler):
            setattr(made, name, _asynchronous_handler(handler))
    return made


def _asynchronous_handler(handler: Callable[[Any], None]) -> Callable[[Any], Awaitable[None]]:
    async def handle(event: Any) -> None:
        handler(event)

    return handle
