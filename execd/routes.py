"""Which request goes where, and how errors are answered."""

import logging
from _operator import _compare_digest as compare_digest  # `hmac` has the same one and loads OpenSSL with it
from typing import Final

from execd.errors import ExecdError, UnauthorizedError
from execd.exchange import Exchange
from execd.router import LateRoutes, Router, RouteTable

__all__ = ["Routes"]

log = logging.getLogger("execd.routes")

TOKEN_HEADER: Final = "X-EXECD-ACCESS-TOKEN"  # noqa: S105  # a name, not a secret


class Routes:
    """All routes of the daemon; `handle` is what the server calls."""

    def __init__(self, *tables: RouteTable, late: LateRoutes, access_token: str | None) -> None:
        """late: see `Router`. access_token: None lets everyone in."""
        self._access_token = access_token
        self.router = Router({"/ping": {"GET": _ping}}, *tables, late=late)

    async def handle(self, exchange: Exchange) -> None:
        """Serve one request. Raises only when the connection is to be dropped."""
        try:
            self._authorise(exchange)
            await self.router.find(exchange)(exchange)
        except ExecdError as error:
            await self._reply_error(exchange, error)
        except (ConnectionError, EOFError, TimeoutError):
            raise
        except Exception:  # the top of a request: one request's defect must not end the daemon
            log.exception("request_failed method=%s", exchange.method)
            await self._reply_error(exchange, ExecdError("internal error"))

    def _authorise(self, exchange: Exchange) -> None:
        expected = self._access_token
        if expected is None:
            return
        given = exchange.header(TOKEN_HEADER) or ""
        if not compare_digest(given.encode("latin-1"), expected.encode("utf-8", "surrogateescape")):
            raise UnauthorizedError(f"Unauthorized: invalid or missing header {TOKEN_HEADER}")

    async def _reply_error(self, exchange: Exchange, error: ExecdError) -> None:
        if exchange.is_started:
            # Half a response cannot be taken back: the broken end tells the client.
            raise ConnectionAbortedError(error.message)
        document = {"code": error.code, "message": error.message}
        if isinstance(error, UnauthorizedError):
            document["error"] = error.message
        await exchange.reply_json(error.status, document, headers=error.headers)


async def _ping(exchange: Exchange) -> None:
    await exchange.reply(200)
