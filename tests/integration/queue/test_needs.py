"""Jobs that wait for other jobs."""

import pytest

from core.errors import ConflictError
from services.jobspec import Need
from services.problems import InvalidFieldsError
from tests.support.batches import BatchWorld, job
from tests.support.queue import QueueWorld


@pytest.fixture
def batches(world: QueueWorld) -> BatchWorld:
    return BatchWorld.make(world)


def needing(key: str, *needs: str, outcome: str = "passed", **changes):
    return job(key, needs=tuple(Need(name, outcome) for name in needs), **changes)  # type: ignore[arg-type]


def unmet(batches: BatchWorld, batch, key: str) -> int:
    sql = "SELECT unmet_needs FROM jobs WHERE id = %(id)s"
    return batches.world.execute(sql, id=batches.job_id(batch, key))[0]["unmet_needs"]


def test_a_job_starts_when_all_its_needs_are_met_and_not_before(batches: BatchWorld):
    batch = batches.submit(job("a", 2), job("b"), needing("c", "a", "b", count=2))
    assert batches.counts(batch) == {"queued": 3, "blocked": 2}
    assert {row["state_reason"] for row in batches.trials(batch, "c")} == {"needs"}
    claimed = {(one.job_key, one.index): one for one in batches.start()}
    assert set(claimed) == {("a", 0), ("a", 1), ("b", 0)}
    batches.end(claimed["a", 0], "passed")
    batches.end(claimed["b", 0], "passed")
    batches.progress()
    assert (unmet(batches, batch, "c"), batches.start()) == (1, [])

    batches.end(claimed["a", 1], "passed")
    batches.progress()

    assert batches.run() == ["c", "c"]
    assert batches.batch(batch)["state"] == "finished"


@pytest.mark.parametrize(
    ("wanted", "outcomes", "runs"),
    [
        ("passed", ["passed", "passed"], True),
        ("passed", ["passed", "failed"], False),
        ("passed", ["error", "passed"], False),
        ("failed", ["passed", "failed"], True),
        ("failed", ["passed", "error"], True),
        ("failed", ["passed", "passed"], False),
        ("failed", ["cancelled", "cancelled"], False),
        ("finished", ["cancelled", "error"], True),
        ("finished", ["passed", "passed"], True),
    ],
)
def test_what_an_outcome_asks_of_a_job_with_several_trials(batches: BatchWorld, wanted, outcomes, runs):
    batch = batches.submit(job("a", 2), needing("b", "a", outcome=wanted))
    for one, outcome in zip(batches.start(), outcomes, strict=True):
        batches.end(one, outcome)
    batches.progress()
    assert batches.counts(batch).get("queued", 0) == int(runs)
    assert batches.counts(batch).get("skipped", 0) == int(not runs)


def test_one_pass_is_enough_of_a_job_that_stops_at_the_first(batches: BatchWorld):
    batch = batches.submit(job("a", 3, stop="first_pass"), needing("b", "a"))
    first, second, third = batches.start()
    batches.end(first, "failed")
    batches.end(second, "passed")
    batches.progress()
    batches.end(third, "cancelled")
    batches.progress()
    assert batches.run() == ["b"]
    assert batches.batch(batch)["state"] == "finished"


def test_what_can_never_start_is_skipped_all_along_the_chain(batches: BatchWorld):
    batch = batches.submit(
        job("a"), needing("b", "a"), needing("c", "b"), needing("after", "b", outcome="finished")
    )
    assert batches.run(a="failed") == ["a"]
    assert batches.states(batch, "b") == {"skipped": 1}
    assert batches.states(batch, "c") == {"skipped": 1}
    assert {row["failure"]["code"] for row in batches.trials(batch, "c")} == {"needs_unmet"}
    assert batches.run() == ["after"]
    assert batches.batch(batch)["state"] == "finished"
    batches.check_recount()


def test_a_thousand_jobs_that_need_one_are_let_go_in_pages(batches: BatchWorld):
    batch = batches.submit(job("build"), *(needing(f"j{n}", "build") for n in range(1200)))
    batches.end(batches.start()[0], "passed")
    # One page: not all at once, since the dispatch lock is held meanwhile.
    batches.keeper.advance()
    assert 0 < batches.counts(batch)["queued"] < 1200
    batches.progress()
    assert batches.counts(batch) == {"passed": 1, "queued": 1200}


def test_cancelling_a_job_skips_what_needs_it_passed(batches: BatchWorld):
    batch = batches.submit(job("a"), needing("b", "a"), needing("c", "a", outcome="finished"))
    batches.verb("cancel", "job", batches.job_id(batch, "a"), mode="graceful")
    batches.progress()
    assert batches.counts(batch) == {"cancelled": 1, "skipped": 1, "queued": 1}


def test_a_paused_job_whose_needs_are_met_stays_paused(batches: BatchWorld):
    batch = batches.submit(job("a"), needing("b", "a"))
    batches.verb("pause", "job", batches.job_id(batch, "b"))
    assert batches.states(batch, "b") == {"blocked": 1}
    batches.run()
    assert batches.states(batch, "b") == {"paused": 1}
    batches.verb("resume", "job", batches.job_id(batch, "b"))
    assert batches.run() == ["b"]


def test_appended_jobs_may_need_what_has_ended_long_ago(batches: BatchWorld):
    batch = batches.submit(job("a"), job("bad"), is_open=True)
    batches.run(bad="failed")
    batches.append(batch, needing("b", "a"), needing("c", "bad"), needing("d", "b"))
    batches.progress()
    assert batches.counts(batch) == {"passed": 1, "failed": 1, "queued": 1, "skipped": 1, "blocked": 1}
    assert batches.run() == ["b"]
    assert batches.run() == ["d"]


def test_appending_beside_the_end_of_what_is_needed_loses_no_edge(batches: BatchWorld):
    """The end is counted after the append has looked and before it commits: one waits for the other."""
    batch = batches.submit(job("a"), is_open=True)
    claimed = batches.start()
    batches.end(claimed[0], "passed")
    with batches.world.engine.begin() as appending:
        appending.exec_driver_sql("SELECT 1 FROM batches WHERE id = %(b)s FOR NO KEY UPDATE", {"b": batch})
        assert not batches.keeper.advance()
        assert batches.counts(batch) == {"passed": 1}
        assert batches.job_counts(batch)["a"] == {"passed": 1}
        assert batches._inbox() == 1
    batches.append(batch, needing("b", "a"))
    batches.progress()
    assert batches.run() == ["b"]


@pytest.mark.parametrize(
    ("spec", "field"), [(job("a"), "jobs[0].key"), (needing("b", "nobody"), "jobs[0].needs[0].job")]
)
def test_appending_what_does_not_fit_the_batch_names_the_field(batches: BatchWorld, spec, field):
    batch = batches.submit(job("a"), is_open=True)
    with pytest.raises(InvalidFieldsError) as raised:
        batches.append(batch, spec)
    assert raised.value.field == field
    assert batches.batch(batch)["job_count"] == 1


def test_appending_to_a_closed_or_cancelled_batch_is_a_conflict(batches: BatchWorld):
    never_open, closed, cancelled = (batches.submit(job("a"), is_open=n > 0) for n in range(3))
    batches.close(closed)
    batches.verb("cancel", "batch", cancelled, mode="graceful")
    for batch, word in ((never_open, "closed"), (closed, "closed"), (cancelled, "cancelled")):
        with pytest.raises(ConflictError, match=word):
            batches.append(batch, job("b"))


def test_retrying_what_failed_lets_what_was_skipped_for_it_wait_again(batches: BatchWorld):
    batch = batches.submit(job("a"), needing("b", "a"))
    batches.run(a="failed")
    assert batches.counts(batch) == {"failed": 1, "skipped": 1}
    assert batches.verb("retry", "batch", batch, ["failed", "skipped"]) == 2
    assert batches.counts(batch) == {"queued": 1, "blocked": 1}
    assert batches.run() == ["a"]
    assert batches.run() == ["b"]
    assert batches.batch(batch)["state"] == "finished"
    batches.check_recount()


def test_retrying_only_what_was_skipped_skips_it_again(batches: BatchWorld):
    batch = batches.submit(job("a"), needing("b", "a"))
    batches.run(a="failed")
    assert batches.verb("retry", "batch", batch, ["skipped"]) == 1
    batches.progress()
    assert batches.counts(batch) == {"failed": 1, "skipped": 1}
    assert batches.batch(batch)["state"] == "finished"
