"""Logs as pages, as server-sent events, and as plain text."""

import asyncio
import base64
import codecs
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from fastapi.responses import StreamingResponse
from sqlalchemy.exc import SQLAlchemyError

from api.schemas.logs import LogChunkView, LogPageView
from core.errors import UnauthenticatedError
from core.logging import get_logger
from repositories.log_reading import LogChunkRow
from services.log_reading import LogEnd, LogPage

__all__ = [
    "HEARTBEAT_SECONDS",
    "STREAM_HEADERS",
    "STREAM_RESPONSES",
    "Check",
    "event_stream",
    "text_stream",
    "to_log_page",
    "while_allowed",
]

log = get_logger(__name__)

HEARTBEAT_SECONDS = 15.0
CHECK_SECONDS = 5.0
"""How long a stream may go on under a key that was revoked, on top of the key cache's five seconds."""

Item = TypeVar("Item")
Chunks = AsyncGenerator[LogChunkRow | LogEnd | None]
Check = Callable[[], Awaitable[None]]

STREAM_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A page, a stream of events, or text.",
        "content": {
            "text/event-stream": {
                "schema": {"type": "string"},
                "example": (
                    'id: 0\ndata: {"seq":0,"t":"2026-01-01T00:00:00Z","stream":"stdout","step":"verify",'
                    '"b64":"b2sK","text":"ok\\n"}\n\nevent: end\ndata: {"truncated_bytes":0}\n\n'
                ),
            },
            "text/plain": {"schema": {"type": "string"}},
        },
    }
}

STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class _Texts:
    """One decoder per stream, so that a character cut in two by a chunk's end comes out whole in the next."""

    def __init__(self) -> None:
        self._decoders: dict[str, codecs.IncrementalDecoder] = {}

    def view(self, chunk: LogChunkRow) -> LogChunkView:
        decoder = self._decoders.get(chunk.stream)
        if decoder is None:
            decoder = self._decoders[chunk.stream] = codecs.getincrementaldecoder("utf-8")("replace")
        return LogChunkView(
            seq=chunk.seq,
            t=chunk.at,
            stream=chunk.stream,
            step=chunk.step,
            b64=base64.b64encode(chunk.data).decode(),
            text=decoder.decode(chunk.data),
        )


def to_log_page(page: LogPage) -> LogPageView:
    """Show a page."""
    texts = _Texts()
    return LogPageView(
        items=[texts.view(chunk) for chunk in page.chunks],
        next_cursor=None if page.next_after is None else str(page.next_after),
        closed=page.state.closed,
        truncated_bytes=page.state.truncated_bytes,
    )


def event_stream(chunks: Chunks, *, check: Check, step: str | None, stream: str | None) -> StreamingResponse:
    """Send chunks as events. check: raises when the caller may no longer listen; asked every few seconds."""
    texts = _Texts()

    async def send() -> AsyncIterator[bytes]:
        # Something at once, so that proxies and clients see the stream open.
        yield b": open\n\n"
        sent = time.monotonic()
        async with contextlib.aclosing(while_allowed(chunks, check)) as items:
            async for item in items:
                event = _event(item, texts, step, stream)
                if event is None and time.monotonic() - sent > HEARTBEAT_SECONDS:
                    event = b": keep-alive\n\n"
                if event is not None:
                    yield event
                    sent = time.monotonic()

    return StreamingResponse(send(), media_type="text/event-stream", headers=STREAM_HEADERS)


def text_stream(chunks: Chunks, *, check: Check, step: str | None, stream: str | None) -> StreamingResponse:
    """Send the bytes alone as they come."""

    async def send() -> AsyncIterator[bytes]:
        async with contextlib.aclosing(while_allowed(chunks, check)) as items:
            async for item in items:
                if isinstance(item, LogChunkRow) and _matches(item, step, stream):
                    yield item.data

    return StreamingResponse(send(), media_type="text/plain; charset=utf-8", headers=STREAM_HEADERS)


async def while_allowed(items: AsyncGenerator[Item], check: Check) -> AsyncGenerator[Item]:
    """Pass on what comes while the caller may listen; a revoked key ends the stream without an end event."""
    checked = time.monotonic()
    async with contextlib.aclosing(items):
        async for item in items:
            if time.monotonic() - checked > CHECK_SECONDS:
                try:
                    await check()
                except UnauthenticatedError:
                    return
                except SQLAlchemyError as error:
                    # A database that is away takes nobody's rights: the next check will tell.
                    log.warning("log_stream_not_checked", error=type(error).__name__)
                checked = time.monotonic()
            yield item
            # A client that takes all at once would else keep all others waiting for as long as there is something to
            # send, and its leaving would not be noticed.
            await asyncio.sleep(0)


def _event(
    item: LogChunkRow | LogEnd | None, texts: _Texts, step: str | None, stream: str | None
) -> bytes | None:
    if isinstance(item, LogEnd):
        return b'event: end\ndata: {"truncated_bytes":%d}\n\n' % item.truncated_bytes
    if item is None or not _matches(item, step, stream):
        return None
    return b"id: %d\ndata: %s\n\n" % (item.seq, texts.view(item).model_dump_json().encode())


def _matches(chunk: LogChunkRow, step: str | None, stream: str | None) -> bool:
    return step in {None, chunk.step} and stream in {None, chunk.stream}
