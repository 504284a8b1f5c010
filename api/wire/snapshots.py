"""Routes of the lifecycle API about snapshots. Source: section 1.11 of the protocol."""

from collections.abc import Callable
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from api.body import small_json_body
from api.services import ApiServices, Caller, IdempotencyKey, Services, make_identity
from api.wire.bodies import read_body, read_json
from api.wire.errors import WIRE_TAG
from api.wire.sandboxes import SandboxId
from api.wire.schemas import SnapshotListView, SnapshotRequest
from api.wire.views import to_pagination, to_snapshot_view
from api.wire.waiting import watching
from core.ids import new_id, read_id
from models.snapshots import SnapshotState
from repositories.snapshots import SnapshotFilter, SnapshotRow
from services.sandbox_errors import SnapshotMissingError, WireInvalidError
from services.tenants import Principal

__all__ = ["router"]

router = APIRouter(tags=[WIRE_TAG], include_in_schema=False)

_STATES = frozenset(state.lower() for state in SnapshotState)


def _snapshot_key(snapshot_id: str) -> UUID:
    key = read_id(snapshot_id)
    if key is None:
        raise SnapshotMissingError(snapshot_id[:100])
    return key


SnapshotId = Annotated[UUID, Depends(_snapshot_key)]


@router.post("/sandboxes/{sandbox_id}/snapshots", status_code=202)
def create_snapshot(
    services: Services,
    caller: Caller,
    sandbox_id: SandboxId,
    body: Annotated[bytes, Depends(small_json_body)],
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Accept a snapshot: after the commit it is made, or fails with a message, whatever crashes."""
    value = read_json(body)
    name = read_body(SnapshotRequest, value).name
    identity = make_identity(idempotency_key, f"sandboxes/{sandbox_id}/snapshots", value)
    with services.engine.begin() as connection:
        row, is_replayed = services.snapshots(connection, caller).create(
            sandbox_id, new_id(), name=name, identity=identity
        )
    services.wake.cancelled({row.node_id: [sandbox_id]})
    headers = {"Location": f"/v1/snapshots/{row.id}"}
    if is_replayed:
        headers["Idempotent-Replayed"] = "true"
    return JSONResponse(to_snapshot_view(row).to_json(), status_code=202, headers=headers)


@router.get("/snapshots")
def list_snapshots(
    *,
    services: Services,
    caller: Caller,
    sandbox_id: Annotated[str | None, Query(alias="sandboxId", max_length=200)] = None,
    name: Annotated[str | None, Query(min_length=1, max_length=255)] = None,
    state: Annotated[list[str] | None, Query()] = None,
    page: Annotated[int, Query(ge=1, le=10**6)] = 1,
    page_size: Annotated[int, Query(ge=1, le=200, alias="pageSize")] = 20,
) -> Response:
    """List the tenant's snapshots, newest first."""
    wanted = SnapshotFilter(_source(sandbox_id), name, _states(state))
    with services.engine.begin() as connection:
        found = services.snapshots(connection, caller).page(wanted, page=page, page_size=page_size)
    view = SnapshotListView(
        items=[to_snapshot_view(row) for row in found.items],
        pagination=to_pagination(page, page_size, found.total),
    )
    return JSONResponse(view.to_json())


@router.get("/snapshots/{snapshot_id}")
def get_snapshot(services: Services, caller: Caller, snapshot_id: SnapshotId) -> Response:
    """Look at one."""
    with services.engine.begin() as connection:
        row = services.snapshots(connection, caller).get(snapshot_id)
    return JSONResponse(to_snapshot_view(row).to_json())


@router.delete("/snapshots/{snapshot_id}", status_code=204)
async def delete_snapshot(services: Services, caller: Caller, snapshot_id: SnapshotId) -> Response:
    """Let one go. Waits a short while until nothing is left of it; a node that is away does it when it is back."""

    def delete() -> SnapshotRow:
        with services.engine.begin() as connection:
            return services.snapshots(connection, caller).delete(snapshot_id)

    async with watching(services, snapshot_id) as waiter:
        row = await run_in_threadpool(delete)
        services.wake.cancelled({row.node_id: [row.sandbox_id]})
        await waiter.until(
            _reader(services, caller, snapshot_id),
            lambda row: bool(row.state_message),
            seconds=services.settings.sandbox_create_wait_seconds,
        )
    return Response(status_code=204)


def _reader(services: ApiServices, caller: Principal, snapshot_id: UUID) -> Callable[[], SnapshotRow | None]:
    def read() -> SnapshotRow | None:
        with services.engine.begin() as connection:
            try:
                return services.snapshots(connection, caller).get(snapshot_id)
            except SnapshotMissingError:
                return None

    return read


def _source(text: str | None) -> UUID | None:
    """Read the id of a sandbox to filter by; what is none matches nothing."""
    return None if text is None else read_id(text) or UUID(int=0)


def _states(states: list[str] | None) -> list[str] | None:
    if states is None:
        return None
    lowered = [state.lower() for state in states]
    unknown = [state for state, low in zip(states, lowered, strict=True) if low not in _STATES]
    if unknown:
        raise WireInvalidError(
            "SANDBOX::INVALID_PARAMETER",
            f"{unknown[0][:100]!r} is none of {', '.join(SnapshotState)}",
            field="state",
        )
    return lowered
