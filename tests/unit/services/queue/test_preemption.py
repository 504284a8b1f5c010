from datetime import UTC, datetime, timedelta
from uuid import UUID

from repositories.fair_share import NodeRoom, Starving, WaitingShape
from repositories.preemption import Victim
from services.preemption import Holdings, choose_victims

GIB = 1 << 30
START = datetime(2026, 1, 1, tzinfo=UTC)
OWED, GREEDY, OTHER = 1, 2, 3


def make_node(*, free_cpu=0, free_slots=0, runtimes=("fake",), number=1) -> NodeRoom:
    return NodeRoom(
        UUID(int=number), frozenset(runtimes), free_slots, 10_000, 10 * GIB, free_cpu, 10 * GIB, slots=100
    )


def make_victim(number: int, *, tenant=GREEDY, cpu=1000, age=0, is_told=False, node=1) -> Victim:
    created = START - timedelta(minutes=age)
    return Victim(UUID(int=100 + number), 1, tenant, UUID(int=node), cpu, 0, 0, created, is_told)


def make_claim(*, cpu=1000) -> Starving:
    return Starving(OWED, 7, WaitingShape("fake", cpu, 0, 0, {}), has_room=False, is_next=True)


def make_holdings(guaranteed=0.5, **held: int) -> Holdings:
    names = {"owed": OWED, "greedy": GREEDY, "other": OTHER}
    amounts = {names[name]: (cpu, 0, 0) for name, cpu in held.items()}
    guarantees = {OWED: (1.0, guaranteed), GREEDY: (1.0, 0.0), OTHER: (1.0, 0.0)}
    return Holdings((10_000, 10 * GIB, 0), amounts, guarantees)


def numbers(victims) -> list[int]:
    return [victim.trial_id.int - 100 for victim in victims]


def test_the_youngest_attempt_of_who_holds_most_goes():
    victims = [make_victim(1, age=9), make_victim(2, age=3), make_victim(3, tenant=OTHER, age=1)]
    holdings = make_holdings(greedy=8000, other=2000)
    assert numbers(choose_victims([make_claim()], victims, [make_node()], holdings)) == [2]


def test_as_many_go_as_make_room_and_no_more():
    victims = [make_victim(number, age=number) for number in range(1, 9)]
    holdings = make_holdings(greedy=8000)
    assert numbers(choose_victims([make_claim(cpu=3000)], victims, [make_node(free_cpu=1000)], holdings)) == [
        1,
        2,
    ]


def test_nobody_goes_for_a_tenant_that_would_hold_more_than_it_is_guaranteed():
    holdings = make_holdings(guaranteed=0.2, owed=2000, greedy=8000)
    assert choose_victims([make_claim()], [make_victim(1)], [make_node()], holdings) == []


def test_nobody_falls_below_who_takes():
    """Else the two would take from each other for ever."""
    holdings = make_holdings(guaranteed=1.0, owed=4000, greedy=5500)
    assert choose_victims([make_claim()], [make_victim(1)], [make_node()], holdings) == []


def test_who_is_on_the_way_out_is_waited_for():
    victims = [make_victim(1, is_told=True), make_victim(2)]
    assert choose_victims([make_claim()], victims, [make_node()], make_holdings(greedy=9000)) == []


def test_nobody_goes_where_the_trial_could_not_run():
    node = make_node(runtimes=("docker",))
    assert choose_victims([make_claim()], [make_victim(1)], [node], make_holdings(greedy=9000)) == []


def test_a_victims_own_guarantee_holds():
    holdings = make_holdings(guaranteed=0.5, greedy=6000)
    guarantees = {**holdings.guarantees, GREEDY: (1.0, 0.6)}
    holdings = Holdings(holdings.capacity, holdings.held, guarantees)
    assert choose_victims([make_claim()], [make_victim(1)], [make_node()], holdings) == []
