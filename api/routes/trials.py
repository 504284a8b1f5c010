import os.path
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path
from fastapi.responses import StreamingResponse

from api.cursors import CursorScope
from api.downloads import DOWNLOAD_RESPONSE, download
from api.schemas.errors import error_responses
from api.schemas.pages import Cursor, Limit, Page
from api.schemas.trials import ArtifactView, TrialDetailView
from api.services import Caller, Services
from api.views import to_artifact_view, to_trial_detail
from core.errors import InvalidRequestError

__all__ = ["router"]

router = APIRouter(prefix="/v1/trials", tags=["trials"])


@router.get("/{trial_id}", summary="Look at a trial", responses=error_responses(404, 410))
def get_trial(services: Services, caller: Caller, trial_id: UUID) -> TrialDetailView:
    """Give the trial with all its attempts, their steps, failures and tests."""
    with services.engine.begin() as connection:
        return to_trial_detail(services.trials(connection, caller).get(trial_id))


@router.get("/{trial_id}/artifacts", summary="List the files kept", responses=error_responses(404, 410))
def list_artifacts(
    services: Services, caller: Caller, trial_id: UUID, limit: Limit = 50, cursor: Cursor = None
) -> Page[ArtifactView]:
    """List the files of the last attempt that kept any, by path."""
    scope = CursorScope("trials/artifacts", caller.tenant_id, trial_id)
    after = None if cursor is None else scope.decode(cursor).decode("utf-8", "replace")
    with services.engine.begin() as connection:
        found = services.trials(connection, caller).page_artifacts(trial_id, after=after, limit=limit)
    following = scope.encode(found[-1].path.encode()) if len(found) == limit else None
    return Page(items=[to_artifact_view(row) for row in found], next_cursor=following)


@router.get(
    "/{trial_id}/artifacts/{path:path}",
    summary="Download a file kept",
    response_class=StreamingResponse,
    responses=error_responses(404, 410) | DOWNLOAD_RESPONSE,
)
def get_artifact(
    services: Services,
    caller: Caller,
    trial_id: UUID,
    path: Annotated[
        str, Path(max_length=4096, description="Path in the sandbox, with or without its first slash.")
    ],
) -> StreamingResponse:
    """Give the bytes as an attachment: they come from untrusted code and are never to be shown as a page."""
    if "\0" in path:
        raise InvalidRequestError("must not contain NUL", field="path")
    full_path = "/" + path.lstrip("/")
    with services.engine.begin() as connection:
        blob = services.trials(connection, caller).get_artifact(trial_id, full_path)
    return download(services.store, blob, name=os.path.basename(full_path))  # noqa: PTH119 -- of another system
