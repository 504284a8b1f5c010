"""Each quota holds, exactly, and by itself: take its clause out of the statement, and its test turns red."""

import threading

import pytest

from repositories.tenant_budgets import TenantBudgetRepository
from services.trials import TrialService
from tests.support.queue import QueueWorld

HOUR = 3600


def tick_until_idle(world: QueueWorld) -> None:
    while world.dispatcher.tick():
        pass


def running(world: QueueWorld, tenant: int) -> int:
    return world.states(tenant).count("running")


@pytest.mark.parametrize(
    ("quota", "trial"),
    [
        ({"max_running": 3}, {}),
        ({"max_cpu_millicores": 3999}, {}),
        ({"max_memory_bytes": 4 * (1 << 28) - 1}, {}),
        ({"max_gpu": 7}, {"gpu": 2}),
        ({"rate_per_second": 0.001, "rate_burst": 3}, {}),
        ({"budget_period_seconds": HOUR, "budget_cpu_seconds": 35}, {"max_cpu_seconds": 10.0}),
    ],
    ids=lambda value: next(iter(value), ""),
)
def test_three_of_ten_start_under_the_quota_and_all_without(world: QueueWorld, quota, trial):
    world.session(slots=50, gpu=64)
    limited, free = world.tenant("limited", **quota), world.tenant("free")
    for tenant in (limited, free):
        world.trials(tenant, 10, **trial)
    tick_until_idle(world)
    assert (running(world, limited), running(world, free)) == (3, 10)


@pytest.mark.parametrize(
    "quota", [{"max_cpu_millicores": 10_000}, {"rate_per_second": 0.001, "rate_burst": 10}]
)
def test_quotas_hold_with_three_dispatchers_at_once(world: QueueWorld, quota):
    tenant = world.tenant(**quota)
    world.many_trials(tenant, [{}] * 60)
    world.session(slots=100)

    def tick() -> None:
        for _ in range(5):
            world.dispatcher.tick()

    threads = [threading.Thread(target=tick) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert running(world, tenant) == 10


def test_a_small_trial_slips_past_one_that_waits_for_quota_until_that_is_old(world: QueueWorld):
    world.session(slots=50)
    tenant = world.tenant(max_cpu_millicores=4000)
    world.trials(tenant, 2, cpu_millicores=1000)
    tick_until_idle(world)
    (large,) = world.trials(tenant, 1, cpu_millicores=3000)
    world.trials(tenant, 1, cpu_millicores=1000)
    tick_until_idle(world)
    assert running(world, tenant) == 3

    world.execute("UPDATE trials SET queued_at = now() - interval '2 minutes' WHERE id = %(id)s", id=large)
    world.trials(tenant, 1, cpu_millicores=1000)
    tick_until_idle(world)
    assert running(world, tenant) == 3


def test_what_can_never_have_quota_holds_up_nobody(world: QueueWorld):
    world.session(slots=50)
    tenant = world.tenant(max_cpu_millicores=2000)
    (large,) = world.trials(tenant, 1, cpu_millicores=3000)
    world.execute("UPDATE trials SET queued_at = now() - interval '2 minutes' WHERE id = %(id)s", id=large)
    world.trials(tenant, 2, cpu_millicores=1000)
    tick_until_idle(world)
    assert running(world, tenant) == 2


def test_tenants_without_quota_left_do_not_stand_in_the_way(world: QueueWorld):
    """More of them, and poorer, than there are slots in a tick."""
    world.session(slots=2)
    for number in range(4):
        world.trials(
            world.tenant(f"spent{number}", budget_period_seconds=HOUR, budget_cpu_seconds=1),
            max_cpu_seconds=9,
        )
    free = world.tenant("free")
    world.trials(free, 2)
    assert world.dispatcher.tick() == 2
    assert running(world, free) == 2


def test_a_higher_class_goes_first_and_priority_only_counts_within_a_tenant(world: QueueWorld):
    world.session(slots=3)
    low, high = world.tenant("low"), world.tenant("high", **{"class": 1})
    world.trials(low, 5, priority=100)
    world.trials(high, 2, priority=-100)
    tick_until_idle(world)
    assert (running(world, low), running(world, high)) == (1, 2)


def test_the_bucket_of_a_rate_fills_again(world: QueueWorld):
    world.session(slots=50)
    tenant = world.tenant(rate_per_second=2, rate_burst=4)
    world.trials(tenant, 20)
    tick_until_idle(world)
    assert running(world, tenant) == 4
    world.execute("UPDATE tenant_schedule SET tokens_at = tokens_at - interval '1500 ms'")
    tick_until_idle(world)
    assert running(world, tenant) == 7
    world.execute("UPDATE tenant_schedule SET tokens_at = tokens_at - interval '1 hour'")
    tick_until_idle(world)
    assert running(world, tenant) == 11


def test_a_budget_is_reserved_at_the_start_and_trued_up_at_the_end(world: QueueWorld):
    seat = world.session(slots=50)
    tenant = world.tenant(budget_period_seconds=HOUR, budget_cpu_seconds=25)
    world.trials(tenant, 5, max_cpu_seconds=10)
    tick_until_idle(world)
    assert running(world, tenant) == 2
    for bell in list(world.bells.rung):
        claimed = seat.claim(bell)
        world.execute("UPDATE attempts SET claimed_at = claimed_at - interval '1 second' WHERE trial_id = %(id)s",
                      id=bell.trial_id)  # fmt: skip
        assert seat.finish(claimed)
    # Each used a second of one core instead of ten: 23 are left, whether they are charged already or not.
    for charge in (False, True):
        if charge:
            with world.engine.begin() as connection:
                assert TenantBudgetRepository(connection).charge_ended() == 2
            (period,) = world.execute("SELECT * FROM budget_periods")
            assert 2.0 <= period["spent_cpu_seconds"] < 4.0
        with world.engine.begin() as connection:
            left = TrialService(connection, tenant)._quotas.standing(tenant).budget_left
        assert 21.0 < left <= 23.0
    tick_until_idle(world)
    assert running(world, tenant) == 2


def test_what_infrastructure_lost_costs_no_budget(world: QueueWorld):
    seat = world.session(slots=50)
    tenant = world.tenant(budget_period_seconds=HOUR, budget_cpu_seconds=10)
    world.trials(tenant, 1, max_cpu_seconds=10)
    world.dispatcher.tick()
    claimed = seat.claim(world.bells.rung[0])
    failure = '{"class": "infra", "code": "node_lost"}'
    world.execute("UPDATE attempts SET claimed_at = claimed_at - interval '9 seconds'")
    assert seat.finish(
        claimed, outcome="error", failure=failure, reason="node_lost", retry_seconds=0.0, infra_loss=1
    )
    with world.engine.begin() as connection:
        TenantBudgetRepository(connection).charge_ended()
        assert TrialService(connection, tenant)._quotas.standing(tenant).budget_left == 10.0


def test_a_paused_or_full_queue_starts_nothing_and_stops_nobody_else(world: QueueWorld):
    world.session(slots=50)
    tenant = world.tenant()
    world.execute(
        "INSERT INTO queues (name, paused_at, max_running) VALUES ('halted', now(), NULL), ('narrow', NULL, 2)"
    )
    halted = world.trials(tenant, 3, queue="halted", priority=9)
    world.trials(tenant, 5, queue="narrow", priority=8)
    world.trials(tenant, 2, queue="unheard-of")
    tick_until_idle(world)
    assert running(world, tenant) == 4
    assert {world.trial(trial)["state"] for trial in halted} == {"queued"}


def test_a_trial_over_quota_says_so(world: QueueWorld):
    world.session(slots=50)
    tenant = world.tenant(max_running=1)
    first, second = world.trials(tenant, 2)
    tick_until_idle(world)
    with world.engine.begin() as connection:
        assert TrialService(connection, tenant).get(second).row.state_reason == "quota"
        assert TrialService(connection, tenant).get(first).row.state_reason is None
