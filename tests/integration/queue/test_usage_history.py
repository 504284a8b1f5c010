"""What tenants held, forgotten by half-life. Time is moved by setting back when it was counted last."""

import pytest

from repositories.usage_history import UsageHistoryRepository
from services.tenant_accounts import TenantAccounts
from tests.support.queue import QueueWorld

HALF_LIFE = 3600.0


@pytest.fixture
def holder(world: QueueWorld) -> int:
    """A tenant that holds a quarter of the cpu, and less of the memory."""
    world.session(cpu_millicores=8000, memory_bytes=64 << 30)
    tenant = world.tenant("holder")
    world.trials(tenant, 1, cpu_millicores=2000, memory_bytes=1 << 30)
    world.dispatcher.tick()
    return tenant


def roll(world: QueueWorld, *, after: float) -> dict[str, float]:
    """Count anew as if the last time had been so many half-lives ago; gives the usage by name."""
    world.execute(
        "UPDATE tenant_schedule SET usage_at = clock_timestamp() - make_interval(secs => %(s)s)",
        s=after * HALF_LIFE,
    )
    TenantAccounts(world.engine, half_life_seconds=HALF_LIFE).roll()
    sql = "SELECT t.name, s.usage FROM tenant_schedule s JOIN tenants t ON t.id = s.tenant_id"
    return {row["name"]: row["usage"] for row in world.execute(sql)}


def note(world: QueueWorld, name: str, usage: float, **columns: float) -> int:
    tenant = world.tenant(name, **columns)
    world.execute("INSERT INTO tenant_schedule (tenant_id, usage) VALUES (%(t)s, %(u)s)", t=tenant, u=usage)
    return tenant


def test_what_is_held_counts_from_now_on(world: QueueWorld, holder: int):
    assert roll(world, after=0) == {"holder": 0}
    assert roll(world, after=1)["holder"] == pytest.approx(0.125, abs=0.001)
    # Half of what was, and half of what is: never more than is held.
    assert roll(world, after=1)["holder"] == pytest.approx(0.1875, abs=0.001)
    assert roll(world, after=50)["holder"] == pytest.approx(0.25, abs=0.001)


def test_the_largest_part_counts_whatever_it_is_of(world: QueueWorld):
    world.session(cpu_millicores=64_000, memory_bytes=1 << 30, gpu=4)
    tenant = world.tenant("holder")
    world.trials(tenant, 1, cpu_millicores=1000, memory_bytes=1 << 29, gpu=1)
    world.dispatcher.tick()
    roll(world, after=0)
    assert roll(world, after=50)["holder"] == pytest.approx(0.5, abs=0.001)


def test_after_a_half_life_what_was_counts_half(world: QueueWorld):
    world.session()
    note(world, "past", 0.8)
    assert roll(world, after=1)["past"] == pytest.approx(0.4, abs=0.001)
    assert roll(world, after=2)["past"] == pytest.approx(0.1, abs=0.001)


def test_who_holds_nothing_falls_no_lower_than_the_least_of_those_who_do(world: QueueWorld, holder: int):
    world.execute("INSERT INTO tenant_schedule (tenant_id, usage) VALUES (%(t)s, 0.2)", t=holder)
    note(world, "idle", 0.0)
    note(world, "idle and heavy", 0.0, weight=2.0)
    note(world, "idle after much", 0.9)
    found = roll(world, after=0)
    assert found["holder"] == pytest.approx(0.2, abs=0.001)
    assert found["idle"] == pytest.approx(0.2, abs=0.001)
    assert found["idle and heavy"] == pytest.approx(0.4, abs=0.001)
    assert found["idle after much"] == pytest.approx(0.9, abs=0.001)


def test_an_installation_without_nodes_divides_by_nothing(world: QueueWorld):
    note(world, "past", 0.8)
    with world.engine.begin() as connection:
        assert UsageHistoryRepository(connection).roll(half_life_seconds=HALF_LIFE, capacity=(0, 0, 0)) == 1
