"""An answer within a bounded time, also when a store freezes in the middle of a call."""

import asyncio
from collections.abc import Awaitable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from core.errors import UnavailableError

__all__ = ["DeadlineMiddleware"]

_BODILESS = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})


class DeadlineMiddleware:
    """Gives a request so many seconds from the end of its body to the start of its answer, then UnavailableError.

    A handler waits for the database in a thread, which nobody can cancel. So it is left behind, its late answer is
    dropped, and the caller hears that it may try again. An answer that has started takes as long as it takes.
    """

    def __init__(self, app: ASGIApp, *, seconds: float) -> None:
        """app: the next layer."""
        self._app = app
        self._seconds = seconds
        self._left_behind: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection of any kind."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        call = _Call(receive, send, is_body_over=scope["method"] in _BODILESS)
        task = asyncio.create_task(_to_coroutine(self._app(scope, call.receive, call.send)))
        try:
            await _first(task, call.body_over, timeout_seconds=None)
            await _first(task, call.started, timeout_seconds=self._seconds)
            if not task.done() and not call.started.is_set():
                call.is_abandoned = True
                self._left_behind.add(task)
                task.add_done_callback(self._forget)
                raise UnavailableError(f"no answer within {self._seconds:g} s: try again")
            await task
        except asyncio.CancelledError:
            task.cancel()
            raise

    def _forget(self, task: "asyncio.Task[None]") -> None:
        self._left_behind.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, so that asyncio does not report it a second time


class _Call:
    """Receive and send of one request, watched."""

    def __init__(self, receive: Receive, send: Send, *, is_body_over: bool) -> None:
        self._receive = receive
        self._send = send
        self.started = asyncio.Event()
        self.body_over = asyncio.Event()
        self.is_abandoned = False
        if is_body_over:
            self.body_over.set()

    async def receive(self) -> Message:
        message = await self._receive()
        if not message.get("more_body"):
            self.body_over.set()
        return message

    async def send(self, message: Message) -> None:
        if self.is_abandoned:
            return
        self.started.set()
        await self._send(message)


async def _first(task: "asyncio.Task[None]", event: asyncio.Event, *, timeout_seconds: float | None) -> None:
    """Wait for the task's end or the event, or the timeout."""
    if task.done() or event.is_set():
        return
    waiter = asyncio.create_task(event.wait())
    try:
        await asyncio.wait({task, waiter}, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiter.cancel()


async def _to_coroutine(awaitable: Awaitable[None]) -> None:
    await awaitable
