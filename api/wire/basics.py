"""Health and version, where official clients look for them."""

from fastapi import APIRouter

from api.routes.health import release
from api.wire.errors import WIRE_TAG

__all__ = ["router"]

router = APIRouter(tags=[WIRE_TAG], include_in_schema=False)


@router.get("/health")
def health() -> dict[str, str]:
    """Say that the API answers."""
    return {"status": "healthy"}


@router.get("/version")
def version() -> dict[str, str]:
    """Give the version of this server."""
    return {"version": release()}
