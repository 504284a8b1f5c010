"""What happens around every request: its id, its log line, its metrics, and the last catch."""

import re
import time
from uuid import uuid4

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import last_response
from api.metrics import ApiMetrics
from api.wire.origins import mark_for_pages
from core.logging import get_logger
from core.tracing import span, tracing_on

__all__ = ["RequestMiddleware", "bind_request"]

log = get_logger(__name__)

_SANE_ID = re.compile(r"[!-~]{1,128}")
"""Printable ASCII without spaces, so that neither a log nor a terminal takes harm by it."""
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_QUIET_ROUTES = frozenset({"/healthz", "/readyz", "/metrics"})


class RequestMiddleware:
    """Plain ASGI, so that streams pass through it untouched."""

    def __init__(self, app: ASGIApp, *, metrics: ApiMetrics) -> None:
        """app: the next layer."""
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection of any kind."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = bind_request(scope)
        started = time.monotonic()
        status = 0
        is_stream = False

        async def send_marked(message: Message) -> None:
            nonlocal status, is_stream
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = message.setdefault("headers", [])
                headers += [(b"x-request-id", request_id.encode()), (b"x-content-type-options", b"nosniff")]
                mark_for_pages(scope, message)
                is_stream = any(
                    name == b"content-type" and b"event-stream" in value for name, value in headers
                )
            await send(message)

        try:
            with span("http.request", parent=_traceparent(scope), kind="server") as current:
                try:
                    await self._app(scope, receive, send_marked)
                finally:
                    if current is not None:
                        route, method = _route(scope), _method(scope)
                        current.update_name(f"{method} {route}")
                        current.set_attributes(
                            {
                                "http.request.method": method,
                                "http.route": route,
                                "http.response.status_code": status,
                                "sandmill.request.id": request_id,
                            }
                        )
        except Exception as error:  # the loop's top: whatever escapes becomes one log line and a plain answer
            log.exception("http_request_failed", error=type(error).__name__)
            if status:
                raise
            await last_response(scope, request_id, error)(scope, receive, send_marked)
        finally:
            self._record(scope, status, time.monotonic() - started, is_stream=is_stream)

    def _record(self, scope: Scope, status: int, seconds: float, *, is_stream: bool) -> None:
        route, method = _route(scope), _method(scope)
        self._metrics.requests.labels(route, method, str(status)).inc()
        if not is_stream:
            self._metrics.request_seconds.labels(route, method).observe(seconds)
        write = log.debug if route in _QUIET_ROUTES else log.info
        write(
            "http_request",
            method=method,
            route=route,
            status=status,
            duration_ms=round(seconds * 1000, 1),
            tenant_id=scope["state"].get("tenant_id"),
        )


def bind_request(scope: Scope) -> str:
    """Give a request its id, which its log lines bear from here on."""
    request_id = _request_id(scope)
    scope.setdefault("state", {})["request_id"] = request_id
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(request_id=request_id)
    return request_id


def _route(scope: Scope) -> str:
    return str(getattr(scope.get("route"), "path", "unmatched"))


def _method(scope: Scope) -> str:
    return scope["method"] if scope["method"] in _METHODS else "other"


def _traceparent(scope: Scope) -> str | None:
    if not tracing_on():
        return None
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == b"traceparent"), None)


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            text = value.decode("latin-1").strip()
            if _SANE_ID.fullmatch(text):
                return str(text)
    return uuid4().hex
