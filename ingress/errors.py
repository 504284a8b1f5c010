"""What the ingress answers when it is not the sandbox that answers."""

import json

__all__ = ["IngressError", "NotServedError", "RouteError"]


_CODES = {
    401: "MISSING_OR_INVALID_SECURE_ACCESS",
    404: "DOCKER::SANDBOX_NOT_FOUND",
    502: "BACKEND_CONNECTION_FAILED",
    503: "SANDBOX::UNAVAILABLE",
    504: "BACKEND_TIMEOUT",
}


class IngressError(Exception):
    """An answer in words. code: for the server proxy, whose clients read codes of the protocol's catalogue.

    retry_after_seconds: set where the same request may work soon.
    """

    def __init__(
        self, status: int, message: str, *, code: str | None = None, retry_after_seconds: int | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code or _CODES.get(status, "SANDBOX::INVALID_PARAMETER")
        self.retry_after_seconds = retry_after_seconds

    @property
    def content_type(self) -> bytes:
        """What `body` is."""
        return b"text/plain; charset=utf-8"

    @property
    def body(self) -> bytes:
        """What is sent."""
        return f"OpenSandbox Ingress: {self.message}\n".encode()


class RouteError(IngressError):
    """The request names no sandbox and port."""

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(status, message)


class NotServedError(IngressError):
    """The port is one that clients ask for, and nothing answers there in this release."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(501, message, code=code)

    @property
    def content_type(self) -> bytes:
        """What `body` is."""
        return b"application/json"

    @property
    def body(self) -> bytes:
        """What is sent: the envelope that clients of this port read."""
        return json.dumps({"code": self.code, "message": self.message}).encode()
