"""Trials beyond the first page of a batch."""

from collections import Counter

import pytest

from models.tables import Trial
from repositories.trial_columns import COPIED, OWN
from services.fan_out import FIRST_PAGE, Materialiser
from services.jobspec import Need, Timeouts, TrialPlan
from tests.support.batches import BatchWorld, job
from tests.support.queue import QueueWorld, make_spec


@pytest.fixture
def batches(world: QueueWorld) -> BatchWorld:
    return BatchWorld.make(world, window=1500, page=400)


def make_all(batches: BatchWorld) -> int:
    made = 0
    while step := batches.materialiser.advance():
        made += step
    return made


def test_every_column_of_a_trial_is_either_copied_or_its_own():
    assert set(COPIED) | set(OWN) == {column.name for column in Trial.__table__.columns}
    assert not set(COPIED) & set(OWN)


def test_a_large_batch_begins_at_once_and_counts_whole_at_every_moment(batches: BatchWorld):
    spec = make_spec(key="big", trials=TrialPlan(2000, 7), priority=3, timeouts=Timeouts(queue=50.0))
    batch = batches.submit(job("small"), spec)
    assert len(batches.trials(batch)) == FIRST_PAGE
    assert batches.counts(batch) == {"queued": 2001}
    assert batches.job_counts(batch) == {"small": {"queued": 1}, "big": {"queued": 2000}}

    # A page of 400, and then there is no room for another in the window of 1,500.
    assert make_all(batches) == 400
    assert batches.counts(batch) == {"queued": 2001}
    batches.world.execute(
        "UPDATE trials SET state = 'finished', outcome = 'passed', finished_at = now() WHERE state = 'queued'"
    )
    assert batches.counts(batch) == {"passed": 1400, "queued": 601}
    batches.progress()
    assert batches.batch(batch)["state"] == "running"
    assert make_all(batches) == 601

    rows = batches.trials(batch, "big")
    assert [row["index"] for row in rows] == list(range(2000))
    assert {row["seed"] - row["index"] for row in rows} == {7}
    same = ("runtime", "cpu_millicores", "memory_bytes", "priority", "queue", "max_cpu_seconds", "tenant_id")
    assert len({tuple(row[name] for name in same) for row in rows}) == 1
    deadlines = [row["queue_deadline"] - row["created_at"] for row in rows if row["index"] > 1500]
    assert max(deadlines).total_seconds() < 50
    assert rows == sorted(rows, key=lambda row: row["id"])


def test_a_crash_in_the_middle_of_a_page_makes_it_once(batches: BatchWorld, monkeypatch):
    batch = batches.submit(job("a", 1100))

    def crash(name: str) -> None:
        if name == "fanout.mid_page":
            raise RuntimeError(name)

    with monkeypatch.context() as patched:
        patched.setattr("services.fan_out.failpoint", crash)
        with pytest.raises(RuntimeError):
            batches.materialiser.advance()
    assert len(batches.trials(batch)) == FIRST_PAGE
    assert make_all(batches) == 100
    assert Counter(row["index"] for row in batches.trials(batch)) == Counter(range(1100))


def test_two_schedulers_make_no_trial_twice(batches: BatchWorld):
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

    batch = batches.submit(job("a", 1400), job("b", 90))
    others = [Materialiser(batches.world.engine, window=1500, page=50) for _ in range(3)]

    def make(one: Materialiser) -> int:
        made = 0
        # Many of the tries meet another's, and make nothing.
        for _ in range(1000):
            made += one.advance()
            if len(batches.trials(batch)) == 1490:
                break
        return made

    with ThreadPoolExecutor(3) as pool:
        made = sum(pool.map(make, others))
    assert made + FIRST_PAGE == 1490
    assert len(batches.trials(batch)) == 1490


def test_jobs_that_may_not_run_yet_get_their_rows_later(batches: BatchWorld):
    batch = batches.submit(job("a", 1000), job("b", 300, needs=(Need("a"),)))
    assert make_all(batches) == 1
    assert batches.counts(batch) == {"queued": 1000, "blocked": 300}


def test_cancelling_ends_trials_that_have_no_row_without_running_them(batches: BatchWorld):
    batch = batches.submit(job("a", 2500))
    done = batches.verb("cancel", "batch", batch, mode="graceful")
    assert (done.cancelled, done.cancelling) == (2500, 0)
    assert sum(batches.counts(batch).values()) == 2500
    make_all(batches)
    batches.progress()
    assert batches.counts(batch) == {"cancelled": 2500}
    assert batches.batch(batch)["state"] == "finished"
    codes = Counter(row["failure"]["code"] for row in batches.trials(batch))
    assert codes == {"cancelled": 2500}
    batches.check_recount()


def test_a_stop_rule_ends_trials_that_have_no_row(batches: BatchWorld):
    batch = batches.submit(job("a", 1300, stop="first_pass"))
    batches.world.execute("UPDATE trials SET state = 'paused' WHERE index > 0")
    batches.end(batches.start()[0], "passed")
    batches.progress()
    make_all(batches)
    batches.progress()
    assert batches.counts(batch) == {"passed": 1, "skipped": 1299}
    codes = Counter((row["failure"] or {}).get("code") for row in batches.trials(batch))
    assert codes == {None: 1, "stop_first_pass": 1299}


def test_what_has_no_row_is_paused_and_resumed_with_its_batch(batches: BatchWorld):
    batch = batches.submit(job("a", 1200))
    assert batches.verb("pause", "batch", batch).paused == 1200
    assert batches.counts(batch) == {"paused": 1200}
    make_all(batches)
    assert batches.states(batch) == {"paused": 1200}
    assert batches.verb("resume", "batch", batch) == 1200
    assert batches.states(batch) == {"queued": 1200}


def test_the_clock_of_what_has_no_row_stands_still_in_a_pause(batches: BatchWorld):
    batch = batches.submit(job("a", 1200))
    (before,) = batches.world.execute("SELECT queue_deadline FROM jobs")
    batches.verb("pause", "batch", batch)
    batches.world.execute("UPDATE batches SET paused_at = paused_at - interval '1 hour'")
    batches.verb("resume", "batch", batch)
    (after,) = batches.world.execute("SELECT queue_deadline FROM jobs")
    assert 3600 <= (after["queue_deadline"] - before["queue_deadline"]).total_seconds() < 3660


def test_retrying_cancelled_trials_revives_those_without_a_row(batches: BatchWorld):
    batch = batches.submit(job("a", 1200))
    batches.verb("cancel", "batch", batch, mode="graceful")
    assert batches.verb("retry", "batch", batch, ["cancelled"]) == 1200
    make_all(batches)
    batches.progress()
    assert batches.counts(batch) == {"queued": 1200}
    batches.check_recount()


def test_trials_without_a_row_count_against_max_queued(batches: BatchWorld):
    from core.errors import QuotaExceededError  # noqa: PLC0415

    batches.world.execute("UPDATE tenants SET max_queued = 1500")
    batches.submit(job("a", 1400))
    with pytest.raises(QuotaExceededError):
        batches.submit(job("a", 101))
    batches.submit(job("a", 100))


def test_urgent_jobs_get_their_rows_first(batches: BatchWorld):
    batch = batches.submit(job("first", 1000), job("plain", 300), job("urgent", 300, priority=50))
    batches.materialiser.advance()
    made = {row["key"] for row in batches.trials(batch)[FIRST_PAGE:]}
    assert "urgent" in made
    assert len(batches.trials(batch, "urgent")) == 300
