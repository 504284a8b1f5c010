"""How the lifecycle API spells errors: `{code, message}` with the codes of the protocol's catalogue."""

from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from core.errors import (
    ConflictError,
    ForbiddenError,
    InvalidRequestError,
    NotFoundError,
    NotSupportedError,
    PayloadTooLargeError,
    QuotaExceededError,
    SandmillError,
    UnauthenticatedError,
    UnavailableError,
)
from services.problems import InvalidFieldsError, Problem

__all__ = ["WIRE_TAG", "is_wire", "to_fields_error", "wire_response"]

WIRE_TAG = "sandboxes"
"""Of every route of the lifecycle API."""

_STATUS: dict[type[SandmillError], int] = {
    SandmillError: 500,
    InvalidFieldsError: 422,
    InvalidRequestError: 400,
    PayloadTooLargeError: 413,
    UnauthenticatedError: 401,
    ForbiddenError: 403,
    NotFoundError: 404,
    ConflictError: 409,
    NotSupportedError: 501,
    QuotaExceededError: 429,
    UnavailableError: 503,
}
_CODES: dict[type[SandmillError], str] = {
    SandmillError: "SANDBOX::INTERNAL_ERROR",
    InvalidRequestError: "SANDBOX::INVALID_PARAMETER",
    ForbiddenError: "FORBIDDEN",
    NotFoundError: "DOCKER::SANDBOX_NOT_FOUND",
    ConflictError: "SANDBOX::CONFLICT",
    NotSupportedError: "SANDBOX::API_NOT_SUPPORTED",
    QuotaExceededError: "SANDBOX::QUOTA_EXCEEDED",
    UnavailableError: "SANDBOX::UNAVAILABLE",
}
_HEADERS = {429: {"Retry-After": "2"}, 503: {"Retry-After": "2"}}
_KEY_HEADER = "open-sandbox-api-key"


def is_wire(request: Request) -> bool:
    """Whether the request has reached a route of the lifecycle API."""
    return WIRE_TAG in getattr(request.scope.get("route"), "tags", ())


def wire_response(request: Request, error: SandmillError) -> JSONResponse:
    """Write an error as official clients read it."""
    families = type(error).__mro__
    status = next(_STATUS[family] for family in families if family in _STATUS)
    code = error.code
    if isinstance(error, UnauthenticatedError):
        code, message = _key_error(request)
    else:
        message = _printable(error.message)
        if not code.isupper():
            code = next(_CODES[family] for family in families if family in _CODES)
    body: dict[str, Any] = {"code": code, "message": message}
    if isinstance(error, InvalidFieldsError):
        body["detail"] = [_detail(problem) for problem in error.problems]
    return JSONResponse(body, status_code=status, headers=_HEADERS.get(status))


def to_fields_error(error: RequestValidationError) -> InvalidFieldsError:
    """Turn what FastAPI found in path and query into our shape."""
    return InvalidFieldsError(
        [Problem(".".join(str(part) for part in item["loc"][1:]), item["msg"]) for item in error.errors()]
    )


def _key_error(request: Request) -> tuple[str, str]:
    if _KEY_HEADER in request.headers or "authorization" in request.headers:
        return "INVALID_API_KEY", "the API key is not valid: create one with 'sandmill-server key create'"
    return "MISSING_API_KEY", "send an API key in the header OPEN-SANDBOX-API-KEY"


def _detail(problem: Problem) -> dict[str, Any]:
    return {
        "loc": ["body", *_printable(problem.field).split(".")],
        "msg": _printable(problem.message),
        "type": "value_error",
    }


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "\ufffd" for char in text[:2000])
