"""Routes of terminal sessions.

All behind them is loaded with the first session: that takes a tenth of the time in which execd starts.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

from execd.accounts import Accounts
from execd.envs import CommandEnvironment
from execd.errors import ContextMissingError
from execd.exchange import Exchange
from execd.families import Families
from execd.reaper import Reaper
from execd.requests import parse_pty_request
from execd.router import RouteTable

if TYPE_CHECKING:
    from execd.pty_session import PtySession
    from execd.pty_table import PtyTable

__all__ = ["PtyRoutes"]


class PtyRoutes:
    """`/pty`."""

    def __init__(
        self,
        environment: CommandEnvironment,
        accounts: Accounts,
        reaper: Reaper,
        families: Families,
        *,
        allowed_origins: Collection[str] | None,
    ) -> None:
        """allowed_origins: whose pages may connect besides the host's own; None asks for no origin."""
        self._machinery = (environment, accounts, reaper, families)
        self._allowed_origins = allowed_origins
        self._table: PtyTable | None = None

    @property
    def routes(self) -> RouteTable:
        """For the router."""
        return {
            "/pty": {"POST": self.create},
            "/pty/{id}": {"GET": self.status, "DELETE": self.delete},
            "/pty/{id}/ws": {"GET": self.connect},
        }

    def close(self) -> None:
        """Let go of all sessions."""
        if self._table is not None:
            self._table.close()

    async def create(self, exchange: Exchange) -> None:
        """POST /pty."""
        request = parse_pty_request(await exchange.read_body())
        if self._table is None:
            # The one place where all of it is loaded, wsproto included.
            from execd.pty_session import Machinery  # noqa: PLC0415
            from execd.pty_table import PtyTable  # noqa: PLC0415

            self._table = PtyTable(Machinery(*self._machinery))
        session = self._table.create(request)
        await exchange.reply_json(201, {"session_id": session.id})

    async def status(self, exchange: Exchange) -> None:
        """GET /pty/{id}."""
        _table, session = self._find(exchange)
        document = {
            "session_id": session.id,
            "running": session.is_running,
            "output_offset": session.ring.end,
            "mode": session.mode,
            "connected": session.client is not None,
            "exit_code": session.exit_code,
            "signal": session.signal,
        }
        await exchange.reply_json(200, document)

    async def delete(self, exchange: Exchange) -> None:
        """DELETE /pty/{id}; answers when nothing of the program is left."""
        table, session = self._find(exchange)
        await table.delete(session)
        await exchange.reply(200)

    async def connect(self, exchange: Exchange) -> None:
        """GET /pty/{id}/ws."""
        table, session = self._find(exchange)
        from execd.pty_connection import serve_client  # noqa: PLC0415  # loaded with the table

        await serve_client(exchange, session, table, self._allowed_origins)

    def _find(self, exchange: Exchange) -> "tuple[PtyTable, PtySession]":
        session = self._table.find(exchange.path_values["id"]) if self._table is not None else None
        if self._table is None or session is None:
            raise ContextMissingError("no terminal session has this id")
        return self._table, session
