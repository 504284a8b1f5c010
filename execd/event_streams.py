"""Event streams as responses."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from execd.exchange import Exchange
from execd.execution import Execution
from execd.relay import Relay, opening_frames

__all__ = ["STREAM_HEADERS", "follow", "stream_to_client"]

STREAM_HEADERS: Final = (
    ("content-type", "text/event-stream"),
    ("cache-control", "no-cache"),
    ("connection", "keep-alive"),
    ("x-accel-buffering", "no"),
)


async def stream_to_client(
    exchange: Exchange,
    execution: Execution,
    *,
    strip_newlines: bool,
    opening: bytes | None = None,
    offset: int = 0,
) -> None:
    """Stream a command to a client for whom it runs: it goes as fast as the client reads, and is killed if it leaves.

    A command that is kept waits for the next client instead. opening: frames to begin with, if not the usual ones.
    """
    overdue: list[asyncio.Task[None]] = []

    def watch_the_end() -> None:
        if not overdue:
            overdue.append(asyncio.create_task(_abort_when_overdue(exchange, execution)))

    relay = Relay(
        execution,
        # However slow the reader: its program waits with it, and the command's own timeout still holds.
        _sender(exchange, patient=True, on_wait=watch_the_end),
        offset=min(offset, execution.log.end),
        opening=opening_frames(execution.id) if opening is None else opening,
        strip_newlines=strip_newlines,
    )
    # Before anything is awaited: from its first byte on the command has someone to wait for.
    execution.attach(relay)
    exchange.on_disconnect(lambda: execution.detach(relay))
    try:
        await _finish(exchange, await relay.run())
    finally:
        for task in overdue:
            task.cancel()
        execution.detach(relay)


async def follow(exchange: Exchange, execution: Execution, *, offset: int, strip_newlines: bool) -> None:
    """Stream a command to one who only looks on, from an offset. A reader that takes nothing for long is given up."""
    relay = Relay(
        execution,
        _sender(exchange, patient=False),
        offset=offset,
        opening=opening_frames(execution.id),
        strip_newlines=strip_newlines,
    )
    # A reader who waits for a silent command would not notice by itself that its client has gone.
    exchange.on_disconnect(_cancel_current_task())
    await _finish(exchange, await relay.run())


def _sender(
    exchange: Exchange, *, patient: bool, on_wait: Callable[[], None] | None = None
) -> Callable[[bytes], Awaitable[None]]:
    async def send(frames: bytes) -> None:
        if not exchange.is_started:
            await exchange.start(200, STREAM_HEADERS, first=frames)
        else:
            await exchange.send(frames, patient=patient, on_wait=on_wait)

    return send


async def _finish(exchange: Exchange, last: bytes) -> None:
    """End a stream; one that was short is one write."""
    if exchange.is_started:
        await exchange.finish(last)
    else:
        await exchange.reply_chunked(200, STREAM_HEADERS, last)


def _cancel_current_task() -> Callable[[], None]:
    task = asyncio.current_task()

    def cancel() -> None:
        if task is not None:
            task.cancel()

    return cancel


async def _abort_when_overdue(exchange: Exchange, execution: Execution) -> None:
    await execution.exited.wait()
    await asyncio.sleep(exchange.limits.stream_end_seconds)
    exchange.abort()
