import asyncio
import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from execd.detached import DetachedOutputs
from execd.outputs import OutputBudget, OutputLog
from execd.pump import QUIET_SECONDS, WINDOW_BYTES, Pace, Pump

Pipe = tuple[int, int]


@dataclass
class Reader:
    """A client that has passed on nothing yet."""

    position: int = 0
    window_bytes: int = WINDOW_BYTES


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    """A pipe; the pump closes its read end."""
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    yield read_end, write_end
    os.close(write_end)


def pump_of(fd: int, log: OutputLog, detached: DetachedOutputs, reader: Reader | None) -> Pump:
    return Pump({"stdout": fd}, log, pace=Pace(), detached=detached, waits_for=lambda: reader)


def text_of(log: OutputLog) -> bytes:
    return b"".join(piece.data for piece in log.pieces(0, max_bytes=1 << 30))


def pump_after_the_end(read_end: int, reader: Reader | None, *, seconds_per_step: float = 0) -> bytes:
    """What the log holds of a command whose main process has ended while someone else holds its output."""

    async def session() -> bytes:
        log, detached = OutputLog(OutputBudget()), DetachedOutputs()
        pump = pump_of(read_end, log, detached, reader)
        pump.note_end()
        running = asyncio.create_task(pump.run())
        while not running.done():
            await asyncio.sleep(seconds_per_step)
            if reader is not None:
                reader.position = log.end
            pump.wake()
        log.finish()
        detached.close()
        return text_of(log)

    return asyncio.run(session())


def test_a_slow_client_gets_what_was_in_the_pipe_at_the_end(pipe: Pipe) -> None:
    read_end, write_end = pipe
    written = b"".join(b"%d\n" % number for number in range(11_000))
    assert os.write(write_end, written) == len(written)  # more than one read, less than a pipe
    assert pump_after_the_end(read_end, Reader(), seconds_per_step=2 * QUIET_SECONDS) == written


def test_a_silent_holder_of_the_pipe_is_awaited_for_the_quiet_time_only(pipe: Pipe) -> None:
    read_end, write_end = pipe
    os.write(write_end, b"no newline")
    assert pump_after_the_end(read_end, None, seconds_per_step=0.01) == b"no newline"


@pytest.mark.parametrize("line", [b"x" * 999 + b"\n", b"\n"], ids=["long lines", "newlines"])
def test_a_client_that_does_not_read_stops_the_command(pipe: Pipe, line: bytes) -> None:
    read_end, write_end = pipe
    os.set_blocking(write_end, False)

    async def session() -> None:
        log, detached, reader = OutputLog(OutputBudget()), DetachedOutputs(), Reader()
        pump = pump_of(read_end, log, detached, reader)
        running = asyncio.create_task(pump.run())
        written = 0
        for _ in range(100):
            with contextlib.suppress(BlockingIOError):
                written += os.write(write_end, line * (30_000 // len(line)))
            await asyncio.sleep(0)
        assert log.backlog(0) < 3 * WINDOW_BYTES
        assert written > log.end  # the rest waits in the pipe
        deadline = time.monotonic() + 5
        while log.total() < written and time.monotonic() < deadline:
            reader.position = log.end
            pump.wake()
            await asyncio.sleep(0)
        pump.note_end()
        await running
        detached.close()
        assert log.total() == written
        assert log.dropped_bytes == 0

    asyncio.run(session())


def test_commands_no_one_waits_for_share_one_rate() -> None:
    pace = Pace(bytes_per_second=1000)
    assert pace.delay(1) == 0
    assert 0.05 < pace.delay(100) < 0.12
    assert 0.15 < pace.delay(100) < 0.22
