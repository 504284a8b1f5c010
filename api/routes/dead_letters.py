from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Response

from api.body import small_json_body
from api.cursors import CursorScope
from api.json_body import parse_json
from api.openapi_parts import json_request
from api.schemas.dead_letters import DeadLetterView, ReplayRequest, ReplayView
from api.schemas.errors import error_responses
from api.schemas.pages import Cursor, Limit, Page
from api.services import Caller, IdempotencyKey, Services, make_identity
from api.validation import check_schema
from api.views import to_dead_letter_view

__all__ = ["router"]

router = APIRouter(prefix="/v1/dead-letters", tags=["dead letters"])

State = Annotated[
    Literal["open", "replayed", "discarded"] | None,
    Query(description="What was done about them; `open`: nothing so far. Default: all."),
]


@router.get("", summary="List dead letters", responses=error_responses())
def list_dead_letters(
    services: Services, caller: Caller, state: State = None, limit: Limit = 50, cursor: Cursor = None
) -> Page[DeadLetterView]:
    """List the trials that the infrastructure could not bring to a verdict, newest first."""
    scope = CursorScope("dead-letters", caller.tenant_id, state)
    before = None if cursor is None else scope.decode_number(cursor)
    with services.engine.begin() as connection:
        found = services.dead_letters(connection, caller).page(state, before=before, limit=limit)
    following = scope.encode_number(found[-1].n) if len(found) == limit else None
    return Page(items=[to_dead_letter_view(row) for row in found], next_cursor=following)


@router.get("/{trial_id}", summary="Look at a dead letter", responses=error_responses(404))
def get_dead_letter(services: Services, caller: Caller, trial_id: UUID) -> DeadLetterView:
    """Give the dead letter of a trial."""
    with services.engine.begin() as connection:
        return to_dead_letter_view(services.dead_letters(connection, caller).get(trial_id))


@router.post(
    "/{trial_id}/replay",
    status_code=202,
    response_model=ReplayView,
    summary="Run a dead trial again",
    responses=error_responses(404, 409, 413, 415, 429)
    | {200: {"model": ReplayView, "description": "Replayed before."}},
    openapi_extra=json_request(ReplayRequest, {"force": False}, required=False),
)
def replay_dead_letter(
    services: Services,
    caller: Caller,
    trial_id: UUID,
    *,
    response: Response,
    body: Annotated[bytes, Depends(small_json_body)],
    idempotency_key: IdempotencyKey = None,
) -> ReplayView:
    """Submit the trial's job again, for this one sample, as a lone job with fresh budgets and times.

    Safe to repeat: a dead letter is replayed once, and another call gives the same replay. With `force` it is replayed
    once more; an `Idempotency-Key` makes that safe to repeat.
    """
    value = parse_json(body)
    request = check_schema(ReplayRequest, value)
    identity = make_identity(idempotency_key, f"dead-letters/{trial_id}/replay", value)
    with services.engine.begin() as connection:
        letters = services.dead_letters(connection, caller)
        done = letters.replay(trial_id, force=request.force, identity=identity)
    response.headers["Location"] = f"/v1/trials/{done.trial_id}"
    if done.is_new:
        services.wake.scheduler()
    else:
        response.status_code = 200
        response.headers["Idempotent-Replayed"] = "true"
    return ReplayView(trial_id=done.trial_id, job_id=done.job_id, batch_id=done.batch_id, replay_of=trial_id)


@router.post("/{trial_id}/discard", summary="Discard a dead letter", responses=error_responses(404, 409))
def discard_dead_letter(services: Services, caller: Caller, trial_id: UUID) -> DeadLetterView:
    """Take it off the list of open ones; the trial stays as it is. Again is no error."""
    with services.engine.begin() as connection:
        return to_dead_letter_view(services.dead_letters(connection, caller).discard(trial_id))
