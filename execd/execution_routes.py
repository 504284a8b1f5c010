"""Routes that look at commands, whether they run or have ended."""

import asyncio
import time
from signal import Signals
from typing import Any, Final

from execd.command_routes import MAX_OFFSET
from execd.commands import ExecutionTable
from execd.errors import CommandEndedError, InvalidBodyError, InvalidQueryError
from execd.event_streams import follow
from execd.exchange import Exchange
from execd.execution import EndReason, Execution
from execd.outputs import STREAMS
from execd.relay import end_texts
from execd.requests import parse_json, read_fields
from execd.router import RouteTable

__all__ = ["ExecutionRoutes", "status_document"]

CURSOR_HEADER: Final = "EXECD-COMMANDS-TAIL-CURSOR"
GAP_HEADER: Final = "EXECD-OUTPUT-GAP"
OFFSET_HEADER: Final = "EXECD-OUTPUT-OFFSET"
NEXT_OFFSET_HEADER: Final = "EXECD-OUTPUT-NEXT-OFFSET"
TOTAL_HEADER: Final = "EXECD-OUTPUT-TOTAL"

DEFAULT_WAIT_MS: Final = 30_000
MAX_WAIT_MS: Final = 600_000
DEFAULT_OUTPUT_BYTES: Final = 1024 * 1024
MAX_OUTPUT_BYTES: Final = 4 * 1024 * 1024
MAX_LISTED: Final = 1000
_LISTED_CONTENT_CHARACTERS: Final = 200


class ExecutionRoutes:
    """`/command/…` and `/commands`."""

    def __init__(self, table: ExecutionTable, *, strip_newlines: bool) -> None:
        """strip_newlines: output events without line ends, as of old."""
        self._table = table
        self._strip_newlines = strip_newlines

    @property
    def routes(self) -> RouteTable:
        """For the router."""
        return {
            "/commands": {"GET": self.list},
            "/command/status/{id}": {"GET": self.status},
            "/command/{id}/logs": {"GET": self.logs},
            "/command/{id}/output": {"GET": self.output},
            "/command/{id}/signal": {"POST": self.signal},
            "/command/{id}/stream": {"GET": self.stream},
            "/command/{id}/wait": {"GET": self.wait},
        }

    async def list(self, exchange: Exchange) -> None:
        """GET /commands."""
        limit = exchange.target.whole_number("limit", default=100, maximum=MAX_LISTED)
        everyone = self._table.all()
        listed = [
            status_document(execution, max_content=_LISTED_CONTENT_CHARACTERS)
            for execution in everyone[:limit]
        ]
        await exchange.reply_json(200, {"commands": listed, "total": len(everyone)})

    async def status(self, exchange: Exchange) -> None:
        """GET /command/status/{id}."""
        await exchange.reply_json(200, status_document(self._find(exchange)))

    async def wait(self, exchange: Exchange) -> None:
        """GET /command/{id}/wait; answers when the command has finished or the time is over."""
        execution = self._find(exchange)
        timeout_ms = exchange.target.whole_number("timeout_ms", default=DEFAULT_WAIT_MS, maximum=MAX_WAIT_MS)
        gone = asyncio.Event()
        exchange.on_disconnect(gone.set)
        waiting = [asyncio.create_task(event.wait()) for event in (execution.finished, gone)]
        try:
            await asyncio.wait(waiting, timeout=timeout_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
        await exchange.stop_watching()
        await exchange.reply_json(200, status_document(execution))

    async def logs(self, exchange: Exchange) -> None:
        """GET /command/{id}/logs: all bytes from the cursor on that are kept."""
        execution = self._find(exchange)
        if not execution.is_background:
            raise InvalidQueryError("id: only commands in the background have logs; see /command/{id}/output")
        log = execution.log
        total = log.total()
        cursor = exchange.target.whole_number("cursor", default=0, maximum=MAX_OFFSET)
        parts: list[bytes] = []
        gaps: list[str] = []
        position = min(cursor, total)
        while position < total:
            start, data = log.read_stream("stdout", position, max_bytes=total)
            start = start if data else total
            if start > position:
                gaps.append(f"{position}-{start}")
            parts.append(data)
            position = start + len(data)
        headers = [("content-type", "text/plain; charset=utf-8"), (CURSOR_HEADER, str(total))]
        if gaps:
            headers.append((GAP_HEADER, ",".join(gaps)))
        await exchange.reply(200, b"".join(parts), headers=headers)

    async def output(self, exchange: Exchange) -> None:
        """GET /command/{id}/output: bytes of one stream that follow each other."""
        execution = self._find(exchange)
        target = exchange.target
        stream = target.optional("stream") or "stdout"
        if stream not in STREAMS:
            raise InvalidQueryError(f"query parameter 'stream' is not one of {', '.join(STREAMS)}")
        offset = target.whole_number("offset", default=0, maximum=MAX_OFFSET)
        limit = target.whole_number("limit", default=DEFAULT_OUTPUT_BYTES, maximum=MAX_OUTPUT_BYTES)
        total = execution.log.total(stream)
        if offset > total:
            raise InvalidQueryError(f"query parameter 'offset' is beyond the {total} bytes there are")
        start, data = execution.log.read_stream(stream, offset, max_bytes=limit)
        if not data and limit:
            start = total  # nothing from here on is kept
        headers = [
            ("content-type", "application/octet-stream"),
            (OFFSET_HEADER, str(start)),
            (NEXT_OFFSET_HEADER, str(start + len(data))),
            (TOTAL_HEADER, str(total)),
        ]
        await exchange.reply(200, data, headers=headers)

    async def stream(self, exchange: Exchange) -> None:
        """GET /command/{id}/stream: events from an offset to the end."""
        execution = self._find(exchange)
        offset = exchange.target.whole_number("offset", default=0, maximum=MAX_OFFSET)
        if offset > execution.log.end:
            raise InvalidQueryError(
                f"query parameter 'offset' is beyond the {execution.log.end} bytes there are"
            )
        await follow(exchange, execution, offset=offset, strip_newlines=self._strip_newlines)

    async def signal(self, exchange: Exchange) -> None:
        """POST /command/{id}/signal."""
        document = parse_json(await exchange.read_body())
        fields = read_fields(document, {"signal": ("signal", _signal)})
        if "signal" not in fields:
            raise InvalidBodyError("signal: is missing")
        execution = self._find(exchange)
        if execution.exited.is_set():
            raise CommandEndedError("the command has ended")
        execution.send_signal(fields["signal"])
        await exchange.reply(200)

    def _find(self, exchange: Exchange) -> Execution:
        return self._table.find(exchange.path_values["id"])


def status_document(execution: Execution, *, max_content: int | None = None) -> dict[str, Any]:
    """Give what the protocol calls the status of a command, and what this daemon knows beyond it."""
    output = execution.log
    is_running = execution.finished_at_ms is None
    document: dict[str, Any] = {
        "id": execution.id,
        "content": execution.content[:max_content],
        "running": is_running,
        "exit_code": execution.exit_code,
        "started_at": _iso_time(execution.started_at_ms),
        "finished_at": None if execution.finished_at_ms is None else _iso_time(execution.finished_at_ms),
        "background": execution.is_background,
        "session_id": execution.session_id,
        "reason": None if is_running else execution.reason,
        "start_failure": execution.start_failure,
        "signal": execution.signal,
        "duration_ms": execution.duration_ms,
        "stdout_bytes": output.total("stdout"),
        "stderr_bytes": output.total("stderr"),
        "truncated": output.truncated,
        "dropped_bytes": output.dropped_bytes,
        "remaining_processes": execution.remaining_processes,
        "oom_killed": execution.oom_killed,
    }
    if not is_running and (execution.reason is not EndReason.EXIT or execution.exit_code != 0):
        document["error"] = ": ".join(end_texts(execution))
    return document


def _iso_time(milliseconds: int) -> str:
    seconds, rest = divmod(milliseconds, 1000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{rest:03}Z"


def _signal(name: str, value: Any) -> Signals:
    """Read TERM, SIGTERM or 15."""
    if isinstance(value, str):
        number = Signals.__members__.get(value if value.startswith("SIG") else f"SIG{value}")
    else:
        number = next((each for each in Signals if each == value and type(value) is int), None)
    if number is None:
        raise InvalidBodyError(f"{name}: not the name or number of a signal")
    return number
