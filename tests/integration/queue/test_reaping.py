import json

import pytest

from services.jobspec import RetryBudget
from services.reaping import Reaper
from tests.support.queue import QueueWorld, make_spec

FAILURE = json.dumps({"class": "infra", "code": "unknown", "message": "m"})


@pytest.fixture
def reaper(world: QueueWorld) -> Reaper:
    return Reaper(world.engine, lease_grace_seconds=5.0)


def start_one(world: QueueWorld, **trial):
    seat = world.session()
    (trial_id,) = world.trials(world.tenant(), **trial)
    world.dispatcher.tick()
    claimed = seat.claim(world.bells.rung[0])
    seat.start(claimed)
    return seat, trial_id, claimed


def lapse(world: QueueWorld, seconds: float) -> None:
    sql = "UPDATE worker_sessions SET lease_until = clock_timestamp() - make_interval(secs => %(s)s)"
    world.execute(sql, s=seconds)


def test_lapsed_lease_sends_the_trial_back_and_fences_the_ghost(world: QueueWorld, reaper):
    seat, trial, claimed = start_one(world)
    lapse(world, 6.0)

    assert reaper.reap() == 1

    row = world.trial(trial)
    assert (row["state"], row["infra_losses"], row["state_reason"]) == ("queued", 1, "node_lost")
    assert world.attempt(trial, 1)["state"] == "lost"
    assert not seat.finish(claimed)


def test_session_within_its_grace_is_left_alone(world: QueueWorld, reaper):
    start_one(world)
    lapse(world, 4.0)
    assert reaper.reap() == 0


def test_after_taking_over_lapsed_sessions_are_given_time(world: QueueWorld, reaper):
    start_one(world)
    lapse(world, 60.0)
    assert reaper.reap(lapsed_sessions=False) == 0
    assert reaper.reap() == 1


def test_restarted_worker_supersedes_its_old_session_at_once(world: QueueWorld, reaper):
    seat, trial, _ = start_one(world)
    world.session(node=seat.node_id)
    assert reaper.reap(lapsed_sessions=False) == 1
    assert world.trial(trial)["state"] == "queued"


def test_losses_beyond_the_budget_end_in_error_of_class_infra(world: QueueWorld, reaper):
    spec = make_spec(retry=RetryBudget(infra_max=1))
    seat, trial, _ = start_one(world, spec=spec)
    for expected in ("queued", "finished"):
        seat = world.session(node=seat.node_id)
        reaper.reap()
        assert world.trial(trial)["state"] == expected
        world.dispatcher.tick()
        claimed = seat.claim(world.bells.rung[-1])
        if claimed:
            seat.start(claimed)
    row = world.trial(trial)
    assert (row["outcome"], row["failure"]["class"], row["failure"]["code"]) == (
        "error",
        "infra",
        "poison",
    )


def test_lost_attempt_of_a_cancelled_trial_ends_cancelled(world: QueueWorld, reaper):
    _, trial, _ = start_one(world)
    world.execute("UPDATE trials SET desired = 'cancel'")
    lapse(world, 60.0)
    reaper.reap()
    assert world.trial(trial)["outcome"] == "cancelled"


def test_retry_waits_then_queues_again(world: QueueWorld, reaper):
    seat, trial, claimed = start_one(world)
    seat.finish(claimed, outcome="error", reason="x", failure=FAILURE, retry_seconds=30.0, infra_loss=1)
    row = world.trial(trial)
    assert (row["state"], row["outcome"], row["infra_losses"]) == ("retry_wait", None, 1)

    reaper.sweep()
    assert world.trial(trial)["state"] == "retry_wait"
    world.execute("UPDATE trials SET run_at = now()")
    reaper.sweep()
    assert world.trial(trial)["state"] == "queued"


def test_finish_with_retry_of_a_cancelled_trial_ends_it(world: QueueWorld):
    seat, trial, claimed = start_one(world)
    world.execute("UPDATE trials SET desired = 'cancel'")
    assert seat.finish(claimed, outcome="error", reason="x", failure=FAILURE, retry_seconds=1.0)
    assert world.trial(trial)["outcome"] == "cancelled"


def test_cancel_that_met_a_returning_trial_is_carried_out(world: QueueWorld, reaper):
    (trial,) = world.trials(world.tenant(), desired="cancel")
    reaper.sweep()
    assert world.trial(trial)["outcome"] == "cancelled"


def test_queue_deadline_counts_until_the_first_start_only(world: QueueWorld, reaper):
    tenant = world.tenant()
    (waiting,) = world.trials(tenant, queue_deadline="yesterday")
    (started,) = world.trials(tenant, queue_deadline="yesterday", started_at="yesterday")
    reaper.sweep()
    row = world.trial(waiting)
    assert (row["outcome"], row["failure"]["code"]) == ("error", "queue_timeout")
    assert world.trial(started)["state"] == "queued"


def test_total_deadline_ends_a_waiting_trial(world: QueueWorld, reaper):
    (trial,) = world.trials(world.tenant(), started_at="yesterday", total_deadline="yesterday")
    reaper.sweep()
    assert world.trial(trial)["failure"]["code"] == "total_timeout"


def test_expired_idempotency_keys_are_deleted_and_others_kept(world: QueueWorld, reaper):
    tenant = world.tenant()
    for key, when in (("old", "yesterday"), ("new", "tomorrow")):
        world.execute(
            "INSERT INTO idempotency (tenant_id, key, route, request_hash, resource_id, expires_at)"
            " VALUES (%(t)s, %(k)s, 'r', 'x', gen_random_uuid(), %(w)s)",
            t=tenant,
            k=key,
            w=when,
        )
    reaper.purge()
    assert world.execute("SELECT key FROM idempotency") == [{"key": "new"}]
