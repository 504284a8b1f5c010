"""Cancel, pause, resume and retry of batches, jobs and trials."""

import json

import pytest

from core.errors import ArchivedError, ConflictError, NotFoundError
from services.batch_report import batch_report
from services.batch_verbs import BatchVerbService
from services.reaping import Reaper
from services.report_formats import ReportFormat
from tests.support.batches import BatchWorld, job
from tests.support.queue import QueueWorld


@pytest.fixture
def batches(world: QueueWorld) -> BatchWorld:
    return BatchWorld.make(world)


def first(batches: BatchWorld, batch, key=None):
    return batches.trials(batch, key)[0]


def test_cancel_of_a_job_leaves_the_rest_of_its_batch(batches: BatchWorld):
    batch = batches.submit(job("a", 3), job("b", 2))
    claimed = [one for one in batches.start(1) if one.job_key == "a"]
    done = batches.verb("cancel", "job", batches.job_id(batch, "a"), mode="graceful")
    assert done.cancelled + done.cancelling == 3
    assert {t for trials in done.nodes.values() for t in trials} == {one.trial_id for one in claimed}
    assert {row["desired"] for row in batches.trials(batch, "b")} == {"run"}


def test_force_sharpens_a_graceful_cancel_and_not_the_other_way_round(batches: BatchWorld):
    batch = batches.submit(job("a"))
    batches.start()
    modes = []
    for mode in ("graceful", "force", "graceful"):
        batches.verb("cancel", "trial", first(batches, batch)["id"], mode=mode)
        modes.append(first(batches, batch)["cancel_mode"])
    assert modes == ["graceful", "force", "force"]


def test_a_graceful_cancel_that_outlives_its_grace_is_forced(batches: BatchWorld):
    batch = batches.submit(job("late"), job("young"))
    batches.start()
    batches.verb("cancel", "batch", batch, mode="graceful")
    assert batches.keeper.force_overdue() == 0
    # The grace is 10 s by default, and 20 s on top are for keeping files.
    batches.world.execute(
        "UPDATE trials t SET cancel_requested_at = now() - make_interval(secs => CASE j.key WHEN 'late' THEN 31"
        " ELSE 29 END) FROM jobs j WHERE j.id = t.job_id"
    )
    assert batches.keeper.force_overdue() == 1
    assert first(batches, batch, "late")["cancel_mode"] == "force"
    assert first(batches, batch, "young")["cancel_mode"] == "graceful"
    assert batches.stopped == [first(batches, batch, "late")["id"]]


def test_paused_work_does_not_start_and_what_runs_goes_on(batches: BatchWorld):
    batch = batches.submit(job("a", 2), job("b"))
    claimed = {one.job_key: one for one in batches.start()}
    more = batches.submit(job("c"))
    batches.verb("pause", "batch", batch)
    batches.verb("pause", "batch", more)
    assert batches.start() == []
    assert batches.states(more) == {"paused": 1}
    batches.end(claimed["b"], "passed")
    assert batches.states(batch, "b") == {"passed": 1}
    assert batches.verb("resume", "batch", more) == 1
    assert [one.job_key for one in batches.start()] == ["c"]


@pytest.mark.parametrize("kind", ["batch", "job", "trial"])
def test_pause_and_resume_of_each_kind(batches: BatchWorld, kind):
    batch = batches.submit(job("a"))
    key = {"batch": batch, "job": batches.job_id(batch, "a"), "trial": first(batches, batch)["id"]}[kind]
    done = batches.verb("pause", kind, key)
    assert (done.paused, done.running) == (1, 0)
    assert batches.counts(batch) == {"paused": 1}
    assert batches.verb("pause", kind, key) == done
    assert batches.verb("resume", kind, key) == 1
    assert batches.verb("resume", kind, key) == 0
    assert batches.run() == ["a"]


def test_a_paused_trial_comes_back_to_paused_whoever_gives_it_back(batches: BatchWorld):
    batch = batches.submit(job("lost"), job("retried"), job("recalled"))
    claimed = {one.job_key: one for one in batches.start(2)}
    batches.verb("pause", "batch", batch)
    reaper = Reaper(batches.world.engine, lease_grace_seconds=0.0)

    failure = '{"class": "infra", "code": "unknown", "message": "m"}'
    one = claimed["retried"]
    assert batches.seat.finish(one, outcome="error", reason="x", failure=failure, retry_seconds=0.0)
    reaper.sweep()
    assert batches.states(batch, "retried") == {"paused": 1}
    batches.world.execute("UPDATE worker_sessions SET ended_at = now()")
    reaper.reap()
    batches.world.execute("UPDATE trials SET run_at = now() WHERE state = 'retry_wait'")
    reaper.sweep()
    assert batches.states(batch, "lost") == {"paused": 1}


def test_a_recalled_trial_that_was_paused_stays_paused(batches: BatchWorld):
    batch = batches.submit(job("a"))
    batches.world.dispatcher.tick()
    batches.verb("pause", "batch", batch)
    batches.world.execute("UPDATE attempts SET start_deadline = now() - interval '1 second'")
    batches.world.dispatcher.ring_again()
    assert batches.states(batch) == {"paused": 1}


def test_the_clocks_of_a_paused_trial_stand_still(batches: BatchWorld):
    batch = batches.submit(job("a"))
    before = first(batches, batch)["queue_deadline"]
    batches.verb("pause", "batch", batch)
    batches.world.execute(
        "UPDATE trials SET paused_at = paused_at - interval '2 days', queue_deadline = now() - interval '1 day'"
    )
    Reaper(batches.world.engine, lease_grace_seconds=5.0).sweep()
    assert batches.states(batch) == {"paused": 1}
    batches.verb("resume", "batch", batch)
    after = first(batches, batch)
    Reaper(batches.world.engine, lease_grace_seconds=5.0).sweep()
    assert batches.states(batch) == {"queued": 1}
    assert after["paused_at"] is None
    assert 0 < (before - after["queue_deadline"]).total_seconds() + 60 < 120


def test_a_cancelled_pause_ends(batches: BatchWorld):
    batch = batches.submit(job("a"))
    batches.verb("pause", "batch", batch)
    assert batches.verb("cancel", "batch", batch, mode="graceful").cancelled == 1
    batches.progress()
    assert batches.batch(batch)["state"] == "finished"


def test_a_retry_counts_in_the_place_of_what_it_retries(batches: BatchWorld):
    batch = batches.submit(job("a", 3))
    for one, outcome in zip(batches.start(), ("passed", "error", "cancelled"), strict=True):
        batches.end(one, outcome)
    batches.progress()
    assert batches.batch(batch)["state"] == "finished"

    assert batches.verb("retry", "batch", batch, ["error", "cancelled"]) == 2

    assert batches.counts(batch) == {"passed": 1, "queued": 2}
    assert batches.batch(batch)["state"] == "running"
    old, new = {}, {}
    for row in batches.trials(batch):
        (new if row["retry_of"] else old)[row["index"]] = row
    assert {index: row["superseded_by"] for index, row in old.items() if index} == {
        index: row["id"] for index, row in new.items()
    }
    assert {index: row["retry_of"] for index, row in new.items()} == {1: old[1]["id"], 2: old[2]["id"]}
    assert [new[1][name] for name in ("seed", "fence", "attempts_used")] == [old[1]["seed"], 0, 0]
    assert batches.run() == ["a", "a"]
    assert batches.counts(batch) == {"passed": 3}
    assert batches.batch(batch)["state"] == "finished"
    kinds = [kind for _, kind, _ in batches.events(batch) if kind.startswith("batch")]
    assert kinds == ["batch.finished", "batch.reopened", "batch.finished"]
    batches.check_recount()


def test_retrying_what_nobody_has_counted_yet_counts_it_never(batches: BatchWorld):
    batch = batches.submit(job("a"))
    batches.end(batches.start()[0], "error")
    batches.verb("retry", "batch", batch, ["error"])
    assert batches.counts(batch) == {"queued": 1}
    batches.progress()
    assert batches.counts(batch) == {"queued": 1}
    assert batches.events(batch)[0][1:] == ("trial.finished", "error")
    assert batches.run() == ["a"]
    assert batches.counts(batch) == {"passed": 1}
    batches.check_recount()


def test_one_trial_cannot_be_retried_twice_or_before_its_end(batches: BatchWorld):
    batch = batches.submit(job("a"), job("b", runtime="docker"))
    batches.run(a="failed")
    trial = first(batches, batch, "a")["id"]
    assert batches.verb("retry", "trial", trial, ["failed"]) == 1
    for key in (trial, first(batches, batch, "b")["id"]):
        with pytest.raises(ConflictError):
            batches.verb("retry", "trial", key, ["failed"])
    assert batches.verb("retry", "job", batches.job_id(batch, "b"), ["failed"]) == 0


def test_a_stop_rule_does_not_strike_again_after_a_retry(batches: BatchWorld):
    batch = batches.submit(job("a", 3), stop_when={"failed": 1})
    one, *others = batches.start()
    batches.end(one, "failed")
    batches.progress()
    for other in others:
        batches.end(other, "cancelled")
    batches.progress()
    assert batches.verb("retry", "batch", batch, ["cancelled"]) == 2
    assert batches.run(a="failed") == ["a", "a"]
    assert batches.counts(batch) == {"failed": 3}
    assert batches.batch(batch)["state"] == "finished"


def test_retrying_is_held_to_the_quota(batches: BatchWorld):
    from core.errors import QuotaExceededError  # noqa: PLC0415

    batch = batches.submit(job("a", 3))
    batches.run(a="error")
    batches.world.execute("UPDATE tenants SET max_queued = 2")
    with pytest.raises(QuotaExceededError):
        batches.verb("retry", "batch", batch, ["error"])
    assert batches.counts(batch) == {"error": 3}


@pytest.mark.parametrize("kind", ["batch", "job", "trial"])
def test_verbs_do_not_find_what_is_anothers(batches: BatchWorld, kind):
    batch = batches.submit(job("a"))
    key = {"batch": batch, "job": batches.job_id(batch, "a"), "trial": first(batches, batch)["id"]}[kind]
    other = batches.world.tenant("other")
    for name, arguments in (
        ("cancel", {"mode": "force"}), ("pause", {}), ("resume", {}), ("retry", {"outcomes": ["error"]}),
    ):  # fmt: skip
        with batches.world.engine.begin() as connection:
            verbs = BatchVerbService(connection, other)
            with pytest.raises(NotFoundError):
                getattr(verbs, name)(getattr(verbs, kind)(key), **arguments)
    assert batches.states(batch) == {"queued": 1}


def test_a_batch_that_is_being_archived_is_left_alone(batches: BatchWorld):
    batch = batches.submit(job("a"))
    batches.run(a="error")
    batches.world.execute("UPDATE batches SET archiving_at = now()")
    with pytest.raises(ArchivedError):
        batches.verb("retry", "batch", batch, ["error"])


def report(batches: BatchWorld, batch) -> dict:
    with batches.world.engine.begin() as connection:
        return json.loads(batch_report(connection, batches.tenant, batch, ReportFormat.JSON).body)


@pytest.mark.parametrize(
    ("change", "biased"),
    [
        ({}, False),
        ({"stop": "first_pass"}, True),
        ({"retry": "error"}, False),
        ({"retry": "failed"}, True),
        ({"stop_when": {"failed": 1}}, True),
        ({"stop_when": {"passed": 9}}, False),
    ],
    ids=["plain", "stop", "retry of errors", "retry of verdicts", "stopped", "not stopped"],
)
def test_a_report_says_when_outcomes_decided_which_trials_there_are(batches: BatchWorld, change, biased):
    batch = batches.submit(job("a", 2, stop=change.get("stop", "never")), stop_when=change.get("stop_when"))
    for one in batches.start():
        batches.end(one, change.get("retry", "failed"))
    batches.progress()
    if "retry" in change:
        batches.verb("retry", "batch", batch, [change["retry"]])
        batches.run()
    found = report(batches, batch)
    assert (found["biased"], found["trials"], found["complete"]) == (biased, 2, True)


def test_a_report_counts_trials_that_have_no_row_yet(batches: BatchWorld):
    found = report(batches, batches.submit(job("a", 1300)))
    assert (found["trials"], found["complete"]) == (1300, False)
