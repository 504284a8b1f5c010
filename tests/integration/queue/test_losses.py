"""What becomes of trials whose workers are lost or stuck: budgets, rules, poison, deadlines the scheduler keeps."""

import json

import pytest

from services.jobspec import Backoff, RetryBudget, RetryRule, Timeouts
from services.reaping import Reaper
from tests.support.queue import QueueWorld, Seat, make_spec

LEASE, GRACE = 60.0, 5.0


@pytest.fixture
def reaper(world: QueueWorld) -> Reaper:
    return Reaper(world.engine, lease_grace_seconds=GRACE, lease_seconds=LEASE)


def start_one(world: QueueWorld, **spec):
    seat = world.session()
    (trial,) = world.trials(world.tenant(), spec=make_spec(**spec))
    return seat, trial, start_again(world, seat)


def start_again(world: QueueWorld, seat: Seat):
    world.dispatcher.tick()
    claimed = seat.claim(world.bells.rung[-1])
    assert claimed is not None
    assert seat.start(claimed)
    return claimed


def lose(world: QueueWorld, reaper: Reaper, seat: Seat) -> None:
    world.execute("UPDATE worker_sessions SET ended_at = now() WHERE id = %(id)s", id=seat.session_id)
    assert reaper.reap() == 1


def letters(world: QueueWorld) -> list[dict]:
    return world.execute("SELECT * FROM dead_letters ORDER BY n")


@pytest.mark.parametrize("nodes_there", [1, 3])
def test_third_loss_of_its_worker_makes_a_trial_poison_and_a_dead_letter(
    world: QueueWorld, reaper, nodes_there
):
    seat, trial, _ = start_one(world, retry=RetryBudget(infra_max=10))
    nodes = set()
    for number in range(3):
        nodes.add(seat.node_id)
        lose(world, reaper, seat)
        row = world.trial(trial)
        assert row["infra_losses"] == number + 1
        if number < 2:
            assert row["state"] == "queued"
            assert letters(world) == []
            seat = world.session(node=seat.node_id if nodes_there == 1 else None)
            start_again(world, seat)
    assert len(nodes) == nodes_there
    assert (row["state"], row["outcome"], row["state_reason"]) == ("finished", "error", "poison")
    assert (row["failure"]["class"], row["failure"]["code"]) == ("infra", "poison")
    (letter,) = letters(world)
    assert (letter["trial_id"], letter["code"], letter["attempts"]) == (trial, "poison", 3)
    assert set(letter["lost_on"]) == nodes
    assert world.attempt(trial, 3)["failure"]["code"] == "node_lost"


def test_losses_that_have_used_up_a_smaller_budget_are_poison_too(world: QueueWorld, reaper):
    seat, trial, _ = start_one(world, retry=RetryBudget(infra_max=1))
    for number in range(2):
        lose(world, reaper, seat)
        assert world.trial(trial)["state"] == ("queued" if number < 1 else "finished")
        if number < 1:
            seat = world.session(node=seat.node_id)
            start_again(world, seat)
    assert world.trial(trial)["failure"]["code"] == "poison"
    assert letters(world)[0]["lost_on"] == [seat.node_id]


def test_cancelled_trial_is_cancelled_and_no_dead_letter_however_many_nodes_it_cost(world, reaper):
    seat, trial, _ = start_one(world, retry=RetryBudget(infra_max=0))
    world.execute("UPDATE trials SET desired = 'cancel'")
    lose(world, reaper, seat)
    assert world.trial(trial)["outcome"] == "cancelled"
    assert letters(world) == []


def test_rule_decides_about_a_lost_attempt_too_and_its_use_is_kept(world: QueueWorld, reaper):
    rule = RetryRule(codes=("node_lost",), max=1, backoff=Backoff(600.0, 1.0, 600.0))
    seat, trial, _ = start_one(world, retry=RetryBudget(rules=(RetryRule(signals=(9,)), rule)))
    lose(world, reaper, seat)
    row = world.trial(trial)
    assert (row["state"], row["rule_retries"]) == ("retry_wait", [0, 1])
    assert row["run_at"] is not None

    world.execute("UPDATE trials SET run_at = now()")
    reaper.sweep()
    seat = world.session()
    start_again(world, seat)
    lose(world, reaper, seat)
    row = world.trial(trial)
    assert (row["state"], row["failure"]["code"], row["infra_losses"]) == ("finished", "node_lost", 2)


def test_loss_leaves_the_budget_of_the_task_alone(world: QueueWorld, reaper):
    seat, trial, _ = start_one(world, retry=RetryBudget(infra_max=1, task_max=5))
    world.execute("UPDATE trials SET task_retries = 5")
    lose(world, reaper, seat)
    row = world.trial(trial)
    assert (row["state"], row["infra_losses"], row["task_retries"]) == ("queued", 1, 5)


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "due"])
def test_paused_trial_that_comes_back_is_paused_and_not_queued(world: QueueWorld, reaper, lost):
    seat, trial, claimed = start_one(world)
    world.execute("UPDATE trials SET is_paused = true")
    if lost:
        lose(world, reaper, seat)
    else:
        failure = json.dumps({"class": "infra", "code": "unknown", "message": "m"})
        seat.finish(claimed, outcome="error", failure=failure, retry_seconds=0.0)
        reaper.sweep()
    assert world.trial(trial)["state"] == "paused"


def test_deadlines_come_from_the_timeouts_of_the_job_by_the_clock_of_the_database(world: QueueWorld):
    spec = make_spec(timeouts=Timeouts(start=100.0, run=30.0, total=1000.0))
    seat = world.session()
    world.trials(world.tenant(), spec=spec)
    world.dispatcher.tick()
    claimed = seat.claim(world.bells.rung[0])
    assert 99.0 < claimed.start_left_seconds <= 100.0
    seconds = "extract(epoch FROM {} - {})::float8"
    (row,) = world.execute(
        f"SELECT {seconds.format('start_deadline', 'created_at')} AS start,"
        f" {seconds.format('overdue_at', 'claimed_at')} AS overdue, run_deadline FROM attempts"
    )
    assert (row["start"], row["run_deadline"]) == (100.0, None)
    assert row["overdue"] == pytest.approx(160.0, abs=0.1)

    assert seat.start(claimed, run_seconds=30.0, total_seconds=1000.0)
    sql = (
        f"SELECT {seconds.format('a.run_deadline', 'a.started_at')} AS run,"
        f" {seconds.format('t.total_deadline', 't.started_at')} AS total"
        " FROM attempts a JOIN trials t ON t.id = a.trial_id"
    )
    (row,) = world.execute(sql)
    assert row["run"] == pytest.approx(30.0, abs=0.1)
    assert row["total"] == pytest.approx(1000.0, abs=0.1)


def test_run_time_ends_with_the_total_of_the_trial(world: QueueWorld, reaper):
    seat, _, claimed = start_one(world)
    failure = json.dumps({"class": "infra", "code": "unknown", "message": "m"})
    seat.finish(claimed, outcome="error", failure=failure, retry_seconds=0.0)
    world.execute("UPDATE trials SET total_deadline = now() + interval '20 s'")
    reaper.sweep()
    start_again(world, seat)
    (row,) = world.execute(
        "SELECT extract(epoch FROM run_deadline - started_at) AS s FROM attempts WHERE fence = 2"
    )
    assert 19.0 < row["s"] <= 20.0


def let_pass(world: QueueWorld, trial) -> None:
    world.execute("UPDATE attempts SET overdue_at = now() - interval '1 ms' WHERE trial_id = %(t)s", t=trial)


@pytest.mark.parametrize(
    ("state", "code"),
    [("starting", "start_timeout"), ("running", "worker_stuck"), ("collecting", "worker_stuck")],
)
def test_attempt_that_a_living_worker_does_not_end_is_taken_from_it(world: QueueWorld, reaper, state, code):
    seat = world.session()
    (trial,) = world.trials(world.tenant())
    world.dispatcher.tick()
    claimed = seat.claim(world.bells.rung[0])
    if state != "starting":
        seat.start(claimed)
    if state == "collecting":
        world.execute("UPDATE attempts SET state = 'collecting'")
    reaper.reap()
    assert world.attempt(trial, 1)["state"] == state

    let_pass(world, trial)
    reaper.reap()

    attempt, row = world.attempt(trial, 1), world.trial(trial)
    assert (attempt["state"], attempt["failure"]["code"]) == ("lost", code)
    assert attempt["failure"]["class"] == "infra"
    assert (row["state"], row["infra_losses"]) == ("retry_wait", 1)
    # Not before the worker has heard of it, or its lease has lapsed: two attempts must never overlap.
    (wait,) = world.execute("SELECT extract(epoch FROM run_at - queued_at)::float8 AS s FROM trials")
    assert wait["s"] >= LEASE + GRACE - 0.1
    assert not seat.finish(claimed)


def test_attempt_that_nobody_has_claimed_is_recalled_and_never_overdue(world: QueueWorld, reaper):
    world.session()
    (trial,) = world.trials(world.tenant())
    world.dispatcher.tick()
    let_pass(world, trial)
    reaper.reap()
    assert world.attempt(trial, 1)["state"] == "dispatched"


def test_attempts_are_overdue_only_after_their_worker_had_its_time_with_this_scheduler(world, reaper):
    _, trial, _ = start_one(world)
    let_pass(world, trial)
    reaper.reap(lapsed_sessions=False)
    assert world.trial(trial)["state"] == "running"


def test_stuck_attempt_does_not_hold_its_batch_beyond_the_total(world: QueueWorld, reaper):
    _, trial, _ = start_one(world)
    world.execute("UPDATE trials SET total_deadline = now() - interval '61 s'")
    let_pass(world, trial)
    reaper.reap()
    reaper.sweep()
    row = world.trial(trial)
    assert (row["state"], row["failure"]["code"]) == ("finished", "total_timeout")


def test_dead_letters_are_of_class_infra_and_without_verdict_only(world: QueueWorld):
    seat = world.session()
    tenant = world.tenant()
    for cls, outcome in (("infra", "error"), ("task", "error"), ("infra", "failed"), ("spec", "error")):
        world.trials(tenant)
        claimed = start_again(world, seat)
        failure = json.dumps({"class": cls, "code": f"{cls}_{outcome}", "message": "m"})
        assert seat.finish(claimed, outcome=outcome, failure=failure)
    assert [letter["code"] for letter in letters(world)] == ["infra_error"]
