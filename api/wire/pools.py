"""Routes of the lifecycle API about warm pools. Source: section 1.12 of the protocol."""

from typing import Annotated

from fastapi import APIRouter, Depends, Response
from fastapi.responses import JSONResponse

from api.body import middle_json_body
from api.services import Caller, Services
from api.wire.bodies import read_body, read_json
from api.wire.errors import WIRE_TAG
from api.wire.pool_requests import check_pool_name, to_capacity, to_pool_template
from api.wire.requests import default_resources
from api.wire.schemas import ChangePoolRequest, CreatePoolRequest, PoolListView
from api.wire.views import to_pool_view

__all__ = ["router"]

router = APIRouter(tags=[WIRE_TAG], include_in_schema=False)


@router.post("/pools", status_code=201)
def create_pool(
    services: Services, caller: Caller, body: Annotated[bytes, Depends(middle_json_body)]
) -> Response:
    """Make one. Its members come in the background."""
    request = read_body(CreatePoolRequest, read_json(body))
    name = check_pool_name(request.name)
    template = to_pool_template(request.template, default_resources(services.caps))
    with services.engine.begin() as connection:
        made = services.pools(connection, caller).create(name, template, to_capacity(request.capacity_spec))
    services.wake.pools()
    return JSONResponse(
        to_pool_view(made).to_json(), status_code=201, headers={"Location": f"/v1/pools/{name}"}
    )


@router.get("/pools")
def list_pools(services: Services, caller: Caller) -> Response:
    """List all of the tenant's pools, by name."""
    with services.engine.begin() as connection:
        pools = services.pools(connection, caller).all()
    return JSONResponse(PoolListView(items=[to_pool_view(pool) for pool in pools]).to_json())


@router.get("/pools/{name}")
def get_pool(services: Services, caller: Caller, name: str) -> Response:
    """Look at one, and at how many members it has."""
    with services.engine.begin() as connection:
        pool = services.pools(connection, caller).get(name)
    return JSONResponse(to_pool_view(pool).to_json())


@router.put("/pools/{name}")
def change_pool(
    services: Services, caller: Caller, name: str, body: Annotated[bytes, Depends(middle_json_body)]
) -> Response:
    """Resize one, or give it another template."""
    request = read_body(ChangePoolRequest, read_json(body))
    template = None
    if request.template is not None:
        template = to_pool_template(request.template, default_resources(services.caps))
    capacity = None if request.capacity_spec is None else to_capacity(request.capacity_spec)
    with services.engine.begin() as connection:
        pool = services.pools(connection, caller).change(name, capacity=capacity, template=template)
    services.wake.pools()
    return JSONResponse(to_pool_view(pool).to_json())


@router.delete("/pools/{name}", status_code=204)
def delete_pool(services: Services, caller: Caller, name: str) -> Response:
    """End a pool and its free members. Sandboxes that were taken from it live on."""
    with services.engine.begin() as connection:
        nodes = services.pools(connection, caller).delete(name)
    services.wake.cancelled(nodes)
    return Response(status_code=204)
