"""Connections to programs that answer, kept for the next request where that is safe."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Final

from traffic.streams import Stream

__all__ = ["Backend", "BackendPool"]

_PER_KEY: Final = 8
_IN_ALL: Final = 512


@dataclass(eq=False, slots=True)
class Backend:
    """A connection. key: to what. is_reused: it has served a request before, so it may be closing just now."""

    key: Hashable
    stream: Stream
    is_reused: bool = False
    idle_since: float = field(default=0.0)


class BackendPool:
    """Connections that wait for their next request, by what they lead to. For one event loop."""

    def __init__(self, *, idle_seconds: float) -> None:
        """idle_seconds: less than any program behind keeps a connection that is asked nothing."""
        self._idle_seconds = idle_seconds
        self._idle: dict[Hashable, deque[Backend]] = {}
        self._count = 0
        self._sweep: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return self._count

    async def get(
        self, key: Hashable, connect: Callable[[], Awaitable[Stream]], *, is_new: bool = False
    ) -> Backend:
        """Give a connection that waits, else a new one. is_new: never one that waits. Raises what `connect` does."""
        waiting = self._idle.get(key)
        while waiting and not is_new:
            backend = waiting.pop()
            self._forget(key, waiting)
            backend.stream.on_eof = None
            # Whatever it says unasked is no answer to the next request.
            if not backend.stream.is_eof and not backend.stream.has_data:
                backend.is_reused = True
                return backend
            backend.stream.abort()
        return Backend(key, await connect())

    def give_back(self, backend: Backend) -> None:
        """Keep a connection whose last exchange is complete, or close it."""
        stream = backend.stream
        waiting = self._idle.setdefault(backend.key, deque())
        if stream.is_eof or stream.has_data or len(waiting) >= _PER_KEY or self._count >= _IN_ALL:
            stream.close()
            if not waiting:
                del self._idle[backend.key]
            return
        loop = asyncio.get_running_loop()
        backend.idle_since = loop.time()
        waiting.append(backend)
        self._count += 1
        stream.on_lost = None
        stream.on_eof = lambda: self._drop(backend)
        if self._sweep is None:
            self._sweep = loop.call_later(self._idle_seconds, self._sweep_idle)

    def drop(self, key: Hashable) -> None:
        """Close what waits for a key."""
        for backend in list(self._idle.get(key, ())):
            self._drop(backend)

    def close(self) -> None:
        """Close all that wait."""
        for key in list(self._idle):
            self.drop(key)
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None

    def _drop(self, backend: Backend) -> None:
        waiting = self._idle.get(backend.key)
        if waiting is not None and backend in waiting:
            waiting.remove(backend)
            self._forget(backend.key, waiting)
        backend.stream.on_eof = None
        backend.stream.abort()

    def _forget(self, key: Hashable, waiting: "deque[Backend]") -> None:
        self._count -= 1
        if not waiting:
            self._idle.pop(key, None)

    def _sweep_idle(self) -> None:
        loop = asyncio.get_running_loop()
        oldest = loop.time() - self._idle_seconds
        for waiting in list(self._idle.values()):
            for backend in [backend for backend in waiting if backend.idle_since <= oldest]:
                self._drop(backend)
        self._sweep = loop.call_later(self._idle_seconds / 4, self._sweep_idle) if self._count else None
