import threading
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.log_pump import LogPump


def make_pump(cap: int = 1 << 20) -> LogPump:
    return LogPump(uuid4(), uuid4(), 1, cap_bytes=cap, wake=lambda: None)


def take_all(pump: LogPump):
    chunks = []
    while part := pump.take(1 << 16):
        pump.stored()
        chunks += part
    return chunks


class Storing(threading.Thread):
    """Plays the writer: takes and stores until stopped."""

    def __init__(self, pump: LogPump) -> None:
        super().__init__(daemon=True)
        self.pump, self.chunks, self.done = pump, [], threading.Event()

    def run(self) -> None:
        while not self.done.is_set():
            self.chunks += take_all(self.pump)
            self.done.wait(0.001)


def test_one_order_over_both_streams_without_gaps():
    pump = make_pump()
    for stream, data in (("stdout", b"a"), ("stderr", b"b"), ("stdout", b"c"), ("stdout", b"d")):
        pump.write("run", stream, data)
    chunks = take_all(pump)
    assert [(c.seq, c.stream, c.data) for c in chunks] == [
        (0, "stdout", b"a"),
        (1, "stderr", b"b"),
        (2, "stdout", b"cd"),
    ]


def test_chunks_hold_at_most_64_kib():
    pump = make_pump()
    pump.write("run", "stdout", b"x" * 200_000)
    assert [len(chunk.data) for chunk in take_all(pump)] == [65536, 65536, 65536, 3392]


@given(st.lists(st.binary(max_size=300), max_size=40), st.integers(2, 2000))
def test_head_and_tail_are_kept_and_the_rest_counted(pieces, cap):
    pump = make_pump(cap)
    everything = b"".join(pieces)
    for piece in pieces:
        pump.write("run", "stdout", piece)
    storing = Storing(pump)
    storing.start()
    summary = pump.close()
    storing.done.set()
    storing.join()
    kept = b"".join(chunk.data for chunk in storing.chunks)
    assert summary.stored_bytes == len(kept)
    assert summary.truncated_bytes == len(everything) - len(kept)
    assert [chunk.seq for chunk in storing.chunks] == list(range(summary.next_seq))
    if len(everything) <= cap:
        assert kept == everything
    else:
        head = everything[: cap // 2]
        assert kept == head + everything[len(everything) - (cap - cap // 2) :]


def test_writer_waits_when_too_much_is_unstored():
    pump = make_pump(1 << 30)
    written = threading.Event()

    def write() -> None:
        for _ in range(6):
            pump.write("run", "stdout", b"x" * (1 << 20))
        written.set()

    threading.Thread(target=write, daemon=True).start()
    assert not written.wait(0.2)
    storing = Storing(pump)
    storing.start()
    assert written.wait(5)
    storing.done.set()


def test_abandoned_pump_holds_nobody_up():
    pump = make_pump(1 << 30)
    pump.write("run", "stdout", b"x" * (5 << 20))
    pump.abandon()
    pump.write("run", "stdout", b"more")
    pump.drain()


def test_drain_waits_for_chunks_under_way():
    pump = make_pump()
    pump.write("run", "stdout", b"x")
    pump.take(100)
    drained = threading.Event()
    threading.Thread(target=lambda: (pump.drain(), drained.set()), daemon=True).start()
    assert not drained.wait(0.1)
    pump.stored()
    assert drained.wait(5)


@pytest.mark.parametrize("size", [0, 1])
def test_empty_writes_make_no_chunk(size):
    pump = make_pump()
    pump.write("run", "stdout", b"x" * size)
    assert len(take_all(pump)) == size
