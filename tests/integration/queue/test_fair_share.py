"""The statement that says whose turn it is, against a greedy filling in Python."""

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.support.queue import QueueWorld

CPU, MEMORY = 20_000, 20 << 20


@dataclass
class Tenant:
    """A generated tenant. trials: (priority, cores, MiB) in the order of submission. None: no such quota."""

    weight: float
    rank: int
    max_running: int
    max_cores: int | None
    trials: list[tuple[int, int, int]]
    id: int = 0
    granted: list[int] = field(default_factory=list)

    def waiting(self) -> list[int]:
        order = sorted(range(len(self.trials)), key=lambda n: (-self.trials[n][0], n))
        return [n for n in order if n not in self.granted]

    def used(self) -> tuple[int, int]:
        return (
            sum(1000 * self.trials[n][1] for n in self.granted),
            sum(self.trials[n][2] << 20 for n in self.granted),
        )

    def share(self) -> float:
        cpu, memory = self.used()
        return max(cpu / CPU, memory / MEMORY) / self.weight

    def next_trial(self, free: tuple[int, int]) -> int | None:
        """The first in turn that the quotas, and the room on the node, let start."""
        if len(self.granted) >= self.max_running:
            return None
        for number in self.waiting():
            cpu, memory = 1000 * self.trials[number][1], self.trials[number][2] << 20
            has_quota = self.max_cores is None or self.used()[0] + cpu <= 1000 * self.max_cores
            if has_quota and cpu <= free[0] and memory <= free[1]:
                return number
        return None


def fill_greedily(tenants: list[Tenant], slots: int) -> None:
    """Give one trial at a time to the tenant with the smallest share of the highest class."""
    free = (CPU, MEMORY)
    for _ in range(slots):
        able = [(tenant, tenant.next_trial(free)) for tenant in tenants]
        able = [(tenant, number) for tenant, number in able if number is not None]
        if not able:
            return
        tenant, number = min(able, key=lambda pair: (-pair[0].rank, pair[0].share(), pair[0].id))
        tenant.granted.append(number)
        free = (free[0] - 1000 * tenant.trials[number][1], free[1] - (tenant.trials[number][2] << 20))


def tenants() -> st.SearchStrategy[list[Tenant]]:
    trial = st.tuples(st.integers(-1, 1), st.integers(1, 4), st.integers(1, 4))
    tenant = st.builds(
        Tenant,
        weight=st.sampled_from([0.5, 1.0, 2.0, 4.0]),
        rank=st.sampled_from([0, 0, 0, 3]),
        max_running=st.integers(0, 8),
        max_cores=st.none() | st.integers(0, 12),
        trials=st.lists(trial, min_size=1, max_size=8),
        id=st.just(0),
        granted=st.builds(list),
    )
    return st.lists(tenant, min_size=1, max_size=6)


def load(world: QueueWorld, wanted: list[Tenant], slots: int) -> None:
    tables = ("attempts", "trials", "jobs", "batches", "worker_sessions", "nodes", "tenants")
    with world.engine.begin() as connection:
        for table in tables:
            connection.exec_driver_sql(f"DELETE FROM {table}")
    world.bells.rung.clear()
    world.session(slots=slots, cpu_millicores=CPU, memory_bytes=MEMORY)
    for number, tenant in enumerate(wanted):
        cores = None if tenant.max_cores is None else 1000 * tenant.max_cores
        columns = {"weight": tenant.weight, "class": tenant.rank, "max_running": tenant.max_running}
        tenant.id = world.tenant(f"t{number}", **columns, max_cpu_millicores=cores)
        world.many_trials(
            tenant.id,
            [
                {"priority": priority, "cpu_millicores": 1000 * cores, "memory_bytes": mib << 20}
                for priority, cores, mib in tenant.trials
            ],
        )


# Without shrinking: it takes minutes, and the examples are small as they come.
@settings(
    max_examples=25,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(wanted=tenants(), slots=st.integers(1, 24))
def test_ticks_grant_what_a_greedy_filling_grants(world: QueueWorld, wanted, slots):
    load(world, wanted, slots)
    fill_greedily(wanted, slots)
    expected = Counter({(t.id, t.trials[n]): 0 for t in wanted for n in t.granted})
    expected.update((t.id, t.trials[n]) for t in wanted for n in t.granted)

    while world.dispatcher.tick():
        pass

    rows = world.execute(
        "SELECT tenant_id, priority, cpu_millicores, memory_bytes FROM trials WHERE state = 'running'"
    )
    got = Counter(
        (row["tenant_id"], (row["priority"], row["cpu_millicores"] // 1000, row["memory_bytes"] >> 20))
        for row in rows
    )
    assert got == expected


def test_the_example_of_the_paper(world: QueueWorld):
    """DRF (Ghodsi et al., NSDI 2011): 9 CPU and 18 GB, demands of <1, 4> and <3, 1>, give 3 and 2."""
    world.session(slots=50, cpu_millicores=9_000, memory_bytes=18 << 30)
    first, second = world.tenant("a"), world.tenant("b")
    world.trials(first, 10, cpu_millicores=1_000, memory_bytes=4 << 30)
    world.trials(second, 10, cpu_millicores=3_000, memory_bytes=1 << 30)
    while world.dispatcher.tick():
        pass
    assert [world.states(tenant).count("running") for tenant in (first, second)] == [3, 2]


def test_a_page_of_a_tenant_never_costs_it_what_is_due_to_it(world: QueueWorld):
    """One tenant is due nearly all: that only a page of its trials is read must not give the rest to the others."""
    world.session(slots=100, cpu_millicores=100_000)
    heavy = world.tenant("heavy", weight=64)
    world.many_trials(heavy, [{}] * 100)
    for number in range(9):
        world.many_trials(world.tenant(f"light{number}", weight=1), [{}] * 20)
    while world.dispatcher.tick():
        pass
    # The first to each, 64 to the heavy one, the second to each, the rest to the heavy one.
    assert world.states(heavy).count("running") == 82
