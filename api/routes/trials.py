import os.path
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Path
from fastapi.responses import StreamingResponse

from api.body import small_json_body
from api.cursors import CursorScope
from api.downloads import DOWNLOAD_RESPONSE, download
from api.json_body import parse_json
from api.openapi_parts import json_request
from api.schemas.batches import CancelRequest, CancelView
from api.schemas.errors import error_responses
from api.schemas.pages import Cursor, Limit, Page
from api.schemas.trials import ArtifactView, TrialDetailView
from api.services import Caller, Services
from api.validation import check_schema
from api.views import to_artifact_view, to_cancel_view, to_trial_detail
from core.errors import InvalidRequestError

__all__ = ["router"]

router = APIRouter(prefix="/v1/trials", tags=["trials"])


@router.get("/{trial_id}", summary="Look at a trial", responses=error_responses(404))
def get_trial(services: Services, caller: Caller, trial_id: UUID) -> TrialDetailView:
    """Give the trial with all its attempts, their steps, failures and tests."""
    with services.engine.begin() as connection:
        return to_trial_detail(services.trials(connection, caller).get(trial_id))


@router.post(
    "/{trial_id}/cancel",
    summary="Cancel a trial",
    responses=error_responses(404, 413, 415),
    openapi_extra=json_request(CancelRequest, {"mode": "graceful"}, required=False),
)
def cancel_trial(
    services: Services, caller: Caller, trial_id: UUID, body: Annotated[bytes, Depends(small_json_body)]
) -> CancelView:
    """Finish a waiting trial as cancelled at once, or tell a running one to stop. A finished one stays as it is."""
    request = check_schema(CancelRequest, parse_json(body))
    with services.engine.begin() as connection:
        services.trials(connection, caller).get(trial_id)
        done = services.batches(connection, caller).cancel_trial(trial_id, mode=request.mode)
    services.wake.cancelled(done.nodes)
    return to_cancel_view(done)


@router.get("/{trial_id}/artifacts", summary="List the files kept", responses=error_responses(404))
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
    responses=error_responses(404) | DOWNLOAD_RESPONSE,
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
