"""How many writes a stream is: one for a command that is short, and a beginning that does not wait for output."""

import asyncio
from collections.abc import Callable
from typing import Any

from execd.event_streams import stream_to_client
from execd.execution import Execution
from execd.limits import Limits
from execd.outputs import OutputBudget, OutputLog
from execd.requests import CommandRequest


class RecordingExchange:
    """Stands for a client that takes everything; writes: what it was sent, in which call."""

    limits = Limits()

    def __init__(self) -> None:
        self.is_started = False
        self.writes: list[tuple[str, bytes]] = []
        self.was_written = asyncio.Event()

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """Never."""

    async def start(self, _status: int, _headers: Any, *, first: bytes) -> None:
        self.is_started = True
        self._note("start", first)

    async def send(self, data: bytes, **_: Any) -> None:
        self._note("send", data)

    async def finish(self, last: bytes) -> None:
        self._note("finish", last)

    async def reply_chunked(self, _status: int, _headers: Any, body: bytes) -> None:
        self._note("whole", body)

    def _note(self, call: str, data: bytes) -> None:
        self.writes.append((call, data))
        self.was_written.set()


def new_execution() -> Execution:
    return Execution("1", CommandRequest(argv=("x",)), OutputLog(OutputBudget()))


def ends(execution: Execution) -> None:
    execution.status = 0
    execution.exited.set()
    execution.finish()


def test_a_command_that_ends_at_once_without_output_is_one_write() -> None:
    async def check() -> None:
        execution, exchange = new_execution(), RecordingExchange()
        asyncio.get_running_loop().call_soon(ends, execution)
        await stream_to_client(exchange, execution, strip_newlines=False)  # type: ignore[arg-type]
        ((call, data),) = exchange.writes
        assert call == "whole"
        kinds = [line.split(b'"')[3] for line in data.splitlines() if line]
        assert kinds == [b"init", b"ping", b"execution_complete"]

    asyncio.run(check())


def test_output_takes_the_beginning_along_and_the_end_comes_with_the_last_write() -> None:
    async def check() -> None:
        execution, exchange = new_execution(), RecordingExchange()
        loop = asyncio.get_running_loop()
        loop.call_soon(execution.log.write, "stdout", b"a\n")
        stream = loop.create_task(
            stream_to_client(exchange, execution, strip_newlines=False)  # type: ignore[arg-type]
        )
        await exchange.was_written.wait()
        ends(execution)
        await stream
        (first, data), (second, rest) = exchange.writes
        assert (first, second) == ("start", "finish")
        assert data.startswith(b'{"type":"init"')
        assert b'"text":"a\\n"' in data
        assert rest.startswith(b'{"type":"execution_complete"')

    asyncio.run(check())


def test_a_silent_command_says_that_it_runs() -> None:
    async def check() -> None:
        execution, exchange = new_execution(), RecordingExchange()
        stream = asyncio.get_running_loop().create_task(
            stream_to_client(exchange, execution, strip_newlines=False)  # type: ignore[arg-type]
        )
        async with asyncio.timeout(20):
            await exchange.was_written.wait()
        assert exchange.writes[0][0] == "start"
        assert exchange.writes[0][1].startswith(b'{"type":"init"')
        ends(execution)
        await stream

    asyncio.run(check())


class StalledExchange(RecordingExchange):
    """A client that takes the beginning and then nothing, until its connection is dropped."""

    limits = Limits(stream_end_seconds=0.01)

    def __init__(self) -> None:
        super().__init__()
        self.was_dropped = asyncio.Event()

    async def send(self, data: bytes, *, on_wait: Callable[[], None], **_: Any) -> None:
        on_wait()
        await self.was_dropped.wait()
        raise ConnectionResetError

    def abort(self) -> None:
        self.was_dropped.set()


def test_a_client_that_does_not_fetch_the_rest_is_dropped_after_the_end() -> None:
    async def check() -> None:
        execution, exchange = new_execution(), StalledExchange()
        execution.log.write("stdout", b"a\n")
        stream = asyncio.get_running_loop().create_task(
            stream_to_client(exchange, execution, strip_newlines=False)  # type: ignore[arg-type]
        )
        await exchange.was_written.wait()
        execution.log.write("stdout", b"b\n")
        await asyncio.sleep(0)
        execution.status = 0
        execution.exited.set()
        async with asyncio.timeout(20):
            await exchange.was_dropped.wait()
            await asyncio.wait([stream])
        assert isinstance(stream.exception(), ConnectionResetError)

    asyncio.run(check())
