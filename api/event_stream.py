"""Events of a batch as pages and as server-sent events."""

import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from fastapi.responses import StreamingResponse

from api.log_stream import HEARTBEAT_SECONDS, STREAM_HEADERS, Check, while_allowed
from api.schemas.events import EventPageView, EventView
from services.batch_events import BatchEventRow, EventPage, EventsEnd

__all__ = ["BATCH_EVENT_RESPONSES", "batch_event_stream", "to_event_page"]

BATCH_EVENT_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A page, or a stream of events.",
        "content": {
            "text/event-stream": {
                "schema": {"type": "string"},
                "example": (
                    'id: 1\nevent: trial.finished\ndata: {"seq":1,"type":"trial.finished",'
                    '"at":"2026-01-01T00:00:00Z","trial_id":"01a22df2-35d5-765c-a605-5c5639c39936",'
                    '"job_id":"01a22df2-35d5-7744-b92f-7dcb04bd22e9","job_key":"hello","index":0,'
                    '"outcome":"passed","failure_code":null,"rewards":{"reward":1.0},"detail":null}\n\n'
                    "event: end\ndata: {}\n\n"
                ),
            },
        },
    }
}


def to_event_page(page: EventPage) -> EventPageView:
    """Show a page."""
    following = None if page.next_after is None else str(page.next_after)
    return EventPageView(items=[_to_view(event) for event in page.events], next_cursor=following)


def batch_event_stream(
    events: AsyncGenerator[BatchEventRow | EventsEnd | None], *, check: Check
) -> StreamingResponse:
    """Send events as they come. check: raises when the caller may no longer listen; asked every few seconds."""

    async def send() -> AsyncIterator[bytes]:
        # Something at once, so that proxies and clients see the stream open.
        yield b": open\n\n"
        sent = time.monotonic()
        async with contextlib.aclosing(while_allowed(events, check)) as items:
            async for item in items:
                if item is not None:
                    yield _to_bytes(item)
                elif time.monotonic() - sent > HEARTBEAT_SECONDS:
                    yield b": keep-alive\n\n"
                else:
                    continue
                sent = time.monotonic()

    return StreamingResponse(send(), media_type="text/event-stream", headers=STREAM_HEADERS)


def _to_bytes(item: BatchEventRow | EventsEnd) -> bytes:
    if isinstance(item, EventsEnd):
        return b"event: end\ndata: {}\n\n"
    body = _to_view(item).model_dump_json().encode()
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (item.n, item.kind.encode(), body)


def _to_view(row: BatchEventRow) -> EventView:
    return EventView.model_validate(
        {
            "seq": row.n,
            "type": row.kind,
            "at": row.at,
            "trial_id": row.trial_id,
            "job_id": row.job_id,
            "job_key": row.job_key,
            "index": row.index,
            "outcome": row.outcome,
            "failure_code": row.failure_code,
            "rewards": row.rewards,
            "detail": row.detail,
        }
    )
