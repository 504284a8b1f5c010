"""What warm pools leave of their tenant's quotas to what it has waiting: members are there for it, not in its way."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection

from repositories.nodes import NodeReadRepository
from repositories.pool_keeping import KeptPool, MemberCounts, PoolKeepingRepository, WaitingRow
from repositories.pools import PoolRow
from repositories.quotas import QuotaRepository, QuotaStanding
from services.jobspec import Resources
from services.live_sandboxes import SandboxPolicy
from services.pool_plan import Amounts, give_way
from services.session_spec import SessionSpec
from services.spare_placement import job_key, pool_job_key
from services.waiting import Demand, lack_of_nodes

__all__ = ["PoolYielding"]

_MOST = 50
"""Trials of one shape that are looked at: more do not start at once."""

_TAKING_SECONDS = 5.0
"""From its placement on an attempt takes a member within some hundredths of a second, if it takes one."""


@dataclass(frozen=True, slots=True)
class _Pool:
    """A pool with free members. job_key: of jobs that can have one; None: no job can."""

    id: UUID
    runtime: str
    each: Amounts
    free: int
    going: int
    job_key: str | None


class PoolYielding:
    """Of one tenant, inside the caller's transaction."""

    def __init__(self, connection: Connection, tenant_id: int, policy: SandboxPolicy) -> None:
        """policy: says what a member holds back."""
        self._tenant_id = tenant_id
        self._policy = policy
        self._keeping = PoolKeepingRepository(connection)
        self._quotas = QuotaRepository(connection)
        self._nodes = NodeReadRepository(connection)

    def in_the_way(self, kept: Sequence[KeptPool]) -> dict[UUID, int] | None:
        """Say how many members of its pools have to go; None: they keep nothing of it from starting.

        kept: all pools of the tenant. An attempt that takes a member gives its place back at once, so of jobs for which
        there is a free one room is made for one at a time.
        """
        standing = self._quotas.standing(self._tenant_id)
        if standing is None or standing.is_paused:
            return None
        pools = [self._to_pool(each) for each in kept]
        waiting = self._waiting()
        keys = {(row.runtime, job_key(row.spec)) for row in waiting if row.kind == "run"}
        # Those first that nothing waits for.
        pools.sort(key=lambda pool: ((pool.runtime, pool.job_key) in keys, pool.id))
        offered = {(pool.runtime, pool.job_key) for pool in pools if pool.free}
        # Whoever is about to take one gives the next its place back: that needs no member to go.
        at_once = 0 if self._keeping.is_taking(self._tenant_id, within_seconds=_TAKING_SECONDS) else 1
        wanted = [(_wanted_by(row), at_once if _is_offered(row, offered) else row.number) for row in waiting]
        yielding = give_way(
            wanted,
            _left_of(standing),
            [(pool.each, pool.free) for pool in pools],
            going=[pool.each for pool in pools for _ in range(pool.going)],
        )
        comes_soon = not at_once and any(_is_offered(row, offered) for row in waiting)
        if not yielding.is_blocked and not comes_soon:
            return None
        return {pool.id: number for pool, number in zip(pools, yielding.pools, strict=True)}

    def room_for(self, pool: PoolRow) -> int:
        """Say how many more members of a pool for jobs the quotas hold beside one attempt that takes one of them."""
        standing = self._quotas.standing(self._tenant_id)
        if standing is None:
            return 0
        spec = SessionSpec.from_json(pool.spec)
        queued = self._keeping.queued(self._tenant_id)
        coming = Amounts(queued.number, queued.cpu_millicores, queued.memory_bytes, queued.gpu)
        left = _left_of(standing).plus(coming, -1).plus(_whole(spec.resources), -1)
        return self._member(spec.resources).times_in(left)

    def _waiting(self) -> list[WaitingRow]:
        """What waits, without what would not start whatever its quotas say."""
        stopped, nodes = self._quotas.stopped_queues(), self._nodes.capacities()
        return [
            row
            for row in self._keeping.waiting(self._tenant_id, most=_MOST)
            if row.queue not in stopped and lack_of_nodes(_demand_of(row), nodes) is None
        ]

    def _to_pool(self, kept: KeptPool) -> _Pool:
        return _Pool(
            id=kept.pool.id,
            runtime=kept.pool.runtime,
            each=self._member(SessionSpec.from_json(kept.pool.spec).resources),
            free=kept.counts.free + kept.counts.starting,
            going=_going(kept.counts),
            job_key=pool_job_key(kept.pool.spec),
        )

    def _member(self, resources: Resources) -> Amounts:
        reserved = self._policy.reserved(resources)
        return Amounts(1, reserved.cpu_millicores, reserved.memory_bytes, resources.gpu)


def _going(counts: MemberCounts) -> int:
    return counts.total - counts.allocated - counts.free - counts.starting


def _is_offered(row: WaitingRow, offered: set[tuple[str, str | None]]) -> bool:
    return row.kind == "run" and (row.runtime, job_key(row.spec)) in offered


def _wanted_by(row: WaitingRow) -> Amounts:
    return Amounts(1, row.cpu_millicores, row.memory_bytes, row.gpu)


def _whole(resources: Resources) -> Amounts:
    return Amounts(1, resources.cpu_millicores, resources.memory_bytes, resources.gpu)


def _demand_of(row: WaitingRow) -> Demand:
    return Demand(row.runtime, row.cpu_millicores, row.memory_bytes, row.gpu, row.node_labels, 0.0)


def _left_of(standing: QuotaStanding) -> Amounts:
    return Amounts(
        *(
            math.inf if left is None else left
            for left in (standing.running_left, standing.cpu_left, standing.memory_left, standing.gpu_left)
        )
    )
