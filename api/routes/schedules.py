from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Response

from api.body import json_body
from api.cursors import CursorScope
from api.json_body import parse_json
from api.openapi_parts import json_request
from api.schedule_views import check_template, to_change, to_fire_view, to_new_schedule, to_schedule_view
from api.schemas.errors import error_responses
from api.schemas.examples import SCHEDULE_EXAMPLE
from api.schemas.pages import Cursor, Limit, Page
from api.schemas.schedules import (
    FireView,
    ScheduleEnvelope,
    SchedulePatch,
    ScheduleRequest,
    ScheduleView,
)
from api.services import Caller, Services
from api.validation import check_schema
from core.errors import InvalidRequestError

__all__ = ["router"]

router = APIRouter(prefix="/v1/schedules", tags=["schedules"])


@router.post(
    "",
    status_code=201,
    summary="Add a schedule",
    responses=error_responses(408, 409, 413, 415, 429),
    openapi_extra=json_request(ScheduleRequest, SCHEDULE_EXAMPLE),
)
def create_schedule(
    services: Services, caller: Caller, response: Response, body: Annotated[bytes, Depends(json_body)]
) -> ScheduleView:
    """Submit a batch at every time of a cron expression. The batch is checked now, as if it were submitted."""
    new = to_new_schedule(services, check_schema(ScheduleEnvelope, parse_json(body)))
    with services.engine.begin() as connection:
        row = services.schedules(connection, caller).create(new)
    response.headers["Location"] = f"/v1/schedules/{row.id}"
    return to_schedule_view(row)


@router.get("", summary="List schedules", responses=error_responses())
def list_schedules(
    services: Services, caller: Caller, limit: Limit = 50, cursor: Cursor = None
) -> Page[ScheduleView]:
    """List the tenant's schedules, oldest first."""
    scope = CursorScope("schedules", caller.tenant_id)
    after = scope.decode_id(cursor)
    with services.engine.begin() as connection:
        found = services.schedules(connection, caller).page(after=after, limit=limit)
    following = scope.encode_id(found[-1].id) if len(found) == limit else None
    return Page(items=[to_schedule_view(row) for row in found], next_cursor=following)


@router.get("/{schedule_id}", summary="Look at a schedule", responses=error_responses(404))
def get_schedule(services: Services, caller: Caller, schedule_id: UUID) -> ScheduleView:
    """Give the schedule with its next times."""
    with services.engine.begin() as connection:
        return to_schedule_view(services.schedules(connection, caller).get(schedule_id))


@router.patch(
    "/{schedule_id}",
    summary="Change a schedule",
    responses=error_responses(404, 408, 409, 413, 415),
    openapi_extra=json_request(SchedulePatch, {"cron": "0 4 * * *"}),
)
def change_schedule(
    services: Services, caller: Caller, schedule_id: UUID, body: Annotated[bytes, Depends(json_body)]
) -> ScheduleView:
    """Change what the body names. It goes on from now: what was due before is not caught up."""
    patch = check_schema(SchedulePatch, parse_json(body))
    batch = None if patch.batch is None else check_template(services, patch.batch)
    with services.engine.begin() as connection:
        service = services.schedules(connection, caller)
        row = service.lock(schedule_id)
        return to_schedule_view(service.update(schedule_id, to_change(row, patch, batch)))


@router.delete("/{schedule_id}", status_code=204, summary="Delete a schedule", responses=error_responses(404))
def delete_schedule(services: Services, caller: Caller, schedule_id: UUID) -> None:
    """Remove it with the list of its fires. Batches that it has submitted go on."""
    with services.engine.begin() as connection:
        services.schedules(connection, caller).delete(schedule_id)


@router.post("/{schedule_id}/pause", summary="Pause a schedule", responses=error_responses(404))
def pause_schedule(services: Services, caller: Caller, schedule_id: UUID) -> ScheduleView:
    """Submit nothing until it is resumed. Batches that it has submitted go on."""
    with services.engine.begin() as connection:
        return to_schedule_view(services.schedules(connection, caller).pause(schedule_id))


@router.post("/{schedule_id}/resume", summary="Resume a schedule", responses=error_responses(404))
def resume_schedule(services: Services, caller: Caller, schedule_id: UUID) -> ScheduleView:
    """Go on from now: what was due while it was paused is not caught up."""
    with services.engine.begin() as connection:
        return to_schedule_view(services.schedules(connection, caller).resume(schedule_id))


@router.get("/{schedule_id}/fires", summary="List the times of a schedule", responses=error_responses(404))
def list_fires(
    services: Services, caller: Caller, schedule_id: UUID, limit: Limit = 50, cursor: Cursor = None
) -> Page[FireView]:
    """List what became of its times, newest first."""
    scope = CursorScope("schedules/fires", caller.tenant_id, schedule_id)
    before = None if cursor is None else _to_time(scope.decode(cursor))
    with services.engine.begin() as connection:
        found = services.schedules(connection, caller).page_fires(schedule_id, before=before, limit=limit)
    following = scope.encode(found[-1].fire_at.isoformat().encode()) if len(found) == limit else None
    return Page(items=[to_fire_view(row) for row in found], next_cursor=following)


def _to_time(position: bytes) -> datetime:
    try:
        return datetime.fromisoformat(position.decode())
    except ValueError as error:
        raise InvalidRequestError("not a cursor of this list: start without one", field="cursor") from error
