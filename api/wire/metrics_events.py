"""What clients tell of their own creates. Source: section 1.19 of the protocol."""

from typing import Annotated

from fastapi import APIRouter, Depends, Response

from api.body import middle_json_body
from api.services import Caller, Services
from api.wire.bodies import read_body, read_json
from api.wire.errors import WIRE_TAG
from api.wire.schemas import MetricsEventRequest

__all__ = ["router"]

router = APIRouter(tags=[WIRE_TAG], include_in_schema=False)


@router.post("/metrics/events", status_code=204)
def note_metrics(
    services: Services, _caller: Caller, body: Annotated[bytes, Depends(middle_json_body)]
) -> Response:
    """Take what a client measured of a create."""
    event = read_body(MetricsEventRequest, read_json(body))
    outcome = "ok" if event.success else "failed"
    services.metrics.client_create_seconds.labels(outcome).observe(event.create_duration_ms / 1000)
    return Response(status_code=204)
