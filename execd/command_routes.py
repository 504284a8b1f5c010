"""Routes that run and end commands."""

import asyncio
from typing import Final

from execd.commands import DEFAULT_GRACE_SECONDS, EndReason, Execution, ExecutionTable, new_execution_id
from execd.connection import Exchange
from execd.errors import NotSupportedError
from execd.launch import StartFailedError
from execd.relay import DetachedOutputs, Relay, opening_frames, start_failure_frames
from execd.requests import parse_command_request
from execd.router import RouteTable

__all__ = ["CommandRoutes"]

MAX_GRACE_MS: Final = 60_000

_STREAM_HEADERS: Final = (
    ("content-type", "text/event-stream"),
    ("cache-control", "no-cache"),
    ("connection", "keep-alive"),
    ("x-accel-buffering", "no"),
)


class CommandRoutes:
    """`/command`."""

    def __init__(self, table: ExecutionTable, *, strip_newlines: bool) -> None:
        """strip_newlines: output events without line ends, as of old."""
        self._table = table
        self._strip_newlines = strip_newlines
        self._detached = DetachedOutputs()

    @property
    def routes(self) -> RouteTable:
        """For the router."""
        return {"/command": {"POST": self.run, "DELETE": self.interrupt}}

    def close(self) -> None:
        """Let go of what background processes write."""
        self._detached.close()

    async def run(self, exchange: Exchange) -> None:
        """POST /command."""
        request = parse_command_request(await exchange.read_body())
        if request.background:
            raise NotSupportedError("background: not supported by this version of execd")
        execution_id = new_execution_id()
        try:
            execution = self._table.start(request, execution_id=execution_id)
        except StartFailedError as error:
            frames = opening_frames(execution_id) + start_failure_frames(str(error))
            await exchange.start(200, _STREAM_HEADERS, first=frames)
            await exchange.finish()
            return
        try:
            await self._stream(exchange, execution)
        finally:
            await asyncio.shield(self._table.close(execution))

    async def interrupt(self, exchange: Exchange) -> None:
        """DELETE /command; answers when nothing of the command is left."""
        execution_id = exchange.target.required("id")
        grace_ms = exchange.target.whole_number(
            "grace_ms", default=round(DEFAULT_GRACE_SECONDS * 1000), maximum=MAX_GRACE_MS
        )
        await self._table.interrupt(execution_id, grace_seconds=grace_ms / 1000)
        await exchange.reply(200)

    async def _stream(self, exchange: Exchange, execution: Execution) -> None:
        def abandon() -> None:
            if not execution.exited.is_set():
                execution.kill(EndReason.KILLED_BY_CLIENT)

        async def send(frames: bytes) -> None:
            if not exchange.is_started:
                await exchange.start(200, _STREAM_HEADERS, first=frames)
            else:
                # However slow the reader: its program waits with it, and the command's own timeout still holds.
                await exchange.send(frames, patient=True)

        async def abort_when_overdue() -> None:
            await execution.exited.wait()
            await asyncio.sleep(exchange.limits.stream_end_seconds)
            exchange.abort()

        relay = Relay(execution, send, self._detached, strip_newlines=self._strip_newlines)
        exchange.on_disconnect(abandon)
        overdue = asyncio.create_task(abort_when_overdue())
        try:
            await relay.run()
            await exchange.finish()
        finally:
            overdue.cancel()
