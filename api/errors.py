"""The one place where errors meet HTTP: a status per family, one shape for all answers."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy.exc
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from redis.exceptions import RedisError
from starlette.exceptions import HTTPException
from starlette.types import Scope

from api.schemas.errors import ErrorDetail, ErrorView
from api.schemas.problems import to_problem
from api.wire.errors import is_wire, wire_response
from core.errors import (
    ArchivedError,
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

__all__ = [
    "BodyTimeoutError",
    "TooManyFailuresError",
    "UnsupportedMediaError",
    "error_response",
    "install_error_handlers",
    "last_response",
    "translate",
]


class UnsupportedMediaError(InvalidRequestError):
    """The body is of a kind, or compressed in a way, that is not read here."""

    code = "unsupported_media_type"


class BodyTimeoutError(InvalidRequestError):
    """The client stopped sending in the middle of its body."""

    code = "request_timeout"
    retryable = True


class TooManyFailuresError(QuotaExceededError):
    """So many calls with a bad key came from this address that it has to wait."""

    code = "too_many_failures"


_STATUS: dict[type[SandmillError], int] = {
    SandmillError: 500,
    InvalidRequestError: 422,
    PayloadTooLargeError: 413,
    UnsupportedMediaError: 415,
    BodyTimeoutError: 408,
    UnauthenticatedError: 401,
    ForbiddenError: 403,
    NotFoundError: 404,
    ArchivedError: 410,
    ConflictError: 409,
    NotSupportedError: 422,
    QuotaExceededError: 429,
    UnavailableError: 503,
}
_HEADERS = {
    401: {"WWW-Authenticate": "Bearer"},
    429: {"Retry-After": "10"},
    503: {"Retry-After": "2"},
}
_CODES = {404: "not_found", 405: "method_not_allowed", 406: "not_acceptable"}
_READ_ONLY = "25006"
"""SQLSTATE of a write to a standby: what is seen while a failover is under way."""


def install_error_handlers(app: FastAPI) -> None:
    """Answer every known error in our shape. What is not known is caught by the middleware."""
    app.add_exception_handler(SandmillError, _handle)
    app.add_exception_handler(HTTPException, _handle)
    app.add_exception_handler(RequestValidationError, _handle)
    app.add_exception_handler(sqlalchemy.exc.SQLAlchemyError, _handle)
    app.add_exception_handler(RedisError, _handle)


def translate(error: Exception) -> SandmillError | None:
    """Turn the errors of drivers that mean "try again soon" into ours; None for all others."""
    if isinstance(error, SandmillError):
        return error
    if isinstance(
        error, sqlalchemy.exc.OperationalError | sqlalchemy.exc.InterfaceError | sqlalchemy.exc.TimeoutError
    ):
        return UnavailableError("the database does not answer: try again soon")
    if isinstance(error, sqlalchemy.exc.DBAPIError):
        is_read_only = getattr(error.orig, "sqlstate", None) == _READ_ONLY
        if error.connection_invalidated or is_read_only:
            return UnavailableError("the database is being replaced: try again soon")
    if isinstance(error, RedisError):
        return UnavailableError("Redis does not answer: try again soon")
    return None


def error_response(request_id: str, error: Exception) -> JSONResponse:
    """Write any error as an answer. What is not ours to tell becomes a plain 500."""
    if isinstance(error, HTTPException):
        return _respond(
            request_id,
            error.status_code,
            _code_of(error),
            str(error.detail),
            headers=dict(error.headers or {}),
        )
    if isinstance(error, RequestValidationError):
        error = InvalidFieldsError([_parameter_problem(item) for item in error.errors()])
    known = translate(error)
    if known is None:
        return _respond(
            request_id, 500, "internal_error", "something went wrong here; the log has it under this id"
        )
    status = next(_STATUS[family] for family in type(known).__mro__ if family in _STATUS)
    problems = list(known.problems) if isinstance(known, InvalidFieldsError) else []
    return _respond(request_id, status, known.code, known.message, field=known.field, problems=problems)


def last_response(scope: Scope, request_id: str, error: Exception) -> JSONResponse:
    """Write an error that reached no handler, in the shape of the API that was called."""
    if is_wire(scope):
        return wire_response(Request(scope), translate(error) or error)
    return error_response(request_id, error)


def _handle(request: Request, error: Exception) -> JSONResponse:
    known = translate(error)
    if not isinstance(error, HTTPException | RequestValidationError) and known is None:
        raise error
    if is_wire(request.scope):
        return wire_response(request, known or error)
    return error_response(request.state.request_id, error)


def _respond(
    request_id: str,
    status: int,
    code: str,
    message: str,
    *,
    field: str | None = None,
    problems: Sequence[Problem] = (),
    headers: dict[str, str] | None = None,
) -> JSONResponse:
    view = ErrorView(
        code=code,
        message=_printable(message),
        field=None if field is None else _printable(field),
        request_id=request_id,
        details=[ErrorDetail(field=_printable(p.field), message=_printable(p.message)) for p in problems],
    )
    return JSONResponse(
        view.model_dump(mode="json"),
        status_code=status,
        headers={**_HEADERS.get(status, {}), **(headers or {})},
    )


def _printable(text: str) -> str:
    """Make text that may hold a client's words fit for UTF-8 and for a terminal."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text[:2000])


def _code_of(error: HTTPException) -> str:
    return _CODES.get(error.status_code, "invalid_request")


def _parameter_problem(error: Any) -> Problem:
    """Name a parameter of path, query or headers by itself, without the place FastAPI puts before it."""
    if len(error["loc"]) > 1:
        error = {**error, "loc": error["loc"][1:]}
    return to_problem(error)
