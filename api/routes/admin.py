from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Path, Query

from api.admin_views import (
    to_admin_event_view,
    to_key_view,
    to_leader_view,
    to_new_key_view,
    to_node_view,
    to_queue_view,
)
from api.body import small_json_body
from api.cursors import CursorScope
from api.json_body import parse_json
from api.openapi_parts import json_request
from api.schemas.admin import (
    AdminEventView,
    KeyRequest,
    KeyView,
    LeaderView,
    NewKeyView,
    NodeView,
    QueueRequest,
    QueueView,
)
from api.schemas.errors import error_responses
from api.schemas.pages import Cursor, Limit, Page
from api.services import Admin, Services
from api.validation import check_schema
from services.operators import OperatorService

__all__ = ["router"]

router = APIRouter(prefix="/v1/admin", tags=["admin"])

EVERYBODY = 0
"""In cursors, instead of a tenant: operators see all of them."""

QueueName = Annotated[str, Path(min_length=1, max_length=63)]


@router.get("/keys", summary="List operators' keys", responses=error_responses())
def list_admin_keys(
    services: Services, admin: Admin, limit: Limit = 50, cursor: Cursor = None
) -> Page[KeyView]:
    """List them, newest first. A tenant's keys are listed under the tenant."""
    scope = CursorScope("admin/keys", EVERYBODY)
    with services.engine.begin() as connection:
        found = OperatorService(connection, admin).page_keys(
            None, before=scope.decode_id(cursor), limit=limit
        )
    following = scope.encode_id(found[-1].id) if len(found) == limit else None
    return Page(items=[to_key_view(row) for row in found], next_cursor=following)


@router.post(
    "/keys",
    status_code=201,
    summary="Make an operator's key",
    responses=error_responses(413, 415),
    openapi_extra=json_request(KeyRequest, {"name": "night shift"}),
)
def create_admin_key(
    services: Services, admin: Admin, body: Annotated[bytes, Depends(small_json_body)]
) -> NewKeyView:
    """Make a key of role admin and tell its text, this once."""
    request = check_schema(KeyRequest, parse_json(body))
    with services.engine.begin() as connection:
        return to_new_key_view(*OperatorService(connection, admin).create_key(None, request.name))


@router.post("/keys/{key_id}/revoke", summary="End a key", responses=error_responses(404, 409))
def revoke_key(services: Services, admin: Admin, key_id: UUID) -> KeyView:
    """End any key; API processes follow within five seconds. Doing it again is no error."""
    with services.engine.begin() as connection:
        return to_key_view(OperatorService(connection, admin).revoke_key(key_id))


@router.get("/nodes", summary="List nodes", responses=error_responses())
def list_nodes(services: Services, admin: Admin, limit: Limit = 50, cursor: Cursor = None) -> Page[NodeView]:
    """List all machines that ever offered to run sandboxes, with what of each is in use."""
    scope = CursorScope("admin/nodes", EVERYBODY)
    with services.engine.begin() as connection:
        found = OperatorService(connection, admin).page_nodes(after=scope.decode_id(cursor), limit=limit)
    following = scope.encode_id(found[-1].id) if len(found) == limit else None
    return Page(items=[to_node_view(row) for row in found], next_cursor=following)


@router.get("/nodes/{node_id}", summary="Look at a node", responses=error_responses(404))
def get_node(services: Services, admin: Admin, node_id: UUID) -> NodeView:
    """Give one machine with what of it is in use."""
    with services.engine.begin() as connection:
        return to_node_view(OperatorService(connection, admin).get_node(node_id))


@router.post("/nodes/{node_id}/cordon", summary="Give a node nothing new", responses=error_responses(404))
def cordon_node(services: Services, admin: Admin, node_id: UUID) -> NodeView:
    """Place nothing new on it; what runs there goes on."""
    with services.engine.begin() as connection:
        return to_node_view(OperatorService(connection, admin).cordon(node_id))


@router.post("/nodes/{node_id}/drain", summary="Empty a node", responses=error_responses(404))
def drain_node(services: Services, admin: Admin, node_id: UUID) -> NodeView:
    """Place nothing new on it, and let it give what runs back to the queue, free of charge."""
    with services.engine.begin() as connection:
        return to_node_view(OperatorService(connection, admin).cordon(node_id, drain=True))


@router.post(
    "/nodes/{node_id}/uncordon", summary="Let a node take work again", responses=error_responses(404)
)
def uncordon_node(services: Services, admin: Admin, node_id: UUID) -> NodeView:
    """Take back a cordon or a drain."""
    with services.engine.begin() as connection:
        view = to_node_view(OperatorService(connection, admin).uncordon(node_id))
    services.wake.scheduler()
    return view


@router.get("/queues", summary="List named queues", responses=error_responses())
def list_queues(
    services: Services, admin: Admin, limit: Limit = 50, cursor: Cursor = None
) -> Page[QueueView]:
    """List the queues that were given a cap or paused; a job may name any other, too."""
    scope = CursorScope("admin/queues", EVERYBODY)
    after = None if cursor is None else scope.decode(cursor).decode("utf-8", "replace")
    with services.engine.begin() as connection:
        found = OperatorService(connection, admin).page_queues(after=after, limit=limit)
    following = scope.encode(found[-1].name.encode()) if len(found) == limit else None
    return Page(items=[to_queue_view(row) for row in found], next_cursor=following)


@router.get("/queues/{name}", summary="Look at a named queue", responses=error_responses(404))
def get_queue(services: Services, admin: Admin, name: QueueName) -> QueueView:
    """Give one queue."""
    with services.engine.begin() as connection:
        return to_queue_view(OperatorService(connection, admin).get_queue(name))


@router.put(
    "/queues/{name}",
    summary="Set the cap of a named queue",
    responses=error_responses(413, 415),
    openapi_extra=json_request(QueueRequest, {"max_running": 20}),
)
def put_queue(
    services: Services, admin: Admin, name: QueueName, body: Annotated[bytes, Depends(small_json_body)]
) -> QueueView:
    """Bound how many attempts of the queue run at a time. What runs goes on when the cap is lowered."""
    request = check_schema(QueueRequest, parse_json(body))
    with services.engine.begin() as connection:
        view = to_queue_view(
            OperatorService(connection, admin).put_queue(name, max_running=request.max_running)
        )
    services.wake.scheduler()
    return view


@router.post("/queues/{name}/pause", summary="Pause a named queue", responses=error_responses())
def pause_queue(services: Services, admin: Admin, name: QueueName) -> QueueView:
    """Start nothing of it until it is resumed; what runs goes on."""
    with services.engine.begin() as connection:
        return to_queue_view(OperatorService(connection, admin).pause_queue(name, paused=True))


@router.post("/queues/{name}/resume", summary="Resume a named queue", responses=error_responses(404))
def resume_queue(services: Services, admin: Admin, name: QueueName) -> QueueView:
    """Start its trials again."""
    with services.engine.begin() as connection:
        view = to_queue_view(OperatorService(connection, admin).pause_queue(name, paused=False))
    services.wake.scheduler()
    return view


@router.get("/leader", summary="Which scheduler leads", responses=error_responses(404))
def get_leader(services: Services, admin: Admin) -> LeaderView:
    """Name the scheduler that began to lead last. Whether it still does, its metrics tell."""
    with services.engine.begin() as connection:
        return to_leader_view(OperatorService(connection, admin).leader())


@router.get("/events", summary="What operators changed", responses=error_responses())
def list_events(
    services: Services,
    admin: Admin,
    subject: Annotated[
        str | None, Query(min_length=1, max_length=200, description="E.g. `tenant:acme` or `queue:gpu`.")
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[AdminEventView]:
    """List the changes made through this API, newest first."""
    scope = CursorScope("admin/events", EVERYBODY, subject)
    before = None if cursor is None else scope.decode_number(cursor)
    with services.engine.begin() as connection:
        found = OperatorService(connection, admin).page_events(subject=subject, before=before, limit=limit)
    following = scope.encode_number(found[-1].id) if len(found) == limit else None
    return Page(items=[to_admin_event_view(row) for row in found], next_cursor=following)
