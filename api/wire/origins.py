"""Pages of any origin may call the lifecycle API: what they may do, a key decides, and no cookie ever counts."""

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.wire.errors import is_wire_path

__all__ = ["OriginMiddleware", "mark_for_pages"]

_EXPOSED = ("OPEN-SANDBOX-ORIGIN", "X-Request-ID", "Retry-After", "Location")


class OriginMiddleware:
    """Answers browsers that ask beforehand whether they may call."""

    def __init__(self, app: ASGIApp) -> None:
        """app: the next layer."""
        self._app = app
        self._cors = CORSMiddleware(app, allow_origins=["*"], allow_methods=["*"], allow_headers=["*"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection of any kind."""
        if scope["type"] == "http" and scope["method"] == "OPTIONS" and is_wire_path(scope["path"]):
            headers = Headers(scope=scope)
            if "origin" in headers and "access-control-request-method" in headers:
                await self._cors.preflight_response(request_headers=headers)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def mark_for_pages(scope: Scope, message: Message) -> None:
    """Let a page read this start of an answer, whatever came of its call. What a relayed answer says itself stays."""
    if any(name == b"origin" for name, _ in scope["headers"]) and is_wire_path(scope["path"]):
        headers = MutableHeaders(scope=message)
        headers.setdefault("Access-Control-Allow-Origin", "*")
        headers.setdefault("Access-Control-Expose-Headers", ", ".join(_EXPOSED))
