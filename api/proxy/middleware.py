"""The server proxy: a port of a live sandbox by way of the API, before all that is made for answers of our own.

Nothing here reads a body, waits for a deadline or holds a thread; the way on is the ingress of the sandbox's node.
"""

import asyncio
import time
from contextlib import AbstractAsyncContextManager
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from api.errors import translate
from api.lingering import Lingering
from api.middleware import bind_request
from api.proxy.backends import Backends
from api.proxy.calls import PROXY_ROUTE, Call, ProxyError, admit, find_call
from api.proxy.http import HttpRelay
from api.proxy.key_watch import while_key_is_good
from api.proxy.websocket import WebSocketRelay
from api.services import ApiServices
from api.wire.errors import wire_response
from core.errors import SandmillError, UnauthenticatedError, UnavailableError
from core.logging import get_logger
from services.sandbox_directory import DatabaseDirectory, SandboxTarget

__all__ = ["ServerProxy", "ServerProxyMiddleware"]

log = get_logger(__name__)

_ANSWER_SECONDS: Final = 180.0
"""Of the wire protocol: from the end of a request to the beginning of its answer."""

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_REASON_BYTES: Final = 123
"""Of a close frame."""


class ServerProxy:
    """What lives as long as the application."""

    def __init__(self, services: ApiServices, *, answer_seconds: float = _ANSWER_SECONDS) -> None:
        """Connects to nothing yet."""
        self.services = services
        self.answer_seconds = answer_seconds
        self.directory = DatabaseDirectory(services.engine)
        self.backends = Backends()

    def start(self) -> None:
        """Begin to hear of changes; must be called in the event loop that serves."""
        self.directory.listen(self.services.settings.redis_url.get_secret_value())

    async def aclose(self) -> None:
        """End all."""
        await self.directory.aclose()
        self.backends.close()

    async def admit(self, scope: Scope, call: Call) -> SandboxTarget:
        """Find the sandbox of a caller who may reach it. Raises SandmillError, ProxyError."""
        try:
            async with asyncio.timeout(self.services.settings.request_deadline_seconds):
                return await admit(scope, call, self.services, self.directory)
        except TimeoutError as error:
            raise UnavailableError("the database does not answer: try again soon") from error

    def while_allowed(self, scope: Scope) -> AbstractAsyncContextManager[None]:
        """Cut off what runs within soon after the key of an admitted call is revoked. Raises UnauthenticatedError."""
        return while_key_is_good(self.services.authenticator, scope["state"]["api_key"])


class ServerProxyMiddleware:
    """Plain ASGI, the outermost layer."""

    def __init__(self, app: ASGIApp, *, proxy: ServerProxy) -> None:
        """app: gets all that is not for the proxy."""
        self._app = app
        self._proxy = proxy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection of any kind."""
        call = find_call(scope) if scope["type"] in ("http", "websocket") else None
        if call is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._serve_http(scope, receive, send, call)
        else:
            await self._serve_websocket(scope, receive, send, call)

    async def _serve_http(self, scope: Scope, receive: Receive, send: Send, call: Call) -> None:
        bind_request(scope)
        started = time.monotonic()
        client = Lingering(scope, receive, send)
        relay = HttpRelay(
            scope,
            client.receive,
            client.send_while_read,
            answer_seconds=self._proxy.answer_seconds,
        )
        status = 0
        try:
            _ = call.port
            target = await self._proxy.admit(scope, call)
            async with self._proxy.while_allowed(scope):
                await relay.run(call, target, self._proxy.backends)
            status = relay.status
        except Exception as error:
            if relay.is_started and isinstance(error, UnauthenticatedError):
                status = relay.status
                return  # without its end the server below cuts the answer off
            if relay.is_started:
                raise
            response = _response(scope, error)
            status = response.status_code
            await response(scope, receive, client.send)
        finally:
            self._record(scope, status, time.monotonic() - started)

    async def _serve_websocket(self, scope: Scope, receive: Receive, send: Send, call: Call) -> None:
        bind_request(scope)
        started = time.monotonic()
        relay = WebSocketRelay(scope, receive, send, answer_seconds=self._proxy.answer_seconds)
        status = 101
        try:
            _ = call.port
            target = await self._proxy.admit(scope, call)
            async with self._proxy.while_allowed(scope):
                await relay.run(call, target, self._proxy.backends)
        except Exception as error:  # noqa: BLE001 -- as above
            status, code, reason = _close_of(error)
            if not relay.is_accepted:
                # Refused before, a client would see neither the code nor the reason.
                await send({"type": "websocket.accept"})
            await send({"type": "websocket.close", "code": code, "reason": reason})
        finally:
            self._record(scope, status, time.monotonic() - started)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        method = scope.get("method", "GET")
        method = method if method in _METHODS else "other"
        self._proxy.services.metrics.requests.labels(PROXY_ROUTE, method, str(status)).inc()
        log.info(
            "http_request",
            method=method,
            route=PROXY_ROUTE,
            status=status,
            duration_ms=round(seconds * 1000, 1),
            tenant_id=scope["state"].get("tenant_id"),
        )


def _response(scope: Scope, error: Exception) -> JSONResponse:
    """Write what became of a request that was not answered by its program."""
    request_id = scope["state"]["request_id"]
    if isinstance(error, ProxyError):
        headers = {"Retry-After": "1"} if error.is_retryable else {}
        response = JSONResponse(
            {"code": error.code, "message": error.message}, status_code=error.status, headers=headers
        )
    else:
        response = wire_response(Request(scope), _known(error))
    response.headers["x-request-id"] = request_id
    return response


def _close_of(error: Exception) -> tuple[int, int, str]:
    """Give the status for the record, and the code and reason of the close."""
    if isinstance(error, ProxyError):
        status, code, message = error.status, error.close_code, error.message
    else:
        known = _known(error)
        status, code, message = 403, 1008, known.message
        if isinstance(known, UnavailableError) or type(known) is SandmillError:
            status, code = 503, 1011
    return status, code, message.encode()[:_REASON_BYTES].decode("utf-8", "ignore")


def _known(error: Exception) -> SandmillError:
    known = translate(error)
    if known is None:
        log.error("http_request_failed", error=type(error).__name__, exc_info=error)
        return SandmillError("something went wrong here; the log has it under this id")
    return known
