"""The one shape of all errors."""

from typing import Any

from pydantic import Field

from api.schemas.base import ResponseSchema

__all__ = ["ErrorDetail", "ErrorView", "error_responses"]


class ErrorDetail(ResponseSchema):
    """One thing that is wrong."""

    field: str = Field(description="Place in the request.", examples=["jobs[3].steps[0].timeout"])
    message: str


class ErrorView(ResponseSchema):
    """Every answer with a status of 400 or more."""

    code: str = Field(description="Stable; programs decide by it.", examples=["invalid_request"])
    message: str = Field(description="For people.")
    field: str | None = Field(description="The place in the request it is about, if there is one.")
    request_id: str = Field(description="The log has the request under this id.")
    details: list[ErrorDetail] = Field(description="All that is wrong with the request, at most 50.")


_MEANINGS = {
    401: "No valid API key.",
    403: "The key is of the other role: a tenant's where an operator's is needed, or the other way round.",
    404: "It does not exist, or belongs to another tenant.",
    408: "The body stopped in the middle.",
    409: "The state of the thing, or an Idempotency-Key used for another body, does not allow it.",
    410: "Archived: the history has what is left of it.",
    413: "Larger than the limit the message names.",
    415: "Of a kind, or compressed in a way, that is not read here.",
    422: "Something in the request can never work; every problem is listed.",
    429: "A limit is reached; try again after Retry-After seconds.",
    503: "The database or Redis is away; try again after Retry-After seconds.",
}


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Document these statuses of a route, and those that every route with a key can give."""
    return {
        status: {"model": ErrorView, "description": _MEANINGS[status]}
        for status in sorted({401, 403, 422, 503, *statuses})
    }
