"""Templates of the lifecycle API, which are for another kind of cluster: refused in its own words."""

from fastapi import APIRouter

from api.services import Caller
from api.wire.errors import WIRE_TAG
from services.sandbox_errors import WireUnsupportedError

__all__ = ["router"]

router = APIRouter(tags=[WIRE_TAG], include_in_schema=False)


@router.api_route("/templates", methods=["GET", "POST"])
@router.api_route("/templates/{template_id}", methods=["GET", "DELETE"])
def refuse(_caller: Caller) -> None:
    """Refuse."""
    raise WireUnsupportedError(
        "FSB::API_NOT_SUPPORTED", "there are no templates here: make sandboxes from an image or a snapshot"
    )
