"""Routes that run and end commands."""

from typing import Final

from execd.commands import DEFAULT_GRACE_SECONDS, ExecutionTable
from execd.event_streams import STREAM_HEADERS, stream_to_client
from execd.events import frame
from execd.exchange import Exchange
from execd.execution import Execution
from execd.idempotency import HEADER, IdempotencyKeys
from execd.relay import opening_frames, terminal_frame
from execd.requests import command_request, parse_json
from execd.router import RouteTable

__all__ = ["CommandRoutes"]

MAX_GRACE_MS: Final = 60_000


class CommandRoutes:
    """`/command`."""

    def __init__(self, table: ExecutionTable, *, strip_newlines: bool) -> None:
        """strip_newlines: output events without line ends, as of old."""
        self._table = table
        self._strip_newlines = strip_newlines
        self._keys = IdempotencyKeys()
        table.on_forget(self._keys.forget)

    @property
    def routes(self) -> RouteTable:
        """For the router."""
        return {"/command": {"POST": self.run, "DELETE": self.interrupt}}

    async def run(self, exchange: Exchange) -> None:
        """POST /command."""
        document = parse_json(await exchange.read_body())
        request = command_request(document)
        key = exchange.header(HEADER)
        if key is None:
            execution = self._table.start(request)
        else:
            execution = self._keys.get_or_start(key, document, lambda: self._table.start(request))
        if request.background:
            await _answer_background(exchange, execution)
        else:
            await stream_to_client(exchange, execution, strip_newlines=self._strip_newlines)

    async def interrupt(self, exchange: Exchange) -> None:
        """DELETE /command; answers when nothing of the command is left."""
        execution_id = exchange.target.required("id")
        grace_ms = exchange.target.whole_number(
            "grace_ms", default=round(DEFAULT_GRACE_SECONDS * 1000), maximum=MAX_GRACE_MS
        )
        await self._table.interrupt(execution_id, grace_seconds=grace_ms / 1000)
        await exchange.reply(200)


async def _answer_background(exchange: Exchange, execution: Execution) -> None:
    """Say that it has been started, or why not; how it ends is asked elsewhere."""
    if execution.start_error is not None:
        last = terminal_frame(execution)
    else:
        last = frame("execution_complete", execution_time=0)
    await exchange.start(200, STREAM_HEADERS, first=opening_frames(execution.id) + last)
    await exchange.finish()
