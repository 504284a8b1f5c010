from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool

from api.event_stream import BATCH_EVENT_RESPONSES, batch_event_stream, to_event_page
from api.schemas.errors import error_responses
from api.schemas.events import EventPageView
from api.schemas.pages import Limit
from api.services import ApiServices, Caller, Services
from core.errors import InvalidRequestError
from services.batch_events import BatchEventFollower, EventPage, read_event_page
from services.tenants import Principal

__all__ = ["router"]

router = APIRouter(prefix="/v1/batches", tags=["batches"])


@router.get(
    "/{batch_id}/events",
    summary="Read or follow what happens in a batch",
    response_model=EventPageView,
    responses=error_responses(404, 410) | BATCH_EVENT_RESPONSES,
)
async def get_events(
    *,
    request: Request,
    services: Services,
    caller: Caller,
    batch_id: UUID,
    after: Annotated[
        int, Query(ge=0, le=2**53, description="Only events after this `seq`; 0: from the start.")
    ] = 0,
    follow: Annotated[bool, Query(description="Go on until the batch is finished.")] = False,
    limit: Limit = 500,
    last_event_id: Annotated[
        str | None, Header(alias="Last-Event-ID", max_length=20, description="Wins over `after`.")
    ] = None,
) -> Response:
    """Give ends of trials in the order in which they were counted, and what else happens to the batch.

    Without `follow`: a page. With it, or when the client accepts `text/event-stream`: events named by their `type`,
    with their `seq` as id, a comment every 15 seconds, and at last an event `end`. A reader that lost its connection
    comes back with `Last-Event-ID` and misses nothing.
    """
    start = after if not last_event_id else _parse_event_id(last_event_id)
    page = await run_in_threadpool(_read, services, caller, batch_id, after=start, limit=limit)
    if not follow and "text/event-stream" not in request.headers.get("accept", ""):
        return JSONResponse(to_event_page(page).model_dump(mode="json"))
    follower = BatchEventFollower(services.engine, services.hub, caller.tenant_id, batch_id)
    key_text = request.state.api_key

    async def check() -> None:
        await run_in_threadpool(services.authenticator.recheck, key_text)

    return batch_event_stream(follower.follow(after=start), check=check)


def _parse_event_id(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 2**53:
        raise InvalidRequestError("must be the id of an event of this batch", field="Last-Event-ID")
    return int(text)


def _read(services: ApiServices, caller: Principal, batch_id: UUID, *, after: int, limit: int) -> EventPage:
    with services.engine.begin() as connection:
        return read_event_page(connection, caller.tenant_id, batch_id, after=after, limit=limit)
