"""How the lifecycle API spells errors: `{code, message}` with the codes of the protocol's catalogue."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import Scope

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

__all__ = ["WIRE_TAG", "WireSchemaError", "is_wire", "is_wire_path", "wire_response"]

WIRE_TAG = "sandboxes"
"""Of every route of the lifecycle API."""

_PATHS = re.compile(
    r"(/v1)?/(sandboxes|snapshots|pools|templates)(/.*)?|/v1/metrics/events|(/v1)?/(health|version)",
    re.DOTALL,
)
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
_UNKNOWN = "GENERAL::UNKNOWN_ERROR"
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
_FIELD_PART = re.compile(r"\[(\d+)\]|([^.\[\]]+)")


class WireSchemaError(InvalidRequestError):
    """The body or a parameter is not of the form that the protocol gives it."""

    def __init__(self, details: Sequence[Mapping[str, Any]]) -> None:
        """details: `loc`, `msg` and `type` of each fault, not empty; loc begins with body, query or path."""
        self.details = [
            {"loc": _printable_place(item["loc"]), "msg": _printable(item["msg"]), "type": item["type"]}
            for item in details[:50]
        ]
        first = self.details[0]
        place = ".".join(str(part) for part in first["loc"][1:]) or str(first["loc"][0])
        super().__init__(f"{place}: {first['msg']}", field=place)


def is_wire(scope: Scope) -> bool:
    """Whether a request is one of the lifecycle API: by its route, or by its path if it has reached none."""
    route = scope.get("route")
    if route is None:
        return is_wire_path(scope["path"])
    return WIRE_TAG in getattr(route, "tags", ())


def is_wire_path(path: str) -> bool:
    """Whether a path lies where the lifecycle API is."""
    return _PATHS.fullmatch(path) is not None


def wire_response(request: Request, error: Exception) -> JSONResponse:
    """Write an error as official clients read it. What is not ours to tell becomes a plain 500."""
    if isinstance(error, HTTPException):
        return _plain_refusal(request, error)
    if isinstance(error, RequestValidationError):
        error = WireSchemaError(error.errors())
    if not isinstance(error, SandmillError):
        message = "something went wrong here; the log has it under this request's id"
        return JSONResponse({"code": _UNKNOWN, "message": message}, status_code=500)
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
    if isinstance(error, WireSchemaError):
        status, body["detail"] = 422, error.details
    elif isinstance(error, InvalidFieldsError):
        body["detail"] = [_detail(problem) for problem in error.problems]
    return JSONResponse(body, status_code=status, headers=_HEADERS.get(status))


def _plain_refusal(request: Request, error: HTTPException) -> JSONResponse:
    """Say that there is no such path, or no such method of it."""
    path = _printable(request.url.path)[:300]
    messages = {
        404: f"there is no {path} here",
        405: f"{path} does not take the method {_printable(request.method)[:20]}",
    }
    message = messages.get(error.status_code, _printable(str(error.detail)))
    headers = dict(error.headers or {})
    return JSONResponse(
        {"code": _UNKNOWN, "message": message}, status_code=error.status_code, headers=headers
    )


def _key_error(request: Request) -> tuple[str, str]:
    has_key = getattr(request.state, "has_key", False)  # the server proxy knows one more place for it
    if has_key or _KEY_HEADER in request.headers or "authorization" in request.headers:
        return "INVALID_API_KEY", "the API key is not valid: create one with 'sandmill-server key create'"
    return "MISSING_API_KEY", "send an API key in the header OPEN-SANDBOX-API-KEY"


def _detail(problem: Problem) -> dict[str, Any]:
    place = [int(number) if number else name for number, name in _FIELD_PART.findall(problem.field)]
    return {
        "loc": ["body", *_printable_place(place if problem.field != "body" else [])],
        "msg": _printable(problem.message),
        "type": "value_error",
    }


def _printable_place(place: Sequence[str | int]) -> list[str | int]:
    return [part if isinstance(part, int) else _printable(str(part))[:200] for part in place]


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "\ufffd" for char in text[:2000])
