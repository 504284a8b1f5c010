"""What can go wrong, by the `code` that the server answers; the tree is the server's own.

`ConnectionLostError`, `ProtocolError` and `WaitTimeoutError` arise on this side.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = [
    "ConflictError",
    "ConnectionLostError",
    "ErrorDetail",
    "ForbiddenError",
    "IdempotencyConflictError",
    "InvalidRequestError",
    "NotFoundError",
    "NotSupportedError",
    "PayloadTooLargeError",
    "ProtocolError",
    "QuotaExceededError",
    "SandmillError",
    "TooManyFailuresError",
    "UnauthenticatedError",
    "UnavailableError",
    "WaitTimeoutError",
    "error_class",
]


@dataclass(frozen=True, slots=True)
class ErrorDetail:
    """One of the problems of a request. field: as `jobs[3].steps[0].timeout`."""

    field: str
    message: str


class SandmillError(Exception):
    """Root of all errors of this package.

    code: stable, for programs. retryable: the same call may work later. status: of HTTP, None if there was no answer.
    field: what the message is about. details: all problems of the request. request_id: finds it in the server's log.
    retry_after_seconds: what the server asked for, if anything.
    """

    code = "internal_error"
    retryable = False

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        status: int | None = None,
        field: str | None = None,
        request_id: str | None = None,
        details: Sequence[ErrorDetail] = (),
    ) -> None:
        """Keep the facts. code: when it is more precise than that of the class."""
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.status = status
        self.field = field
        self.request_id = request_id
        self.details = tuple(details)
        self.retry_after_seconds: float | None = None

    def __str__(self) -> str:
        """Give one line with the field and how many problems more there are."""
        about = f"{self.field}: " if self.field and not self.message.startswith(self.field) else ""
        more = f" (and {len(self.details) - 1} more)" if len(self.details) > 1 else ""
        return f"{about}{self.message}{more}"


class InvalidRequestError(SandmillError):
    """What was sent can never work; `details` names every field that is wrong."""

    code = "invalid_request"


class PayloadTooLargeError(InvalidRequestError):
    """The body is larger than the server takes."""

    code = "payload_too_large"


class UnauthenticatedError(SandmillError):
    """There is no API key, or it is unknown or revoked."""

    code = "unauthenticated"


class ForbiddenError(SandmillError):
    """The key is valid but not allowed to do this."""

    code = "forbidden"


class NotFoundError(SandmillError):
    """The thing does not exist, or is not yours."""

    code = "not_found"


class ArchivedError(NotFoundError):
    """It is over for so long that only the history has something of it (`Client.get_archived_batch`)."""

    code = "archived"


class ConflictError(SandmillError):
    """The state of the thing does not allow the call."""

    code = "conflict"


class IdempotencyConflictError(ConflictError):
    """The Idempotency-Key was used before with another body."""

    code = "idempotency_conflict"


class QuotaExceededError(SandmillError):
    """A limit of the tenant is reached; the same call may work later."""

    code = "quota_exceeded"
    retryable = True


class TooManyFailuresError(QuotaExceededError):
    """So many calls with a bad key came from this address that it has to wait."""

    code = "too_many_failures"
    # Asking again by itself with the same bad key is what the server defends itself against.
    retryable = False


class NotSupportedError(SandmillError):
    """Known, but not done by this server."""

    code = "not_supported"


class UnavailableError(SandmillError):
    """The server, or something it stands on, is away; the same call may work soon."""

    code = "unavailable"
    retryable = True


class ConnectionLostError(UnavailableError):
    """No answer came: the address is wrong, the server is down, or the connection broke."""

    code = "connection_lost"


class ProtocolError(SandmillError):
    """The answer is not one of Sandmill's: most likely the address is that of something else."""

    code = "protocol_error"


class WaitTimeoutError(SandmillError):
    """What was waited for has not ended in time; it goes on all the same."""

    code = "wait_timeout"
    retryable = True


_BY_STATUS: dict[int, type[SandmillError]] = {
    401: UnauthenticatedError,
    403: ForbiddenError,
    404: NotFoundError,
    408: UnavailableError,
    409: ConflictError,
    413: PayloadTooLargeError,
    429: QuotaExceededError,
    502: UnavailableError,
    503: UnavailableError,
    504: UnavailableError,
}


def error_class(code: str, status: int) -> type[SandmillError]:
    """Find the class of a code; for one this release does not know, the family of the HTTP status."""
    found = _BY_CODE.get(code) or _BY_STATUS.get(status)
    if found is not None:
        return found
    return InvalidRequestError if 400 <= status < 500 else SandmillError


def _descendants(root: type[SandmillError]) -> Iterator[type[SandmillError]]:
    for child in root.__subclasses__():
        yield child
        yield from _descendants(child)


_BY_CODE = {found.code: found for found in _descendants(SandmillError)}
