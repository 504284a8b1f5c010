"""Connections to ports of the sandboxes of this node, by its runtimes."""

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeVar
from uuid import UUID

from core.errors import NotSupportedError, RunFailure, RuntimeUnavailableError, SandmillError
from ingress.errors import IngressError
from ingress.limits import Limits
from runtimes.base import EXECD_PORT, Runtime, SandboxHandle
from services.sandbox_directory import SandboxTarget
from traffic.backends import Backend, BackendPool
from traffic.streams import Stream, open_stream

__all__ = ["Sandboxes"]

_Result = TypeVar("_Result")

_THREADS: Final = 128
_MAX_KNOWN: Final = 4096


@dataclass(frozen=True, slots=True)
class _Known:
    """A sandbox as its runtime has it. token: what its execd wants."""

    handle: SandboxHandle
    token: str | None


class Sandboxes:
    """Connects in threads, since runtimes block. For one event loop."""

    def __init__(
        self, node_id: Callable[[], UUID | None], runtimes: Mapping[str, Runtime], limits: Limits
    ) -> None:
        """node_id: gives who this node is; None as long as its worker has not said so."""
        self._node_id = node_id
        self._runtimes = runtimes
        self._limits = limits
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="ingress-connect")
        # Apart, so that no crowd of ports keeps connections to execd from being kept.
        self._execd_pool = BackendPool(idle_seconds=limits.backend_idle_seconds)
        self._program_pool = BackendPool(idle_seconds=limits.backend_idle_seconds)
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._gates: dict[UUID, _Gate] = {}

    @property
    def node_id(self) -> UUID | None:
        """Who this node is; None as long as its worker has not said so."""
        return self._node_id()

    def check(self, target: SandboxTarget) -> None:
        """Raise IngressError for a sandbox that is not of this node, or not placed on any yet."""
        if target.node_id is None or target.runtime is None or target.sandbox_name is None:
            raise IngressError(503, "the sandbox is not placed yet: try again soon", retry_after_seconds=1)
        if target.node_id != self._node_id():
            raise IngressError(404, "the sandbox is on another node: ask for its endpoint again")
        if target.runtime not in self._runtimes:
            raise IngressError(502, f"this node offers no runtime {target.runtime}")

    async def connect(self, target: SandboxTarget, port: int, *, is_new: bool) -> Backend:
        """Give a connection; is_new: one that nobody has used. Raises IngressError: 502, 503, 504."""
        known = self._known.get(target.sandbox_name or "")
        if known is not None:
            try:
                return await self._get(target, known, port, is_new=is_new)
            except IngressError:
                # It may have been started anew, by the same name.
                self.forget(target)
                if (await self._find(target)).handle == known.handle:
                    raise
        return await self._get(target, await self._find(target), port, is_new=is_new)

    async def execd_token(self, target: SandboxTarget) -> str | None:
        """Give what execd wants to see. Raises as `connect`."""
        return (await self._find(target)).token

    def give_back(self, backend: Backend) -> None:
        """Keep a connection whose last exchange is complete."""
        self._pool_of(backend.key).give_back(backend)

    def forget(self, target: SandboxTarget) -> None:
        """Look the sandbox up anew the next time."""
        self._known.pop(target.sandbox_name or "", None)

    def close(self) -> None:
        """Let go of all."""
        for pool in (self._execd_pool, self._program_pool):
            pool.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _get(self, target: SandboxTarget, known: _Known, port: int, *, is_new: bool) -> Backend:
        key = (known.handle.name, known.handle.ref, port)
        return await self._pool_of(key).get(key, lambda: self._open(target, known, port), is_new=is_new)

    def _pool_of(self, key: Hashable) -> BackendPool:
        is_execd = isinstance(key, tuple) and key[-1] == EXECD_PORT
        return self._execd_pool if is_execd else self._program_pool

    async def _find(self, target: SandboxTarget) -> _Known:
        name = target.sandbox_name or ""
        known = self._known.get(name)
        if known is None:
            known = await self._in_thread(target, lambda runtime: _look_up(runtime, name))
            if known is None:
                raise IngressError(502, "the sandbox is gone")
            self._known[name] = known
            if len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)
        return known

    async def _open(self, target: SandboxTarget, known: _Known, port: int) -> Stream:
        def connect(runtime: Runtime) -> socket.socket:
            return runtime.connect(known.handle, port, timeout_seconds=self._limits.connect_seconds)

        return await open_stream(await self._in_thread(target, connect, on_unwanted=socket.socket.close))

    async def _in_thread(
        self,
        target: SandboxTarget,
        call: Callable[[Runtime], _Result],
        *,
        on_unwanted: Callable[[_Result], None] | None = None,
    ) -> _Result:
        """Call a runtime; on_unwanted: what to do with a result nobody waits for any more. Raises IngressError."""
        # A port that takes no connections holds a thread until the timeout: few of them at a time for each sandbox.
        gate = self._gates.setdefault(target.id, _Gate(self._limits.connects_per_sandbox))
        await gate.enter()
        runtime = self._runtimes[target.runtime or ""]
        working = asyncio.get_running_loop().run_in_executor(self._threads, call, runtime)
        working.add_done_callback(lambda _: self._leave(target.id, gate))
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            working.add_done_callback(lambda done: _drop_result(done, on_unwanted))
            raise
        except (RunFailure, NotSupportedError, RuntimeUnavailableError) as error:
            raise _translate(error) from error

    def _leave(self, sandbox_id: UUID, gate: "_Gate") -> None:
        gate.leave()
        if not gate.users:
            self._gates.pop(sandbox_id, None)


class _Gate:
    """Lets so many in at a time. users: those inside, and those who wait."""

    def __init__(self, room: int) -> None:
        self.users = 0
        self._room = asyncio.Semaphore(room)

    async def enter(self) -> None:
        self.users += 1
        try:
            await self._room.acquire()
        except BaseException:
            self.users -= 1
            raise

    def leave(self) -> None:
        self.users -= 1
        self._room.release()


def _look_up(runtime: Runtime, name: str) -> _Known | None:
    handle = runtime.find(name)
    return None if handle is None else _Known(handle, runtime.access_token(handle))


def _translate(error: SandmillError) -> IngressError:
    if isinstance(error.__cause__, TimeoutError):
        return IngressError(504, "the port takes no connection")
    if isinstance(error, NotSupportedError):
        return IngressError(502, error.message)
    # Its words may name folders and processes of the host.
    return IngressError(502, "nothing listens on this port of the sandbox")


def _drop_result(done: "asyncio.Future[_Result]", on_unwanted: Callable[[_Result], None] | None) -> None:
    if not done.cancelled() and done.exception() is None and on_unwanted is not None:
        on_unwanted(done.result())
