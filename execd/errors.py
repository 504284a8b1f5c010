"""Everything execd answers with an error body, and how operating system errors become one."""

import errno

__all__ = [
    "AlreadyConnectedError",
    "BackendError",
    "BackendMissingError",
    "BadRangeError",
    "CommandEndedError",
    "CommandMissingError",
    "ContextMissingError",
    "DiskFullError",
    "ExecdError",
    "FileMissingError",
    "IdempotencyKeyReusedError",
    "InvalidBodyError",
    "InvalidFileContentError",
    "InvalidFileError",
    "InvalidFileMetadataError",
    "InvalidQueryError",
    "MethodNotAllowedError",
    "MissingQueryError",
    "NotRunningError",
    "NotSupportedError",
    "OverloadedError",
    "PayloadTooLargeError",
    "PermissionDeniedError",
    "RequestTimeoutError",
    "RouteMissingError",
    "SessionBusyError",
    "TooManyCommandsError",
    "TooManyConnectionsError",
    "TooManySessionsError",
    "UnauthorizedError",
    "UnknownAccountError",
    "UpgradeError",
    "WebSocketVersionError",
    "error_from_os",
]


class ExecdError(Exception):
    """A failure with its place on the wire: status, and the body {"code", "message"}."""

    status = 500
    code = "RUNTIME_ERROR"

    @property
    def message(self) -> str:
        """Say what went wrong; free of bytes that JSON cannot carry."""
        return str(self).encode("utf-8", "replace").decode()

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Headers that the answer carries besides."""
        return []


class InvalidBodyError(ExecdError):
    """The JSON body is not what the route takes; the message names the field."""

    status, code = 400, "INVALID_REQUEST_BODY"


class MissingQueryError(ExecdError):
    """A query parameter the route needs is absent."""

    status, code = 400, "MISSING_QUERY"


class InvalidQueryError(ExecdError):
    """A query parameter or the request target cannot be read."""

    status, code = 400, "INVALID_QUERY"


class InvalidFileError(ExecdError):
    """The path cannot be served: empty, too long, or not a regular file."""

    status, code = 400, "INVALID_FILE"


class InvalidFileContentError(ExecdError):
    """The bytes of an upload are broken."""

    status, code = 400, "INVALID_FILE_CONTENT"


class InvalidFileMetadataError(ExecdError):
    """The metadata part of an upload is broken or has no file."""

    status, code = 400, "INVALID_FILE_METADATA"


class UpgradeError(ExecdError):
    """The request is no proper WebSocket handshake."""

    status, code = 400, "INVALID_UPGRADE"


class UnauthorizedError(ExecdError):
    """The access token is absent or wrong."""

    status, code = 401, "UNAUTHORIZED"


class PermissionDeniedError(ExecdError):
    """The sandbox user may not do this."""

    status, code = 403, "PERMISSION_DENIED"


class RouteMissingError(ExecdError):
    """No such route."""

    status, code = 404, "NOT_FOUND"


class FileMissingError(ExecdError):
    """No such file."""

    status, code = 404, "FILE_NOT_FOUND"


class CommandMissingError(ExecdError):
    """No command has this id."""

    status, code = 404, "COMMAND_NOT_FOUND"


class ContextMissingError(ExecdError):
    """No session has this id."""

    status, code = 404, "CONTEXT_NOT_FOUND"


class MethodNotAllowedError(ExecdError):
    """The route exists with other methods."""

    status, code = 405, "METHOD_NOT_ALLOWED"


class RequestTimeoutError(ExecdError):
    """The body came too slowly."""

    status, code = 408, "REQUEST_TIMEOUT"


class AlreadyConnectedError(ExecdError):
    """Someone else is connected to the terminal."""

    status, code = 409, "ALREADY_CONNECTED"


class CommandEndedError(ExecdError):
    """The command has ended already."""

    status, code = 409, "COMMAND_NOT_RUNNING"


class IdempotencyKeyReusedError(ExecdError):
    """The same Idempotency-Key came with another request."""

    status, code = 409, "IDEMPOTENCY_KEY_REUSED"


class SessionBusyError(ExecdError):
    """The session runs a command already."""

    status, code = 409, "SESSION_BUSY"


class PayloadTooLargeError(ExecdError):
    """The body or a part of it passes its limit."""

    status, code = 413, "PAYLOAD_TOO_LARGE"


class BadRangeError(ExecdError):
    """The Range header cannot be satisfied. size: bytes of the file."""

    status, code = 416, "UNKNOWN"

    def __init__(self, header: str, size: int) -> None:
        super().__init__(f"range {header!r} does not fit a file of {size} bytes")
        self.size = size

    @property
    def headers(self) -> list[tuple[str, str]]:
        """The size that a range must fit."""
        return [("content-range", f"bytes */{self.size}")]


class WebSocketVersionError(ExecdError):
    """A version of the WebSocket protocol that is not spoken here."""

    status, code = 426, "INVALID_UPGRADE"

    @property
    def headers(self) -> list[tuple[str, str]]:
        """The version that is."""
        return [("sec-websocket-version", "13")]


class TooManyCommandsError(ExecdError):
    """As many commands run as may."""

    status, code = 429, "TOO_MANY_COMMANDS"

    @property
    def headers(self) -> list[tuple[str, str]]:
        """When to try again: most commands are short."""
        return [("retry-after", "1")]


class TooManyConnectionsError(ExecdError):
    """As many connections are open as may be."""

    status, code = 429, "TOO_MANY_CONNECTIONS"

    @property
    def headers(self) -> list[tuple[str, str]]:
        """When to try again: most are of short commands."""
        return [("retry-after", "1")]


class TooManySessionsError(ExecdError):
    """There are as many sessions as may be."""

    status, code = 429, "TOO_MANY_SESSIONS"


class NotRunningError(ExecdError):
    """No running command has this id."""

    status, code = 500, "RUNTIME_ERROR"


class UnknownAccountError(ExecdError):
    """No user or group has this name; the message says which of them."""

    status, code = 500, "RUNTIME_ERROR"


class NotSupportedError(ExecdError):
    """The protocol knows this, this daemon does not."""

    status, code = 501, "NOT_SUPPORTED"


class BackendError(ExecdError):
    """The program on the port gave no answer that can be read."""

    status, code = 502, "BACKEND_RESPONSE_FAILED"


class BackendMissingError(BackendError):
    """Nothing on the port takes connections."""

    status, code = 502, "BACKEND_CONNECTION_FAILED"


class OverloadedError(ExecdError):
    """Too many terminal sessions."""

    status, code = 503, "OVERLOADED"


class DiskFullError(ExecdError):
    """No space, no quota or no inode is left. Nothing was changed."""

    status, code = 507, "DISK_FULL"


_BY_ERRNO: dict[int, type[ExecdError]] = {
    errno.ENOENT: FileMissingError,
    errno.EACCES: PermissionDeniedError,
    errno.EPERM: PermissionDeniedError,
    errno.EROFS: PermissionDeniedError,
    errno.ENOTDIR: InvalidFileError,
    errno.EISDIR: InvalidFileError,
    errno.ENAMETOOLONG: InvalidFileError,
    errno.ELOOP: InvalidFileError,
    errno.EINVAL: InvalidFileError,
    errno.ENXIO: InvalidFileError,
    errno.EAGAIN: InvalidFileError,
    errno.ENOSPC: DiskFullError,
    errno.EDQUOT: DiskFullError,
    errno.EFBIG: PayloadTooLargeError,
}


def error_from_os(error: OSError, subject: str) -> ExecdError:
    """Translate an operating system error about `subject` (a path, a field). Unknown ones become RUNTIME_ERROR."""
    kind = _BY_ERRNO.get(error.errno or 0, ExecdError)
    return kind(f"{subject}: {error.strerror or error}")
