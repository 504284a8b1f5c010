"""The one thread that stores the output of all attempts of a worker."""

import threading
import time
from datetime import UTC, datetime

import pytest

from core.ids import new_id
from repositories.log_chunks import Chunk, LogChunkRepository
from services import log_pump
from services.log_pump import LogWriter
from tests.support.queue import QueueWorld


@pytest.mark.timeout(20)
def test_what_goes_wrong_once_does_not_end_the_storing_of_output(world: QueueWorld):
    told = []

    def publish(chunks) -> None:
        told.extend(chunks)
        if len(told) == 1:
            raise RuntimeError("nobody foresaw this")

    writer = LogWriter(world.engine, publish, node_id=new_id())
    writer.start()
    try:
        for _ in range(2):
            pump = writer.open(new_id(), new_id(), 1, cap_bytes=1 << 16)
            pump.write("run", "stdout", b"x")
            assert pump.close().stored_bytes == 1
    finally:
        writer.stop()
    assert [row["bytes"] for row in world.execute("SELECT bytes FROM log_chunks")] == [b"x", b"x"]


@pytest.mark.timeout(60)
def test_a_statement_is_bounded_the_quiet_are_in_each_and_the_loud_take_turns(world: QueueWorld, monkeypatch):
    # So little that not every loud attempt has a chunk in each.
    monkeypatch.setattr(log_pump, "_BATCH_BYTES", 256 << 10)
    batches: list[list[Chunk]] = []
    writer = LogWriter(world.engine, batches.append, node_id=new_id())
    loud, quiet = set(), set()
    for number in range(30):
        attempt = new_id()
        pump = writer.open(attempt, new_id(), 1, cap_bytes=1 << 24)
        pump.write("run", "stdout", b"x" * (256 << 10 if number < 8 else 9))
        (loud if number < 8 else quiet).add(attempt)
    writer.start()
    deadline = time.monotonic() + 30
    while sum(len(chunk.data) for batch in batches for chunk in batch) < 8 * (256 << 10) + 22 * 9:
        assert time.monotonic() < deadline, "not all was stored"
        time.sleep(0.01)
    writer.stop()
    heard = [{chunk.attempt_id for chunk in batch} for batch in batches]
    assert quiet <= heard[0]
    assert loud <= heard[0] | heard[1]
    assert max(sum(len(chunk.data) for chunk in batch) for batch in batches) <= (256 + 64) << 10


@pytest.mark.timeout(60)
def test_a_new_session_waits_for_what_the_nodes_last_worker_was_storing(world: QueueWorld):
    seat, trial = world.session(), new_id()
    opened = threading.Event()

    def succeed() -> None:
        world.session(node=seat.node_id)
        opened.set()

    chunk = Chunk(new_id(), trial, 1, 0, "run", "stdout", datetime.now(UTC), b"x")
    waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with world.engine.begin() as killed:
        LogChunkRepository(killed).append([chunk], node_id=seat.node_id)
        world.session()  # another node need not wait
        successor = threading.Thread(target=succeed)
        successor.start()
        while not world.execute(waiting):
            assert not opened.wait(0.01), "the session was opened while a commit was under way"
    successor.join()
    with world.engine.begin() as connection:
        assert LogChunkRepository(connection).stored(trial, 1).next_seq == 1
