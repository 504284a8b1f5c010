from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Path, Response

from api.admin_views import to_key_view, to_new_key_view, to_tenant_view, to_usage_view
from api.body import small_json_body
from api.cursors import CursorScope
from api.json_body import parse_json
from api.openapi_parts import json_request
from api.routes.admin import EVERYBODY
from api.routes.dead_letters import State
from api.routes.usage import FirstDay, NextDay, today
from api.schemas.admin import KeyRequest, KeyView, NewKeyView, TenantChange, TenantRequest, TenantView
from api.schemas.dead_letters import DeadLetterView, ReplayRequest, ReplayView
from api.schemas.errors import error_responses
from api.schemas.pages import Cursor, Limit, Page
from api.schemas.usage import UsageView
from api.services import Admin, Services
from api.validation import check_schema
from api.views import to_dead_letter_view
from services.operators import OperatorService
from services.quotas import TenantAdmin
from services.tenants import Operator, Principal
from services.usage import read_usage

__all__ = ["router"]

router = APIRouter(prefix="/v1/admin/tenants", tags=["admin"])

Name = Annotated[str, Path(min_length=1, max_length=100, description="Of the tenant.")]


@router.get("", summary="List tenants", responses=error_responses())
def list_tenants(
    services: Services, admin: Admin, limit: Limit = 50, cursor: Cursor = None
) -> Page[TenantView]:
    """List all tenants by name, with their limits and what counts against them now."""
    scope = CursorScope("admin/tenants", EVERYBODY)
    after = None if cursor is None else scope.decode(cursor).decode("utf-8", "replace")
    with services.engine.begin() as connection:
        found = TenantAdmin(connection, admin).page(after=after, limit=limit)
    following = scope.encode(found[-1].name.encode()) if len(found) == limit else None
    return Page(items=[to_tenant_view(row) for row in found], next_cursor=following)


@router.post(
    "",
    status_code=201,
    summary="Make a tenant",
    responses=error_responses(409, 413, 415),
    openapi_extra=json_request(TenantRequest, {"name": "research", "weight": 2, "max_running": 200}),
)
def create_tenant(
    services: Services, admin: Admin, response: Response, body: Annotated[bytes, Depends(small_json_body)]
) -> TenantView:
    """Make a tenant. It has no key yet: make one at its `keys`."""
    request = check_schema(TenantRequest, parse_json(body))
    limits = request.model_dump(by_alias=True, exclude_unset=True, exclude={"name"})
    with services.engine.begin() as connection:
        view = to_tenant_view(TenantAdmin(connection, admin).create(request.name, limits))
    response.headers["Location"] = f"/v1/admin/tenants/{request.name}"
    return view


@router.get("/{name}", summary="Look at a tenant", responses=error_responses(404))
def get_tenant(services: Services, admin: Admin, name: Name) -> TenantView:
    """Give one tenant with its limits and what counts against them now."""
    with services.engine.begin() as connection:
        return to_tenant_view(TenantAdmin(connection, admin).get(name))


@router.patch(
    "/{name}",
    summary="Set limits of a tenant",
    responses=error_responses(404, 409, 413, 415),
    openapi_extra=json_request(TenantChange, {"max_running": 50, "max_gpu": None}),
)
def change_tenant(
    services: Services, admin: Admin, name: Name, body: Annotated[bytes, Depends(small_json_body)]
) -> TenantView:
    """Set the limits that are named; null takes one away. What runs goes on when a limit is lowered."""
    request = check_schema(TenantChange, parse_json(body))
    limits = request.model_dump(by_alias=True, exclude_unset=True, exclude={"version"})
    with services.engine.begin() as connection:
        view = to_tenant_view(TenantAdmin(connection, admin).change(name, limits, version=request.version))
    services.wake.scheduler()
    return view


@router.post("/{name}/pause", summary="Pause a tenant", responses=error_responses(404))
def pause_tenant(services: Services, admin: Admin, name: Name) -> TenantView:
    """Start nothing of the tenant until it is resumed; what runs goes on, and it may submit."""
    return _pause(services, admin, name, paused=True)


@router.post("/{name}/resume", summary="Resume a tenant", responses=error_responses(404))
def resume_tenant(services: Services, admin: Admin, name: Name) -> TenantView:
    """Start the tenant's trials again."""
    view = _pause(services, admin, name, paused=False)
    services.wake.scheduler()
    return view


@router.get("/{name}/keys", summary="List a tenant's keys", responses=error_responses(404))
def list_tenant_keys(
    services: Services, admin: Admin, name: Name, limit: Limit = 50, cursor: Cursor = None
) -> Page[KeyView]:
    """List them, newest first, revoked ones too."""
    scope = CursorScope("admin/tenants/keys", EVERYBODY, name)
    with services.engine.begin() as connection:
        found = OperatorService(connection, admin).page_keys(
            name, before=scope.decode_id(cursor), limit=limit
        )
    following = scope.encode_id(found[-1].id) if len(found) == limit else None
    return Page(items=[to_key_view(row) for row in found], next_cursor=following)


@router.post(
    "/{name}/keys",
    status_code=201,
    summary="Make a key of a tenant",
    responses=error_responses(404, 413, 415),
    openapi_extra=json_request(KeyRequest, {"name": "ci"}),
)
def create_tenant_key(
    services: Services, admin: Admin, name: Name, body: Annotated[bytes, Depends(small_json_body)]
) -> NewKeyView:
    """Make a key that acts for the tenant and tell its text, this once. End it at `/v1/admin/keys/{id}/revoke`."""
    request = check_schema(KeyRequest, parse_json(body))
    with services.engine.begin() as connection:
        return to_new_key_view(*OperatorService(connection, admin).create_key(name, request.name))


@router.get("/{name}/usage", summary="What a tenant used", responses=error_responses(404))
def get_tenant_usage(
    services: Services, admin: Admin, name: Name, since: FirstDay = None, until: NextDay = None
) -> UsageView:
    """Sum the tenant's attempts by UTC day, as the tenant itself sees them."""
    with services.engine.begin() as connection:
        tenant_id = OperatorService(connection, admin).tenant_id(name)
        return to_usage_view(read_usage(connection, tenant_id, since=since, until=until, today=today()))


@router.get("/{name}/dead-letters", summary="List a tenant's dead letters", responses=error_responses(404))
def list_tenant_dead_letters(
    *,
    services: Services,
    admin: Admin,
    name: Name,
    state: State = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[DeadLetterView]:
    """List the trials that the installation could not bring to a verdict, newest first."""
    scope = CursorScope("admin/tenants/dead-letters", EVERYBODY, name, state)
    before = None if cursor is None else scope.decode_number(cursor)
    with services.engine.begin() as connection:
        caller = _act_for(OperatorService(connection, admin).tenant_id(name), admin)
        found = services.dead_letters(connection, caller).page(state, before=before, limit=limit)
    following = scope.encode_number(found[-1].n) if len(found) == limit else None
    return Page(items=[to_dead_letter_view(row) for row in found], next_cursor=following)


@router.post(
    "/{name}/dead-letters/{trial_id}/replay",
    status_code=202,
    response_model=ReplayView,
    summary="Run a dead trial of a tenant again",
    responses=error_responses(404, 409, 413, 415, 429)
    | {200: {"model": ReplayView, "description": "Replayed before."}},
    openapi_extra=json_request(ReplayRequest, {"force": False}, required=False),
)
def replay_tenant_dead_letter(
    *,
    services: Services,
    admin: Admin,
    name: Name,
    trial_id: UUID,
    response: Response,
    body: Annotated[bytes, Depends(small_json_body)],
) -> ReplayView:
    """Submit the dead trial's job again in the tenant's name, once unless force asks for one more."""
    request = check_schema(ReplayRequest, parse_json(body))
    with services.engine.begin() as connection:
        operators = OperatorService(connection, admin)
        caller = _act_for(operators.tenant_id(name), admin)
        replay = services.dead_letters(connection, caller).replay(trial_id, force=request.force)
        if replay.is_new:
            operators.record("replay_dead_letter", f"tenant:{name}", {"trial_id": str(trial_id)})
    if replay.is_new:
        services.wake.scheduler()
    else:
        response.status_code = 200
    return ReplayView(
        trial_id=replay.trial_id, job_id=replay.job_id, batch_id=replay.batch_id, replay_of=trial_id
    )


@router.post(
    "/{name}/dead-letters/{trial_id}/discard",
    summary="Put a dead letter of a tenant away",
    responses=error_responses(404, 409),
)
def discard_tenant_dead_letter(
    services: Services, admin: Admin, name: Name, trial_id: UUID
) -> DeadLetterView:
    """Note that nothing is to be done about it. Doing it again is no error."""
    with services.engine.begin() as connection:
        operators = OperatorService(connection, admin)
        caller = _act_for(operators.tenant_id(name), admin)
        row = services.dead_letters(connection, caller).discard(trial_id)
        operators.record("discard_dead_letter", f"tenant:{name}", {"trial_id": str(trial_id)})
    return to_dead_letter_view(row)


def _pause(services: Services, admin: Operator, name: str, *, paused: bool) -> TenantView:
    with services.engine.begin() as connection:
        return to_tenant_view(TenantAdmin(connection, admin).pause(name, paused=paused))


def _act_for(tenant_id: int, admin: Operator) -> Principal:
    """Use the tenant's own services, which touch that tenant's rows and no others."""
    return Principal(tenant_id, admin.key_id)
