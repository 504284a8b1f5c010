"""Routes of the lifecycle API about sandboxes. Source: sections 1.2 to 1.5 of the protocol."""

from collections.abc import Callable
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from api.body import middle_json_body
from api.services import ApiServices, Caller, IdempotencyKey, Services
from api.wire.bodies import read_body, read_json, read_object
from api.wire.creating import FullPools, create, wait_for_pools
from api.wire.errors import WIRE_TAG
from api.wire.requests import check_metadata_patch, parse_metadata_filter, parse_states
from api.wire.schemas import (
    EndpointView,
    RenewRequest,
    SandboxListView,
)
from api.wire.views import to_pagination, to_sandbox_view
from api.wire.waiting import watching
from core.failpoints import failpoint
from core.ids import read_id
from models.live_sandboxes import WireState
from repositories.live_sandboxes import SandboxRow
from runtimes.base import EXECD_PORT
from services.live_sandboxes import Deletion, Endpoint
from services.sandbox_errors import (
    EndpointNotReadyError,
    SandboxMissingError,
    WireFailureError,
    WireInvalidError,
    WireUnsupportedError,
)
from services.tenants import Principal
from services.warm_creates import Made

__all__ = ["router"]

router = APIRouter(tags=[WIRE_TAG], include_in_schema=False)

ACCESS_HEADER = "OpenSandbox-Secure-Access"
_MAX_PORT = 65_535
_MAX_PAGE = 2**31 - 1
_UNSWITCHED = frozenset({"DOCKER::SANDBOX_PAUSE_FAILED", "DOCKER::SANDBOX_RESUME_FAILED"})
_WITHOUT_HEADERS = "OpenSandbox-Kotlin-SDK/1.0."
"""Official clients older than the headers of an endpoint, by how they call themselves."""
_UNHEARD_SECONDS = 0.2
"""A sandbox may run before anybody listens. That is so rare that a look while most of them start costs more."""
_ENDPOINT_WAIT_SECONDS = 5.0
"""For a sandbox that starts: official clients ask again every 200 ms, which is neither quick nor cheap."""


def sandbox_key(sandbox_id: str) -> UUID:
    """Read an id in a path. Raises SandboxMissingError: what is no id names no sandbox."""
    key = read_id(sandbox_id)
    if key is None:
        raise SandboxMissingError(sandbox_id[:100])
    return key


SandboxId = Annotated[UUID, Depends(sandbox_key)]


@router.post("/sandboxes", status_code=202)
async def create_sandbox(
    services: Services,
    caller: Caller,
    body: Annotated[bytes, Depends(middle_json_body)],
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Accept a sandbox: after the commit it is made, whatever crashes. Waits a short while for it to run."""
    async with services.creators:
        created = await run_in_threadpool(create, services, caller, body, idempotency_key)
    if isinstance(created, FullPools):
        created = await wait_for_pools(services, caller, created)
    row = created.warm
    if row is None:
        row = await _wait_for_start(services, caller, created)
    view = to_sandbox_view(row).to_json()
    for name in ("image", "snapshotId"):
        view.pop(name, None)
    headers = {"Location": f"/v1/sandboxes/{created.sandbox_id}"}
    if created.is_replayed:
        headers["Idempotent-Replayed"] = "true"
    return JSONResponse(view, status_code=202, headers=headers)


@router.get("/sandboxes")
def list_sandboxes(
    *,
    services: Services,
    caller: Caller,
    state: Annotated[list[str] | None, Query()] = None,
    metadata: Annotated[str | None, Query(max_length=16 << 10)] = None,
    page: Annotated[int, Query(ge=1, le=_MAX_PAGE)] = 1,
    page_size: Annotated[int, Query(ge=1, le=200, alias="pageSize")] = 20,
) -> Response:
    """List the tenant's sandboxes, newest first."""
    wanted, states = parse_metadata_filter(metadata), parse_states(state)
    with services.engine.begin() as connection:
        found = services.sandboxes(connection, caller).page(
            states=states, metadata=wanted, page=page, page_size=page_size
        )
    view = SandboxListView(
        items=[to_sandbox_view(row) for row in found.items],
        pagination=to_pagination(page, page_size, found.total),
    )
    return JSONResponse(view.to_json())


@router.get("/sandboxes/{sandbox_id}")
def get_sandbox(services: Services, caller: Caller, sandbox_id: SandboxId) -> Response:
    """Look at one."""
    with services.engine.begin() as connection:
        row = services.sandboxes(connection, caller).get(sandbox_id)
    return JSONResponse(to_sandbox_view(row).to_json())


@router.patch("/sandboxes/{sandbox_id}/metadata")
def patch_metadata(
    services: Services,
    caller: Caller,
    sandbox_id: SandboxId,
    body: Annotated[bytes, Depends(middle_json_body)],
) -> Response:
    """Set and delete entries of the metadata."""
    patch = check_metadata_patch(read_object(body))
    with services.engine.begin() as connection:
        row = services.sandboxes(connection, caller).patch_metadata(sandbox_id, patch)
    return JSONResponse(to_sandbox_view(row).to_json())


@router.delete("/sandboxes/{sandbox_id}", status_code=204)
async def delete_sandbox(services: Services, caller: Caller, sandbox_id: SandboxId) -> Response:
    """End it, whatever its state. Waits a short while until nothing is left of it."""
    services.endpoints.forget(caller.tenant_id, sandbox_id)
    async with watching(services, sandbox_id) as waiter:
        deletion = await run_in_threadpool(_delete, services, caller, sandbox_id)
        if not deletion.is_over:
            services.wake.cancelled({deletion.node_id: [sandbox_id]} if deletion.node_id else {})
            await waiter.until(
                _reader(services, caller, sandbox_id),
                lambda row: row.ended_at is not None,
                seconds=services.settings.sandbox_create_wait_seconds,
                first_wait_seconds=None if deletion.node_id else 0.0,
            )
    return Response(status_code=204)


@router.post("/sandboxes/{sandbox_id}/pause", status_code=202)
async def pause_sandbox(services: Services, caller: Caller, sandbox_id: SandboxId) -> Response:
    """Let every process stand still."""
    return await _obey(services, caller, sandbox_id, verb="pause", passing=WireState.PAUSING)


@router.post("/sandboxes/{sandbox_id}/resume", status_code=202)
async def resume_sandbox(services: Services, caller: Caller, sandbox_id: SandboxId) -> Response:
    """Let it go on."""
    return await _obey(services, caller, sandbox_id, verb="resume", passing=WireState.RESUMING)


@router.post("/sandboxes/{sandbox_id}/renew-expiration")
def renew_expiration(
    services: Services,
    caller: Caller,
    sandbox_id: SandboxId,
    body: Annotated[bytes, Depends(middle_json_body)],
) -> Response:
    """Move the expiry to another time."""
    wanted = read_body(RenewRequest, read_json(body)).expires_at
    with services.engine.begin() as connection:
        until = services.sandboxes(connection, caller).renew(sandbox_id, wanted)
    # Who leads traffic to it remembers it until its earlier expiry, which may be the later one.
    services.wake.sandbox(sandbox_id)
    return JSONResponse({"expiresAt": until.isoformat()})


@router.get("/sandboxes/{sandbox_id}/endpoints/{port}")
async def get_endpoint(
    *,
    request: Request,
    services: Services,
    caller: Caller,
    sandbox_id: SandboxId,
    port: int,
    use_server_proxy: bool = False,
    expires: Annotated[int | None, Query(ge=0, lt=2**64)] = None,
    access: Annotated[str | None, Query(max_length=32)] = None,
    user_agent: Annotated[str, Header(max_length=1000)] = "",
) -> Response:
    """Say where a port is. Waits a short while for a sandbox that starts.

    With `access=path`, and for clients that know of no headers of an endpoint, the access token is in the path.
    """
    if not 1 <= port <= _MAX_PORT:
        raise WireInvalidError("DOCKER::INVALID_PORT", f"must be from 1 to {_MAX_PORT}", field="port")
    if expires is not None and use_server_proxy:
        raise WireInvalidError(
            "SANDBOX::INVALID_PARAMETER",
            "the server proxy takes no signed endpoints: leave out one of the two",
            field="expires",
        )
    if expires is not None:
        raise WireInvalidError(
            "SANDBOX::API_NOT_SUPPORTED",
            "signed endpoints need a gateway, which is not here yet",
            field="expires",
        )
    endpoint = await _find_endpoint(services, caller, sandbox_id)
    headers = {}
    if port == EXECD_PORT or endpoint.is_secure:
        headers[ACCESS_HEADER] = endpoint.access_token
    if use_server_proxy:
        prefix = "/v1" if request.url.path.startswith("/v1/") else ""
        server = services.settings.api_clients_address or request.headers.get("host", "localhost")
        address = f"{server}{prefix}/sandboxes/{sandbox_id}/proxy/{port}"
    else:
        address = f"{endpoint.address}/{sandbox_id}/{port}"
        if headers and (access == "path" or user_agent.startswith(_WITHOUT_HEADERS)):
            address, headers = f"{address}/~{endpoint.access_token}", {}
    return JSONResponse(EndpointView(endpoint=address, headers=headers or None).to_json())


@router.get("/sandboxes/{sandbox_id}/record")
def get_record(services: Services, caller: Caller, sandbox_id: SandboxId) -> Response:
    """Look at one also after its end: what became of it, when and by whom. Not part of the protocol."""
    with services.engine.begin() as connection:
        sandboxes = services.sandboxes(connection, caller)
        row = sandboxes.record(sandbox_id)
        events = sandboxes.events(sandbox_id, limit=500)
    view = to_sandbox_view(row).to_json()
    times = {"runningAt": row.running_at, "endedAt": row.ended_at}
    view |= {name: at.isoformat() for name, at in times.items() if at is not None}
    facts = {"endReason": row.end_reason, "endedBy": row.ended_by, "runtime": row.runtime}
    facts["nodeId"] = None if row.node_id is None else str(row.node_id)
    view |= {name: value for name, value in facts.items() if value is not None}
    view["events"] = [
        {
            "at": event.at.isoformat(),
            "actor": event.actor,
            "reason": event.reason,
            **({} if event.message is None else {"message": event.message}),
        }
        for event in events
    ]
    return JSONResponse(view)


@router.get("/sandboxes/{sandbox_id}/networkpolicy")
@router.put("/sandboxes/{sandbox_id}/networkpolicy")
@router.patch("/sandboxes/{sandbox_id}/networkpolicy")
@router.delete("/sandboxes/{sandbox_id}/networkpolicy")
def network_policy(services: Services, caller: Caller, sandbox_id: SandboxId) -> Response:
    """Refuse: sandboxes have no way out yet."""
    with services.engine.begin() as connection:
        services.sandboxes(connection, caller).get(sandbox_id)
    raise WireUnsupportedError(
        "SANDBOX::API_NOT_SUPPORTED", "sandboxes have no way out in this release, so there is no policy of it"
    )


async def _wait_for_start(services: ApiServices, caller: Principal, created: Made) -> SandboxRow:
    def read() -> tuple[SandboxRow, Endpoint | None] | None:
        with services.engine.begin() as connection:
            try:
                return services.sandboxes(connection, caller).started(created.sandbox_id)
            except SandboxMissingError:
                return None

    services.wake.scheduler()
    async with watching(services, created.sandbox_id) as waiter:
        found = await waiter.until(
            read,
            lambda found: found[0].state != WireState.PENDING,
            seconds=services.settings.sandbox_create_wait_seconds,
            first_wait_seconds=0.0 if created.is_replayed else _UNHEARD_SECONDS,
        )
    if found is None:
        raise SandboxMissingError(created.sandbox_id)
    row, endpoint = found
    if row.state == WireState.PENDING:
        # Not while it waits: most creates never come here.
        late = await run_in_threadpool(_reader(services, caller, created.sandbox_id))
        return late or row
    if endpoint is not None and not created.is_replayed:
        services.endpoints.note(caller.tenant_id, row.id, endpoint)
    return row


def _delete(services: ApiServices, caller: Principal, sandbox_id: UUID) -> Deletion:
    with services.engine.begin() as connection:
        deletion = services.sandboxes(connection, caller).delete(sandbox_id)
        failpoint("api.before_commit")
    failpoint("api.after_commit")
    return deletion


async def _obey(
    services: ApiServices, caller: Principal, sandbox_id: UUID, *, verb: str, passing: WireState
) -> Response:
    """Wish something and wait a short while until it is so."""

    def wish() -> UUID | None:
        with services.engine.begin() as connection:
            sandboxes = services.sandboxes(connection, caller)
            return sandboxes.pause(sandbox_id) if verb == "pause" else sandboxes.resume(sandbox_id)

    async with watching(services, sandbox_id) as waiter:
        node_id = await run_in_threadpool(wish)
        if node_id is not None:
            services.wake.cancelled({node_id: [sandbox_id]})
        row = await waiter.until(
            _reader(services, caller, sandbox_id),
            lambda row: row.state != passing,
            seconds=services.settings.sandbox_create_wait_seconds,
        )
    if row is not None and row.state_message is not None:
        if row.state_reason == "SANDBOX::API_NOT_SUPPORTED":
            raise WireUnsupportedError(row.state_reason, row.state_message)
        if row.state_reason in _UNSWITCHED:
            raise WireFailureError(row.state_reason, row.state_message)
    return Response(status_code=202)


async def _find_endpoint(services: ApiServices, caller: Principal, sandbox_id: UUID) -> Endpoint:
    def find() -> Endpoint:
        with services.engine.begin() as connection:
            return services.sandboxes(connection, caller).endpoint(sandbox_id)

    fresh = services.endpoints.find(caller.tenant_id, sandbox_id)
    if fresh is not None:
        return fresh
    try:
        return await run_in_threadpool(find)
    except EndpointNotReadyError:
        async with watching(services, sandbox_id) as waiter:
            await waiter.until(
                _reader(services, caller, sandbox_id),
                lambda row: row.state not in {WireState.PENDING, WireState.RESUMING},
                seconds=_ENDPOINT_WAIT_SECONDS,
                first_wait_seconds=0.0,
            )
        return await run_in_threadpool(find)


def _reader(services: ApiServices, caller: Principal, sandbox_id: UUID) -> Callable[[], SandboxRow | None]:
    def read() -> SandboxRow | None:
        with services.engine.begin() as connection:
            try:
                return services.sandboxes(connection, caller).record(sandbox_id)
            except SandboxMissingError:
                return None

    return read
