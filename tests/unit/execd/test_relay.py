import asyncio
import json
import os
from collections.abc import Iterator
from typing import cast

import pytest

from execd.commands import EndReason, Execution
from execd.relay import QUIET_SECONDS, DetachedOutputs, Relay


class EndedExecution:
    """A command whose main process has ended, while someone else still holds its output."""

    id = "0" * 32
    reason = EndReason.EXIT
    exit_code = 0
    signal = None
    duration_ms = 1

    def __init__(self, fd: int) -> None:
        self.outputs = {"stdout": fd}
        self.exited = asyncio.Event()
        self.exited.set()

    async def killed(self) -> None:
        return


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe; the relay closes its read end."""
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    yield read_end, write_end
    os.close(write_end)


def relay_all(read_end: int, *, seconds_per_write: float) -> list[dict[str, str]]:
    frames: list[bytes] = []

    async def send(data: bytes) -> None:
        frames.append(data)
        await asyncio.sleep(seconds_per_write)

    async def session() -> None:
        detached = DetachedOutputs()
        execution = cast("Execution", EndedExecution(read_end))
        await Relay(execution, send, detached, strip_newlines=False).run()
        detached.close()

    asyncio.run(session())
    return [json.loads(line) for line in b"".join(frames).split(b"\n\n")[:-1]]


def test_a_slow_client_gets_what_was_in_the_pipe_at_the_end(pipe: tuple[int, int]) -> None:
    read_end, write_end = pipe
    written = b"".join(b"%d\n" % number for number in range(11_000))
    assert os.write(write_end, written) == len(written)  # more than one read, less than a pipe
    events = relay_all(read_end, seconds_per_write=2 * QUIET_SECONDS)
    assert "".join(event["text"] for event in events if event["type"] == "stdout").encode() == written
    assert events[-1]["type"] == "execution_complete"


def test_a_silent_holder_of_the_pipe_is_awaited_for_the_quiet_time_only(pipe: tuple[int, int]) -> None:
    read_end, write_end = pipe
    os.write(write_end, b"no newline")
    events = relay_all(read_end, seconds_per_write=0)
    assert [event["type"] for event in events] == ["init", "ping", "stdout", "execution_complete"]
    assert events[2]["text"] == "no newline"
