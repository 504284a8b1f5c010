"""Counting ends, events, and the end of a batch."""

import threading

import pytest

from repositories.batch_progress import BatchProgressRepository
from services.reaping import Reaper
from tests.support.batches import BatchWorld, job
from tests.support.queue import QueueWorld


@pytest.fixture
def batches(world: QueueWorld) -> BatchWorld:
    return BatchWorld.make(world)


def test_batch_finishes_with_its_last_trial_and_counts_exactly_at_every_moment(batches: BatchWorld):
    batch = batches.submit(job("a", 3), job("b"))
    assert batches.counts(batch) == {"queued": 4}
    claimed = batches.start(4)
    batches.end(claimed[0], "failed")
    # Not counted yet by the scheduler, and yet told.
    assert batches.counts(batch) == {"running": 3, "failed": 1}
    batches.progress()
    assert batches.counts(batch) == {"running": 3, "failed": 1}
    assert batches.batch(batch)["state"] == "running"

    for one in claimed[1:]:
        batches.end(one, "passed")
    batches.progress()

    assert batches.counts(batch) == {"failed": 1, "passed": 3}
    assert batches.job_counts(batch) == {"a": {"failed": 1, "passed": 2}, "b": {"passed": 1}}
    assert batches.batch(batch)["state"] == "finished"
    assert batches.batch(batch)["finished_at"] is not None
    batches.check_recount()


def test_events_are_numbered_without_gaps_in_the_order_of_the_ends(batches: BatchWorld):
    batch = batches.submit(job("a", 3))
    claimed = batches.start()
    for one, outcome in zip(reversed(claimed), ("failed", "passed", "error"), strict=True):
        batches.end(one, outcome)
        batches.progress()

    assert batches.events(batch) == [
        (1, "trial.finished", "failed"),
        (2, "trial.finished", "passed"),
        (3, "trial.finished", "error"),
        (4, "batch.finished", None),
    ]
    assert set(batches.moved) == {batch}


def test_two_schedulers_count_every_end_once(batches: BatchWorld):
    batch = batches.submit(job("a", 60))
    claimed = batches.start()

    def advance() -> None:
        while not stop.is_set():
            batches.keeper.advance()

    stop = threading.Event()
    threads = [threading.Thread(target=advance) for _ in range(3)]
    for thread in threads:
        thread.start()
    for one in claimed:
        batches.end(one, "passed")
    stop.set()
    for thread in threads:
        thread.join()
    batches.progress()

    assert batches.counts(batch) == {"passed": 60}
    numbers = [n for n, _, _ in batches.events(batch)]
    assert numbers == list(range(1, 62))
    batches.check_recount()


def test_a_crash_between_counting_and_commit_counts_nothing(batches: BatchWorld):
    batch = batches.submit(job("a"))
    batches.end(batches.start()[0], "passed")
    with batches.world.engine.connect() as connection, connection.begin() as transaction:
        repository = BatchProgressRepository(connection)
        entries = repository.waiting_entries()
        assert repository.take(repository.lock_batches([batch]), [n for n, _ in entries])
        transaction.rollback()
    assert batches.counts(batch) == {"passed": 1}
    batches.progress()
    assert batches.counts(batch) == {"passed": 1}
    batches.check_recount()


def test_a_batch_that_a_verb_works_on_holds_up_no_other(batches: BatchWorld):
    busy, free = batches.submit(job("a")), batches.submit(job("a"))
    for one in batches.start():
        batches.end(one, "passed")
    with batches.world.engine.begin() as verb:
        verb.exec_driver_sql("SELECT 1 FROM batches WHERE id = %(id)s FOR NO KEY UPDATE", {"id": busy})
        batches.keeper.advance()
        assert batches.batch(free)["state"] == "finished"
        assert batches.batch(busy)["state"] == "running"
    batches.progress()
    assert batches.batch(busy)["state"] == "finished"


def test_one_stuck_trial_holds_the_batch_no_longer_than_its_deadline(batches: BatchWorld):
    batch = batches.submit(job("quick"), job("stuck", runtime="docker"))
    assert batches.run() == ["quick"]
    assert batches.batch(batch)["state"] == "running"
    batches.world.execute("UPDATE trials SET queue_deadline = now() WHERE state = 'queued'")
    Reaper(batches.world.engine, lease_grace_seconds=5.0, lease_seconds=60.0).sweep()
    batches.progress()
    assert batches.batch(batch)["state"] == "finished"
    assert batches.counts(batch) == {"passed": 1, "error": 1}


def test_first_pass_ends_the_other_trials_and_says_why(batches: BatchWorld):
    batch = batches.submit(job("a", 4, stop="first_pass"), job("other"))
    claimed = {(one.job_key, one.index): one for one in batches.start(2)}
    batches.end(claimed["a", 0], "failed")
    batches.progress()
    assert batches.counts(batch).get("skipped", 0) == 0
    batches.end(claimed["a", 1], "passed")
    batches.progress()

    rows = {row["index"]: row for row in batches.trials(batch, "a")}
    running = [row for row in rows.values() if row["state"] == "running"]
    skipped = [row for row in rows.values() if row["outcome"] == "skipped"]
    assert len(running) + len(skipped) == 2
    assert all(row["failure"]["code"] == "stop_first_pass" for row in skipped)
    assert all((row["desired"], row["cancel_reason"]) == ("cancel", "stop_first_pass") for row in running)
    assert sorted(batches.stopped) == sorted(row["id"] for row in running)
    assert all(row["desired"] == "run" for row in batches.trials(batch, "other"))


@pytest.mark.parametrize(
    ("rule", "outcomes", "stopped"),
    [
        ({"failed": 2}, ["failed", "failed"], "failed"),
        ({"failed": 2}, ["failed", "error", "passed"], None),
        ({"error": 1, "passed": 9}, ["error"], "error"),
    ],
)
def test_stop_when_ends_the_batch(batches: BatchWorld, rule, outcomes, stopped):
    batch = batches.submit(job("a", 10, runtime="fake"), stop_when=rule, is_open=True)
    claimed = batches.start(10)
    for one, outcome in zip(claimed, outcomes, strict=False):
        batches.end(one, outcome)
        batches.progress()
    row = batches.batch(batch)
    assert row["stop_reason"] == stopped
    assert row["is_open"] is (stopped is None)
    wishes = {row["desired"] for row in batches.trials(batch) if row["state"] == "running"}
    assert wishes == ({"run"} if stopped is None else {"cancel"})
    kinds = [kind for _, kind, _ in batches.events(batch)]
    assert kinds.count("batch.stopped") == (0 if stopped is None else 1)


def test_open_batch_finishes_only_when_closed(batches: BatchWorld):
    batch = batches.submit(is_open=True)
    batches.close(batches.submit(is_open=True))
    batches.append(batch, job("a"))
    assert batches.run() == ["a"]
    assert batches.batch(batch)["state"] == "running"

    batches.append(batch, job("b", 2))
    assert batches.run(b="failed") == ["b", "b"]
    batches.close(batch)
    batches.progress()

    row = batches.batch(batch)
    assert (row["state"], row["job_count"], row["trial_count"]) == ("finished", 2, 3)
    states = batches.world.execute("SELECT state FROM batches")
    assert {row["state"] for row in states} == {"finished"}
