import math

import pytest

from repositories.pool_keeping import MemberCounts
from services.pool_plan import Amounts, Capacity, PoolPlan, Yielding, give_way, plan_pool, retry_wait_seconds


def capacity(**changes: int) -> Capacity:
    return Capacity(**{"buffer_min": 2, "buffer_max": 5, "pool_min": 0, "pool_max": 10, **changes})


def counts(**changes: float | str) -> MemberCounts:
    """Of a pool in which nothing leaves, unless total says so."""
    numbers = {"free": 0, "starting": 0, "allocated": 0, "outdated": 0, **changes}
    total = sum(numbers[name] for name in ("free", "starting", "allocated", "outdated"))
    return MemberCounts(**{"total": total, **numbers})


@pytest.mark.parametrize(
    ("size", "members", "plan"),
    [
        (capacity(), counts(), PoolPlan(create=5)),
        (capacity(), counts(free=1), PoolPlan(create=4)),
        (capacity(), counts(free=2), PoolPlan()),
        (capacity(), counts(free=1, starting=1), PoolPlan()),
        (capacity(), counts(starting=5), PoolPlan()),
        (capacity(buffer_min=0, buffer_max=0), counts(), PoolPlan()),
        (capacity(pool_max=3), counts(), PoolPlan(create=3)),
        (capacity(pool_max=3), counts(allocated=2), PoolPlan(create=1)),
        (capacity(pool_max=3), counts(allocated=3), PoolPlan()),
        (capacity(), counts(allocated=8, total=9), PoolPlan(create=1)),
        (capacity(), counts(allocated=8, total=10), PoolPlan()),
        (capacity(pool_min=4, buffer_min=0, buffer_max=0), counts(), PoolPlan(create=4)),
        (capacity(pool_min=4, buffer_min=0, buffer_max=0), counts(allocated=3), PoolPlan(create=1)),
        (capacity(pool_min=4, buffer_min=0, buffer_max=0), counts(allocated=4), PoolPlan()),
        (capacity(), counts(free=7), PoolPlan(retire=2)),
        (capacity(), counts(free=4, starting=3), PoolPlan(retire=2)),
        (capacity(pool_max=4), counts(free=3, allocated=3), PoolPlan(retire=2)),
        (capacity(pool_max=0), counts(free=3), PoolPlan(retire=3)),
        (capacity(), counts(free=2, outdated=3), PoolPlan(retire_outdated=True)),
        (capacity(), counts(outdated=3), PoolPlan(create=5, retire_outdated=True)),
        (capacity(), counts(outdated=10), PoolPlan(retire_outdated=True)),
        (capacity(), counts(free=3, aged=3), PoolPlan(create=5)),
        (capacity(), counts(free=3, aged=3, starting=5), PoolPlan()),
        (capacity(), counts(free=3, aged=3, starting=6), PoolPlan(retire=1)),
        (capacity(), counts(free=8, aged=3), PoolPlan(retire_aged=3)),
        (capacity(), counts(free=4, aged=2), PoolPlan(retire_aged=2)),
        (capacity(pool_max=5), counts(free=5, aged=5), PoolPlan(retire_aged=2)),
        (capacity(pool_max=1, buffer_min=1, buffer_max=1), counts(free=1, aged=1), PoolPlan(retire_aged=1)),
        (capacity(), counts(free=1, aged=1, overaged=1, starting=2), PoolPlan(retire_aged=1)),
        (capacity(), counts(failed_tries=1, failed_seconds_ago=0.5), PoolPlan()),
        (capacity(), counts(failed_tries=1, failed_seconds_ago=1.0), PoolPlan(create=5)),
        (capacity(), counts(free=7, failed_tries=9, failed_seconds_ago=1.0), PoolPlan(retire=2)),
    ],
)
def test_what_is_done_for_a_pool(size: Capacity, members: MemberCounts, plan: PoolPlan):
    assert plan_pool(size, members) == plan


@pytest.mark.parametrize(
    ("tries", "seconds"), [(0, 0), (1, 1), (2, 2), (5, 16), (9, 256), (10, 300), (10**6, 300)]
)
def test_the_wait_doubles_up_to_five_minutes(tries: int, seconds: float):
    assert retry_wait_seconds(tries) == seconds


@pytest.mark.parametrize("free", range(12))
@pytest.mark.parametrize("aged", [0, 1, 4])
@pytest.mark.parametrize("starting", [0, 1, 6])
@pytest.mark.parametrize("allocated", [0, 3, 12])
def test_a_plan_never_ends_in_more_than_there_may_be_nor_ends_what_is_not_there(
    free, aged, starting, allocated
):
    members = counts(free=free, aged=min(aged, free), starting=starting, allocated=allocated)
    plan = plan_pool(capacity(), members)
    assert min(plan.create, plan.retire, plan.retire_aged) >= 0
    assert members.total + plan.create <= max(10, members.total)
    assert plan.retire + plan.retire_aged <= free + starting
    assert plan.retire_aged <= members.aged
    assert not (plan.create and plan.retire)
    assert plan.retire == 0 or free - members.aged + starting - plan.retire >= min(2, 10 - min(allocated, 10))


ONE, BIG = Amounts(1, 1000), Amounts(1, 4000)
MEMBER = Amounts(1, 100)
SOME = [(MEMBER, 2), (MEMBER, 5)]


def quota(running: float, cpu: float = math.inf) -> Amounts:
    return Amounts(running, cpu, math.inf, math.inf)


@pytest.mark.parametrize(
    ("waiting", "left", "members", "pools", "is_blocked"),
    [
        ([], quota(0), SOME, (0, 0), False),
        ([(ONE, 1)], quota(1), SOME, (0, 0), False),
        ([(ONE, 1)], quota(0), SOME, (1, 0), True),
        ([(ONE, 4)], quota(1), SOME, (2, 1), True),
        ([(ONE, 9)], quota(0), SOME, (2, 5), True),
        ([(ONE, 1)], quota(9, 850), SOME, (2, 0), True),
        ([(BIG, 1)], quota(9, 850), SOME, (0, 0), False),
        ([(BIG, 1), (ONE, 1)], quota(9, 850), SOME, (2, 0), True),
        ([(ONE, 1)], quota(-1), SOME, (2, 0), True),
        ([(ONE, 1)], Amounts(1, math.inf, -5, math.inf), SOME, (0, 0), False),
    ],
    ids=[
        "nothing",
        "room",
        "one",
        "several",
        "all",
        "cpu",
        "never",
        "behind-never",
        "overdrawn",
        "other-overdrawn",
    ],
)
def test_so_many_members_give_way_as_have_to(waiting, left, members, pools, is_blocked):
    assert give_way(waiting, left, members) == Yielding(pools, is_blocked)


def test_what_goes_already_is_not_told_to_go_again_and_nothing_is_made_meanwhile():
    assert give_way([(ONE, 1)], quota(0), SOME, going=[MEMBER]) == Yielding((0, 0), is_blocked=True)
    assert give_way([(ONE, 2)], quota(0), SOME, going=[MEMBER]) == Yielding((1, 0), is_blocked=True)


def test_how_often_something_fits_is_told_by_the_scarcest():
    assert MEMBER.times_in(quota(7, 450)) == 4
    assert MEMBER.times_in(quota(2, 450)) == 2
    assert MEMBER.times_in(quota(-1, 450)) == 0
    assert MEMBER.times_in(quota(math.inf)) > 1000
