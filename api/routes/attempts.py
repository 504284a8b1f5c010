from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.concurrency import run_in_threadpool

from api.log_stream import STREAM_RESPONSES, event_stream, text_stream, to_log_page
from api.schemas.errors import error_responses
from api.schemas.fields import StepName
from api.schemas.logs import LogPageView
from api.schemas.pages import Limit
from api.schemas.trials import AttemptView
from api.services import ApiServices, Caller, Services
from api.views import to_attempt_view
from core.errors import InvalidRequestError
from services.log_reading import LogFollower, LogKey, LogPage, find_log, read_log_page
from services.tenants import Principal

__all__ = ["router"]

router = APIRouter(prefix="/v1/attempts", tags=["attempts"])

StepFilter = Annotated[StepName | None, Query(description="Only output of this step.")]
StreamFilter = Annotated[Literal["stdout", "stderr"] | None, Query(description="Only this stream.")]
After = Annotated[
    int, Query(ge=-1, le=2**31 - 1, description="Only chunks after this `seq`; -1: from the start.")
]


@router.get("/{attempt_id}", summary="Look at an attempt", responses=error_responses(404))
def get_attempt(services: Services, caller: Caller, attempt_id: UUID) -> AttemptView:
    """Give one physical try with its steps, failure and tests."""
    with services.engine.begin() as connection:
        return to_attempt_view(services.trials(connection, caller).get_attempt(attempt_id))


@router.get(
    "/{attempt_id}/logs",
    summary="Read or follow the log of an attempt",
    response_model=LogPageView,
    responses=error_responses(404) | STREAM_RESPONSES,
)
async def get_logs(
    *,
    request: Request,
    services: Services,
    caller: Caller,
    attempt_id: UUID,
    after: After = -1,
    follow: Annotated[
        bool, Query(description="Go on until the log ends: server-sent events, or text.")
    ] = False,
    step: StepFilter = None,
    stream: StreamFilter = None,
    format: Annotated[Literal["json", "text"], Query(description="text: the bytes alone.")] = "json",  # noqa: A002
    limit: Limit = 500,
    last_event_id: Annotated[
        str | None, Header(alias="Last-Event-ID", max_length=20, description="Wins over `after`.")
    ] = None,
) -> Response:
    """Give output in its one order over both streams.

    Without `follow`: a page of chunks; as text, the header `X-Next-Cursor` says where to go on. With it, or when the
    client accepts `text/event-stream`: events `message` with a chunk each and its `seq` as id, a comment every 15
    seconds, and at last an event `end`. A reader that lost its connection comes back with `Last-Event-ID` and misses
    nothing.
    """
    start = after if not last_event_id else _parse_event_id(last_event_id)
    wants_events = "text/event-stream" in request.headers.get("accept", "")
    key = await run_in_threadpool(_find, services, caller, attempt_id)
    if not follow and not (wants_events and format == "json"):
        page = await run_in_threadpool(
            _read, services, caller, key, after=start, limit=limit, step=step, stream=stream
        )
        if format == "text":
            data = b"".join(chunk.data for chunk in page.chunks)
            headers = {} if page.next_after is None else {"X-Next-Cursor": str(page.next_after)}
            return PlainTextResponse(data, headers=headers)
        return JSONResponse(to_log_page(page).model_dump(mode="json"))
    follower = LogFollower(services.engine, services.hub, caller.tenant_id, key)
    key_text = request.state.api_key

    async def check() -> None:
        await run_in_threadpool(services.authenticator.recheck, key_text)

    make = event_stream if format == "json" else text_stream
    return make(follower.follow(after=start), check=check, step=step, stream=stream)


def _parse_event_id(text: str) -> int:
    if not text.isascii() or not text.lstrip("-").isdigit() or not -1 <= int(text) < 2**31:
        raise InvalidRequestError("must be the id of an event of this log", field="Last-Event-ID")
    return int(text)


def _find(services: ApiServices, caller: Principal, attempt_id: UUID) -> LogKey:
    with services.engine.begin() as connection:
        return find_log(connection, caller.tenant_id, attempt_id)


def _read(
    services: ApiServices,
    caller: Principal,
    key: LogKey,
    *,
    after: int,
    limit: int,
    step: str | None,
    stream: str | None,
) -> LogPage:
    with services.engine.begin() as connection:
        return read_log_page(
            connection, caller.tenant_id, key, after=after, limit=limit, step=step, stream=stream
        )
