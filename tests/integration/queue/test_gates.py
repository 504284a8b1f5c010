"""Caps of a batch hold whoever queues its trials, and never clog the queue."""

import threading

from psycopg.types.json import Jsonb

from tests.support.queue import QueueWorld


def capped(world: QueueWorld, tenant: int, count: int, labels=None, *, maximum=None, per_label=None):
    """Queue trials of a new batch with caps as a submission does."""
    trials = world.trials(
        tenant, count, state="blocked", state_reason="concurrency", cap_labels=Jsonb(labels or {})
    )
    (row,) = world.execute("SELECT batch_id FROM trials WHERE id = %(id)s", id=trials[0])
    world.execute(
        "UPDATE batches SET max_running = %(max)s, max_per_label = %(caps)s WHERE id = %(id)s",
        max=maximum,
        caps=Jsonb(per_label or {}),
        id=row["batch_id"],
    )
    return trials


def tick_until_idle(world: QueueWorld) -> None:
    while world.dispatcher.tick():
        pass


def running(world: QueueWorld, trials) -> int:
    return [world.trial(trial)["state"] for trial in trials].count("running")


def test_no_more_than_max_run_and_the_next_starts_when_one_ends(world: QueueWorld):
    seat = world.session(slots=50)
    trials = capped(world, world.tenant(), 8, maximum=3)
    tick_until_idle(world)
    assert running(world, trials) == 3
    assert {bell.trial_id for bell in world.bells.rung} == set(trials[:3])

    claimed = seat.claim(world.bells.rung[0])
    assert seat.start(claimed)
    assert seat.finish(claimed)
    tick_until_idle(world)
    assert running(world, trials) == 3
    assert world.trial(trials[3])["state"] == "running"


def test_each_value_of_a_label_has_its_own_cap(world: QueueWorld):
    world.session(slots=50)
    tenant = world.tenant()
    trials = capped(world, tenant, 9, {"repo": "django"}, per_label={"repo": 2})
    world.execute('UPDATE trials SET cap_labels = \'{"repo": "flask"}\' WHERE index IN (5, 6)')
    world.execute("UPDATE trials SET cap_labels = '{}' WHERE index = 7")
    tick_until_idle(world)
    started = {index for index, trial in enumerate(trials) if world.trial(trial)["state"] == "running"}
    assert started == {0, 1, 5, 6, 7}


def test_what_waits_for_a_cap_does_not_hold_up_the_rest_of_the_tenant(world: QueueWorld):
    world.session(slots=4)
    tenant = world.tenant()
    capped(world, tenant, 300, maximum=1)
    others = world.trials(tenant, 3)
    tick_until_idle(world)
    assert running(world, others) == 3


def test_a_retry_has_to_pass_the_gate_again(world: QueueWorld):
    seat = world.session(slots=50)
    trials = capped(world, world.tenant(), 3, maximum=1)
    tick_until_idle(world)
    claimed = seat.claim(world.bells.rung[0])
    assert seat.finish(claimed, outcome="error", reason="daemon_error", retry_seconds=60.0, infra_loss=1,
                       failure='{"class": "infra", "code": "daemon_error"}')  # fmt: skip
    assert world.trial(trials[0])["is_admitted"] is False
    tick_until_idle(world)
    assert running(world, trials) == 1

    # It comes due while the next one runs: it is queued by whoever sees to retries, and is not started.
    world.execute("UPDATE trials SET state = 'queued', run_at = NULL WHERE id = %(id)s", id=trials[0])
    tick_until_idle(world)
    assert running(world, trials) == 1
    assert world.trial(trials[0])["state"] == "queued"


def test_a_paused_trial_leaves_its_place_to_the_next(world: QueueWorld):
    seat = world.session(slots=50)
    trials = capped(world, world.tenant(), 2, maximum=1)
    world.execute("UPDATE trials SET is_paused = true WHERE id = %(id)s", id=trials[0])
    for _ in range(2):
        world.dispatcher.tick()
    assert [world.trial(trial)["state"] for trial in trials] == ["paused", "running"]
    assert seat.claim(world.bells.rung[0]).trial_id == trials[1]


def test_caps_hold_with_three_dispatchers_at_once(world: QueueWorld):
    trials = capped(world, world.tenant(), 40, maximum=7)
    world.session(slots=100)

    def tick() -> None:
        for _ in range(4):
            world.dispatcher.tick()

    threads = [threading.Thread(target=tick) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert running(world, trials) == 7
