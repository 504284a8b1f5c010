from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Query, Response

from api.schemas.errors import error_responses
from api.services import Caller, Services
from services.batch_report import batch_report
from services.report_formats import ReportFormat

__all__ = ["router"]

router = APIRouter(prefix="/v1/batches", tags=["batches"])

_CONTENT = {
    "application/json": {"schema": {"type": "object"}},
    "application/jsonl": {"schema": {"type": "string"}},
    "application/xml": {"schema": {"type": "string"}},
}


@router.get(
    "/{batch_id}/report",
    summary="Report on a batch",
    response_class=Response,
    responses=error_responses(404, 410) | {200: {"description": "The report so far.", "content": _CONTENT}},
)
def get_report(
    services: Services,
    caller: Caller,
    batch_id: UUID,
    format: Annotated[  # noqa: A002 -- the word on the wire
        Literal["json", "jsonl", "junit"],
        Query(
            description="json: one object. jsonl: a line per trial, attempts inline. junit: XML for CI systems."
        ),
    ] = "json",
) -> Response:
    """Sum up a batch, finished or not: `complete` says which.

    Trials without a verdict are neither dropped nor graded 0 in silence: every estimate stands twice, over the trials
    with a verdict (`valid`) and over all.
    """
    with services.engine.begin() as connection:
        rendered = batch_report(connection, caller.tenant_id, batch_id, ReportFormat(format))
    return Response(rendered.body, media_type=rendered.media_type)
