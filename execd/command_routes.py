"""Routes that run and end commands."""

from typing import Final

from execd.commands import DEFAULT_GRACE_SECONDS, ExecutionTable
from execd.errors import CommandMissingError, InvalidQueryError
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
MAX_OFFSET: Final = 2**62


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
        offset = exchange.target.whole_number("offset", default=0, maximum=MAX_OFFSET)
        only_attaches = _only_attaches(exchange)

        def start() -> Execution:
            if only_attaches:
                message = f"no command was started with this {HEADER}, or it was forgotten since"
                raise CommandMissingError(message)
            return self._table.start(request)

        execution = start() if key is None else self._keys.get_or_start(key, document, start)
        if request.background:
            await _answer_background(exchange, execution)
        else:
            await stream_to_client(exchange, execution, strip_newlines=self._strip_newlines, offset=offset)

    async def interrupt(self, exchange: Exchange) -> None:
        """DELETE /command; answers when nothing of the command is left."""
        execution_id = exchange.target.required("id")
        grace_ms = exchange.target.whole_number(
            "grace_ms", default=round(DEFAULT_GRACE_SECONDS * 1000), maximum=MAX_GRACE_MS
        )
        await self._table.interrupt(execution_id, grace_seconds=grace_ms / 1000)
        await exchange.reply(200)


def _only_attaches(exchange: Exchange) -> bool:
    """Read the query parameter `attach`. Raises InvalidQueryError."""
    value = exchange.target.optional("attach")
    if value not in (None, "only"):
        raise InvalidQueryError("query parameter 'attach' can only be 'only'")
    return value is not None


async def _answer_background(exchange: Exchange, execution: Execution) -> None:
    """Say that it has been started, or why not; how it ends is asked elsewhere."""
    if execution.start_error is not None:
        last = terminal_frame(execution)
    else:
        last = frame("execution_complete", execution_time=0)
    await exchange.reply_chunked(200, STREAM_HEADERS, opening_frames(execution.id) + last)
