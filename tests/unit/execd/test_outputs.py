from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.outputs import FLOOR_BYTES, OutputBudget, OutputLog

WRITES = st.lists(
    st.tuples(
        st.sampled_from(["stdout", "stderr"]),
        st.one_of(
            st.binary(min_size=1, max_size=30), st.text("ab\n\r€", min_size=1, max_size=20).map(str.encode)
        ),
    ),
    max_size=30,
)


def filled(writes: list[tuple[str, bytes]], budget: OutputBudget | None = None) -> OutputLog:
    log = OutputLog(budget or OutputBudget())
    for stream, data in writes:
        log.write(stream, data)
    return log


def of_stream(writes: list[tuple[str, bytes]], stream: str) -> bytes:
    return b"".join(data for each, data in writes if each == stream)


@given(WRITES)
def test_each_stream_reads_as_it_was_written_at_any_time(writes: list[tuple[str, bytes]]) -> None:
    log = filled(writes)
    for is_over in (False, True):
        if is_over:
            log.finish()
        for stream in ("stdout", "stderr"):
            written = of_stream(writes, stream)
            assert log.total(stream) == len(written)
            assert log.read_stream(stream, 0, max_bytes=1000) == (0, written)
    assert log.end == log.total()
    assert not log.truncated


@given(WRITES, st.integers(0, 900), st.integers(1, 50))
def test_any_run_of_a_stream_can_be_read(writes: list[tuple[str, bytes]], offset: int, count: int) -> None:
    log = filled(writes)
    written = of_stream(writes, "stdout")
    offset = min(offset, len(written))
    assert log.read_stream("stdout", offset, max_bytes=count) == (offset, written[offset : offset + count])


@given(WRITES, st.integers(1, 60))
def test_pieces_follow_each_other_from_any_of_their_ends(writes: list[tuple[str, bytes]], batch: int) -> None:
    log = filled(writes)
    log.finish()
    position, streams = 0, {"stdout": b"", "stderr": b""}
    while position < log.end:
        for piece in log.pieces(position, max_bytes=batch):
            assert piece.offset == position
            position = piece.end
            streams[piece.stream] += piece.data
    assert streams == {stream: of_stream(writes, stream) for stream in streams}


@pytest.mark.parametrize(
    "line", [b"x" * 99 + b"\n", b"\n", b"x" * 300_000], ids=["lines", "newlines", "one long line"]
)
def test_a_log_keeps_head_and_tail_within_its_bound(line: bytes) -> None:
    budget = OutputBudget(log_bytes=500_000)
    count = 3_000_000 // len(line)
    block = line * max(1, 30_000 // len(line))
    log = OutputLog(budget)
    written = 0
    while written < count * len(line):
        log.write("stdout", block)
        written += len(block)
        assert budget.used_bytes == log.kept_bytes <= 500_000 + 3 * len(block)
    log.finish()
    assert log.truncated
    pieces = list(log.pieces(0, max_bytes=1 << 30))
    assert pieces[0].offset == 0
    assert pieces[-1].end == written == log.total()
    gaps = [(a.end, b.offset) for a, b in pairwise(pieces) if a.end != b.offset]
    assert len(gaps) == 1
    assert gaps[0][1] - gaps[0][0] == log.dropped_bytes
    assert sum(len(piece.data) for piece in pieces) + log.dropped_bytes == written


def test_alternating_streams_cost_what_they_take_in_memory() -> None:
    budget = OutputBudget(log_bytes=200_000)
    log = OutputLog(budget)
    for _ in range(2000):
        log.write("stdout", b"\n")
        log.write("stderr", b"\n")
    assert budget.used_bytes <= 201_000
    assert log.dropped_bytes > 3000


def logs(budget: OutputBudget) -> Iterator[OutputLog]:
    while True:
        yield OutputLog(budget)


def test_what_ended_first_is_forgotten_first() -> None:
    budget = OutputBudget(total_bytes=1_000_000)
    ended = []
    for log, _ in zip(logs(budget), range(5), strict=False):
        log.write("stdout", b"x" * 250_000 + b"\n")
        log.finish()
        budget.retire(log)
        ended.append(log)
    assert [log.kept_bytes > 0 for log in ended] == [False, False, True, True, True]
    assert [log.truncated for log in ended] == [True, True, False, False, False]
    assert list(ended[0].pieces(0, max_bytes=100)) == []
    assert budget.used_bytes <= 1_000_000


def test_running_commands_share_the_room_and_keep_their_last_bytes() -> None:
    budget = OutputBudget(total_bytes=2_000_000)
    running = [log for log, _ in zip(logs(budget), range(8), strict=False)]
    for number in range(400):
        for log in running:
            log.write("stdout", b"%05d" % number * 2000 + b"\n")
    assert budget.used_bytes <= 2_000_000 + FLOOR_BYTES
    for log in running:
        start, data = log.read_stream("stdout", log.end - 50_000, max_bytes=50_000)
        assert start == log.end - 50_000
        assert data.endswith(b"00399\n")


def test_nothing_is_dropped_that_a_client_has_yet_to_get() -> None:
    budget = OutputBudget(total_bytes=300_000, log_bytes=200_000)
    log, other = OutputLog(budget), OutputLog(budget)
    position = 0
    log.needed_from = lambda: position
    for _ in range(5):
        log.write("stdout", b"x" * 9_999 + b"\n")
    for _ in range(100):
        other.write("stdout", b"y" * 9_999 + b"\n")
    assert not log.truncated  # not even its beginning
    for position in range(0, 1_000_000, 10_000):
        log.write("stdout", b"x" * 9_999 + b"\n")
        other.write("stdout", b"y" * 9_999 + b"\n")
        first = next(log.pieces(position, max_bytes=1))
        assert first.offset == position
    assert log.truncated


def test_a_forgotten_log_gives_its_room_back() -> None:
    budget = OutputBudget()
    log = filled([("stdout", b"x" * 100_000)], budget)
    budget.forget(log)
    assert budget.used_bytes == 0


def test_listeners_hear_of_writes_and_of_the_end() -> None:
    log = OutputLog(OutputBudget())
    heard = []
    log.listeners.add(lambda: heard.append(log.is_ended))
    log.write("stdout", b"x")
    log.finish()
    assert heard == [False, True]
