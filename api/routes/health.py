from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from api.errors import translate
from api.schemas.base import ResponseSchema
from api.schemas.errors import ErrorView
from api.services import Services
from core.errors import UnavailableError

__all__ = ["release", "router"]

router = APIRouter(tags=["operation"])

_API = Path(__file__).parents[1]
_LIFECYCLE_PATHS = (_API / "lifecycle.yaml", _API.parent / "specs" / "lifecycle.yaml")
"""Where it is in an installed package and in the image, and where it is in the source."""


class HealthView(ResponseSchema):
    """All is well."""

    status: str = "ok"


class VersionView(ResponseSchema):
    """What runs here."""

    name: str
    version: str


@router.get("/healthz", summary="Is the process alive?")
def healthz() -> HealthView:
    """Answer without asking anybody else."""
    return HealthView()


@router.get(
    "/readyz",
    summary="Can it serve?",
    responses={503: {"model": ErrorView, "description": "The database or Redis is away."}},
)
def readyz(services: Services) -> HealthView:
    """Ask the database and Redis."""
    with services.engine.begin() as connection:
        connection.exec_driver_sql("SELECT 1 FROM tenants LIMIT 1")
    try:
        services.redis.ping()
    except Exception as error:
        raise translate(error) or UnavailableError("Redis does not answer: try again soon") from error
    return HealthView()


@router.get("/version", summary="What runs here?")
def get_version() -> VersionView:
    """Name the release."""
    return VersionView(name="sandmill-server", version=release())


def release() -> str:
    """Give the version of this server."""
    try:
        return version("sandmill-server")
    except PackageNotFoundError:
        return "0+source"


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Text format."}
    },
)
def metrics(services: Services) -> Response:
    """Give the metrics of this process and of the queue."""
    return Response(generate_latest(services.metrics.registry), media_type=CONTENT_TYPE_LATEST)


@router.get("/openapi.json", include_in_schema=False)
def get_document(request: Request) -> JSONResponse:
    """Give the description of the API, which does not describe itself."""
    return JSONResponse(request.app.openapi())


@router.get("/v1/lifecycle.yaml", include_in_schema=False)
def get_lifecycle_document() -> Response:
    """Give the description of the routes of live sandboxes, which are not in the other one."""
    return Response(_lifecycle_document(), media_type="application/yaml")


@cache
def _lifecycle_document() -> bytes:
    return next(path for path in _LIFECYCLE_PATHS if path.is_file()).read_bytes()
