from uuid import UUID

from fastapi import APIRouter

from api.cursors import CursorScope
from api.schemas.errors import error_responses
from api.schemas.history import HistoryBatchView, HistoryTrialView, to_history_batch, to_history_trial
from api.schemas.pages import Cursor, Limit, Page
from api.services import Caller, Services

__all__ = ["router"]

router = APIRouter(prefix="/v1/history/batches", tags=["history"])


@router.get("/{batch_id}", summary="Look at an archived batch", responses=error_responses(404))
def get_archived_batch(services: Services, caller: Caller, batch_id: UUID) -> HistoryBatchView:
    """Give what is left of a batch whose other routes answer 410."""
    with services.engine.begin() as connection:
        return to_history_batch(services.history(connection, caller).get_batch(batch_id))


@router.get(
    "/{batch_id}/trials", summary="List the trials of an archived batch", responses=error_responses(404)
)
def list_archived_trials(
    services: Services, caller: Caller, batch_id: UUID, limit: Limit = 50, cursor: Cursor = None
) -> Page[HistoryTrialView]:
    """List them by job, then index."""
    scope = CursorScope("history/trials", caller.tenant_id, batch_id)
    after = scope.decode_id(cursor)
    with services.engine.begin() as connection:
        found = services.history(connection, caller).page_trials(batch_id, after=after, limit=limit)
    following = scope.encode_id(found[-1].id) if len(found) == limit else None
    return Page(items=[to_history_trial(row) for row in found], next_cursor=following)
