"""How many members a warm pool is to get or to lose now. Pure: no database, no clock."""

from dataclasses import dataclass

from repositories.pool_keeping import MemberCounts

__all__ = ["Capacity", "PoolPlan", "plan_pool", "retry_wait_seconds"]

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
