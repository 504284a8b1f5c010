"""Routes of bash sessions."""

from execd.event_streams import stream_to_client
from execd.exchange import Exchange
from execd.relay import opening_frames
from execd.requests import parse_json, session_cwd, session_run_request
from execd.router import RouteTable
from execd.sessions import SessionTable

__all__ = ["SessionRoutes"]


class SessionRoutes:
    """`/session`."""

    def __init__(self, table: SessionTable, *, strip_newlines: bool) -> None:
        """strip_newlines: output events without line ends, as of old."""
        self._table = table
        self._strip_newlines = strip_newlines

    @property
    def routes(self) -> RouteTable:
        """For the router."""
        return {
            "/session": {"POST": self.create},
            "/session/{id}": {"DELETE": self.delete},
            "/session/{id}/run": {"POST": self.run},
        }

    async def create(self, exchange: Exchange) -> None:
        """POST /session."""
        body = await exchange.read_body()
        session_id = self._table.create(session_cwd(parse_json(body)) if body else None)
        await exchange.reply_json(200, {"session_id": session_id})

    async def run(self, exchange: Exchange) -> None:
        """POST /session/{id}/run."""
        session_id = exchange.path_values["id"]
        request = session_run_request(parse_json(await exchange.read_body()))
        execution = self._table.run(session_id, request)
        await stream_to_client(
            exchange,
            execution,
            strip_newlines=self._strip_newlines,
            opening=opening_frames(session_id, execution_id=execution.id),
        )

    async def delete(self, exchange: Exchange) -> None:
        """DELETE /session/{id}; answers when what it ran is gone."""
        await self._table.delete(exchange.path_values["id"])
        await exchange.reply(200)
