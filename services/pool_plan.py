"""How many members a warm pool is to get or to lose now. Pure: no database, no clock."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from repositories.pool_keeping import MemberCounts

__all__ = ["Amounts", "Capacity", "PoolPlan", "Yielding", "give_way", "plan_pool", "retry_wait_seconds"]

_MOST_TIMES = 1_000_000
_MAX_WAIT_SECONDS = 300.0
_MOST_DOUBLINGS = 10


@dataclass(frozen=True, slots=True)
class Capacity:
    """buffer_min, buffer_max: free members. pool_min, pool_max: free ones and those in use."""

    buffer_min: int
    buffer_max: int
    pool_min: int
    pool_max: int


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """create: members to start. retire: those too many. retire_aged: that have waited too long."""

    create: int = 0
    retire: int = 0
    retire_aged: int = 0
    retire_outdated: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return self == PoolPlan()


@dataclass(frozen=True, slots=True)
class Amounts:
    """A part of a tenant's quotas."""

    running: float = 1
    cpu_millicores: float = 0
    memory_bytes: float = 0
    gpu: float = 0

    def plus(self, other: "Amounts", times: float = 1) -> "Amounts":
        """Add another one, so many times."""
        return Amounts(
            self.running + times * other.running,
            self.cpu_millicores + times * other.cpu_millicores,
            self.memory_bytes + times * other.memory_bytes,
            self.gpu + times * other.gpu,
        )

    def holds(self, other: "Amounts") -> bool:
        """Whether there is as much of all that the other wants. What is overdrawn keeps back only who wants of it."""
        pairs = (
            (self.running, other.running),
            (self.cpu_millicores, other.cpu_millicores),
            (self.memory_bytes, other.memory_bytes),
            (self.gpu, other.gpu),
        )
        return all(not wanted or wanted <= left for left, wanted in pairs)

    def times_in(self, left: "Amounts") -> int:
        """Say how many of these fit into what is left."""
        pairs = (
            (self.running, left.running),
            (self.cpu_millicores, left.cpu_millicores),
            (self.memory_bytes, left.memory_bytes),
            (self.gpu, left.gpu),
        )
        return max(0, math.floor(min([_MOST_TIMES, *(have / each for each, have in pairs if each)])))


@dataclass(frozen=True, slots=True)
class Yielding:
    """Members that give way. pools: how many of each. is_blocked: something waits that they keep from starting."""

    pools: tuple[int, ...]
    is_blocked: bool


def give_way(
    waiting: Sequence[tuple[Amounts, int]],
    left: Amounts,
    members: Sequence[tuple[Amounts, int]],
    *,
    going: Sequence[Amounts] = (),
) -> Yielding:
    """Say how many members of each pool have to go, so that their tenant's quotas let what waits start.

    waiting: each with how many of it, in the order of their turn. left: of the quotas now. members: free ones of each
    pool, those first that go first. going: what is held by those that go already. None goes for what would not start
    even then.
    """
    gone = [0] * len(members)
    is_blocked = False
    soon = left
    for each in going:
        soon = soon.plus(each)
    for wanted, number in waiting:
        for _ in range(number):
            then_gone, then_left = list(gone), soon
            for pool, (each, free) in enumerate(members):
                while not then_left.holds(wanted) and then_gone[pool] < free:
                    then_gone[pool] += 1
                    then_left = then_left.plus(each)
            if not then_left.holds(wanted):
                break
            is_blocked = is_blocked or not left.holds(wanted)
            gone, soon, left = then_gone, then_left.plus(wanted, -1), left.plus(wanted, -1)
    return Yielding(tuple(gone), is_blocked)


def retry_wait_seconds(failed_tries: int) -> float:
    """Say how long nothing is started after so many tries in a row that failed: 1 s, doubled up to five minutes."""
    if failed_tries <= 0:
        return 0.0
    return min(_MAX_WAIT_SECONDS, 2.0 ** min(failed_tries - 1, _MOST_DOUBLINGS))


def plan_pool(capacity: Capacity, counts: MemberCounts) -> PoolPlan:
    """Say what is to be done.

    Below buffer_min free members (or pool_min members) it is filled up to buffer_max, never beyond pool_max, those
    that are about to go included. Members that have waited too long stay until others are ready in their place, as
    long as there is room for those; then, and after twice the time, they go.
    """
    least = max(capacity.buffer_min, capacity.pool_min - counts.allocated)
    most = max(capacity.buffer_max, least)
    # What may be free at all: a pool that was made smaller is not filled up by what others give back.
    most = min(most, max(0, capacity.pool_max - counts.allocated))
    least = min(least, most)
    room = max(0, capacity.pool_max - counts.total)
    fresh = counts.free - counts.aged
    coming = fresh + counts.starting
    create = min(most - coming, room) if coming < least and _may_try(counts) else 0
    retire_aged = counts.overaged
    if counts.aged and fresh >= least:
        retire_aged = counts.aged
    elif counts.aged and coming < least and not room:
        retire_aged = min(counts.aged, max(retire_aged, 1 + (most - 1) // 4))
    return PoolPlan(
        create=create,
        retire=max(0, coming - most),
        retire_aged=retire_aged,
        retire_outdated=counts.outdated > 0,
    )


def _may_try(counts: MemberCounts) -> bool:
    ago = counts.failed_seconds_ago
    return ago is None or ago >= retry_wait_seconds(counts.failed_tries)
