"""A log that one worker began and another one goes on with."""

import threading
from collections.abc import Iterator
from contextlib import closing
from uuid import uuid4

import pytest

from repositories.log_chunks import StoredLog
from services.attempt_journal import AttemptJournal
from services.log_pump import LogPump

PUMPS: list[LogPump] = []


@pytest.fixture
def journal(tmp_path) -> Iterator[AttemptJournal]:
    yield AttemptJournal(tmp_path)
    while PUMPS:
        PUMPS.pop().abandon()


Stored = list[tuple[int, str, bytes]]


def make_pump(journal: AttemptJournal, attempt, *, cap: int, into: Stored | None = None) -> LogPump:
    """into: where to store at once all that comes; None: the test does it itself."""

    def wake() -> None:
        if into is not None:
            into.extend(take(pump))

    pump = LogPump(attempt, uuid4(), 1, cap_bytes=cap, wake=wake, spool=journal.spool(attempt))
    PUMPS.append(pump)
    return pump


def take(pump: LogPump) -> Stored:
    chunks = pump.take(1 << 30)
    pump.stored()
    return [(chunk.seq, chunk.step, chunk.data) for chunk in chunks]


def close(pump: LogPump):
    """Close it as a worker does, with somebody who stores; gives the summary and what was stored then."""
    stored: Stored = []
    done = threading.Event()

    def store() -> None:
        while not done.is_set():
            stored.extend(take(pump))
            done.wait(0.001)

    thread = threading.Thread(target=store)
    thread.start()
    summary = pump.close()
    done.set()
    thread.join()
    return summary, stored


def test_numbers_and_counts_go_on(journal):
    pump = make_pump(journal, uuid4(), cap=1000)
    pump.resume(StoredLog(3, {"a": 20, "b": 5}))
    assert (pump.offset_of("a"), pump.offset_of("b"), pump.offset_of("c")) == (20, 5, 0)
    pump.write("b", "stdout", b"more")
    summary, stored = close(pump)
    assert stored == [(3, "b", b"more")]
    assert (summary.next_seq, summary.stored_bytes, summary.truncated_bytes) == (4, 29, 0)


def test_what_was_said_already_is_not_said_again(journal):
    pump = make_pump(journal, uuid4(), cap=1000)
    pump.resume(StoredLog(1, {"apply": 10}))
    pump.note("apply", "stdout", b"patched a\n")
    pump.note("apply", "stdout", b"patched b\n")
    assert take(pump) == [(1, "apply", b"patched b\n")]


@pytest.mark.parametrize("size", [150, 1000, 20_000], ids=["tail not full", "trimmed", "spool written anew"])
def test_tail_held_in_memory_survives_its_worker(journal, size):
    """Head and tail of 100 bytes each: the same is kept as if there had been one worker all along."""
    attempt = uuid4()
    data = bytes(index % 251 for index in range(size))
    head: Stored = []
    whole = LogPump(uuid4(), uuid4(), 1, cap_bytes=200, wake=lambda: None)
    first = make_pump(journal, attempt, cap=200, into=head)
    for start in range(0, size, 50):
        for pump in (whole, first):
            pump.write("run", "stdout", data[start : start + 50])
    second = make_pump(journal, attempt, cap=200)
    second.resume(StoredLog(len(head), {"run": sum(len(piece) for _, _, piece in head)}))
    assert second.offset_of("run") == size
    for pump in (whole, second):
        pump.write("run", "stdout", b"the end")
    expected, kept = close(whole)
    summary, rest = close(second)
    assert b"".join(piece for _, _, piece in head + rest) == b"".join(piece for _, _, piece in kept)
    assert summary.truncated_bytes == expected.truncated_bytes
    assert summary.stored_bytes == expected.stored_bytes


def test_tail_that_was_partly_stored_is_stored_to_its_end(journal):
    attempt = uuid4()
    first = make_pump(journal, attempt, cap=200, into=[])
    first.write("run", "stdout", b"h" * 100 + b"t" * 60)
    second = make_pump(journal, attempt, cap=200)
    second.resume(StoredLog(2, {"run": 140}))
    summary, rest = close(second)
    assert rest == [(2, "run", b"t" * 20)]
    assert summary.stored_bytes == 160


def test_nothing_is_put_by_as_tail_while_the_head_is_not_stored(journal):
    """A worker killed in between would leave a hole, which its successor could not see."""

    def offset_of_successor(stored: Stored) -> int:
        successor = make_pump(journal, attempt, cap=200)
        successor.resume(StoredLog(len(stored), {"run": sum(len(data) for _, _, data in stored)}))
        return successor.offset_of("run")

    attempt = uuid4()
    first = make_pump(journal, attempt, cap=200)
    writing = threading.Thread(target=first.write, args=("run", "stdout", b"h" * 100 + b"t" * 60))
    writing.start()
    writing.join(0.2)
    assert writing.is_alive()
    assert offset_of_successor([]) == 0
    head = take(first)
    writing.join(10)
    assert offset_of_successor(head) == 160


def test_spool_cut_short_gives_what_is_whole(journal, tmp_path):
    attempt = uuid4()
    spool = journal.spool(attempt)
    spool.append("run", "stdout", b"whole")
    spool.append("run", "stdout", b"cut")
    spool.close()
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    assert list(journal.spool(attempt).pieces()) == [("run", "stdout", b"whole")]


def test_notes_are_dropped_with_their_attempt(journal, tmp_path):
    kept, gone, swept = uuid4(), uuid4(), uuid4()
    for attempt in (kept, gone, swept):
        journal.note_end(attempt, {"a": 1})
        journal.note_patch(attempt, "apply", None)
        with closing(journal.spool(attempt)) as spool:
            spool.append("run", "stdout", b"x")
    journal.forget(gone)
    journal.forget(gone)
    journal.sweep([kept])
    assert {path.name.partition(".")[0] for path in tmp_path.iterdir()} == {str(kept)}
    assert journal.end(kept) == {"a": 1}
    assert journal.end(gone) is None
    assert journal.patch(kept, "apply") == {"step": "apply", "result": None}
    assert journal.patch(kept, "other") is None
