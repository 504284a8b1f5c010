"""Keeps warm pools at their size: starts members, ends those that are too many, too old or of an older template."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from sqlalchemy import Connection, Engine

from core.errors import SandmillError
from core.ids import new_id
from core.logging import get_logger
from core.metrics import POOL_MEMBERS_ENDED, POOL_MEMBERS_STARTED
from core.sealing import SecretBox
from repositories.pool_keeping import KeptPool, PoolKeepingRepository
from repositories.pools import PoolRow
from services.live_sandboxes import LiveSandboxService, PoolMember, SandboxPolicy
from services.pool_plan import PoolPlan, plan_pool
from services.pool_yielding import PoolYielding
from services.pools import DELETED, capacity_of, end_members, to_member

__all__ = ["PoolKeeper"]

log = get_logger(__name__)

_ACTOR = "scheduler"
_AT_ONCE = 50
"""Members of one pool that are started by one transaction; the next look goes on."""
_SURPLUS, _AGED, _OUTDATED = "POOL_SURPLUS", "POOL_MEMBER_AGED", "POOL_OUTDATED"
_GAVE_WAY = "POOL_GAVE_WAY"

_Nodes = dict[UUID, list[UUID]]


@dataclass(slots=True)
class _Done:
    """What one transaction did, to be told after its commit."""

    created: int
    ended: Mapping[UUID, Sequence[UUID]]


class PoolKeeper:
    """One in the installation is enough, two do no harm: each pool is changed under its lock."""

    def __init__(
        self,
        engine: Engine,
        *,
        box: SecretBox,
        policy: SandboxPolicy,
        max_age_seconds: float,
        tell_nodes: Callable[[Mapping[UUID, Sequence[UUID]]], None],
        on_submitted: Callable[[], None],
    ) -> None:
        """policy: as that of creates. tell_nodes: called with what is to end, by node. on_submitted: to dispatch."""
        self._engine = engine
        self._box = box
        self._policy = policy
        self._max_age_seconds = max_age_seconds
        self._tell_nodes = tell_nodes
        self._on_submitted = on_submitted
        self._refused: dict[UUID, str] = {}

    def tick(self) -> bool:
        """Look at all pools once. True: there is more to do at once."""
        with self._engine.begin() as connection:
            keeping = PoolKeepingRepository(connection)
            pools = keeping.all(max_age_seconds=self._max_age_seconds)
            gone = keeping.without_pool()
            waiting = keeping.tenants_waiting({kept.pool.tenant_id for kept in pools}) if pools else set()
        yields = self._yields([kept for kept in pools if kept.pool.tenant_id in waiting])
        has_more = False
        for kept in pools:
            yielded = yields.get(kept.pool.id)
            if yielded or not self._plan(kept).is_empty:
                has_more |= self._keep(kept.pool, yielded)
        for pool_id in gone:
            with self._engine.begin() as connection:
                ended = PoolKeepingRepository(connection).retire(
                    pool_id, limit=1000, reason=DELETED, actor=_ACTOR
                )
                nodes = end_members(connection, ended, DELETED)
            self._tell(_Done(0, nodes))
        return has_more

    def _yields(self, pools: Sequence[KeptPool]) -> dict[UUID, int]:
        """Say how many members give way, by pool, of tenants that have something waiting which quotas keep back."""
        found: dict[UUID, int] = {}
        for tenant_id in {kept.pool.tenant_id for kept in pools}:
            own = [kept for kept in pools if kept.pool.tenant_id == tenant_id]
            with self._engine.begin() as connection:
                found |= PoolYielding(connection, tenant_id, self._policy).in_the_way(own) or {}
        return found

    def _keep(self, pool: PoolRow, yielded: int | None) -> bool:
        """Do what is to be done for one pool, whatever becomes of the others.

        yielded: how many members give way to what waits; None: nothing waits for a quota.
        """
        try:
            with self._engine.begin() as connection:
                keeping = PoolKeepingRepository(connection)
                locked = keeping.lock(pool.id)
                if locked is None:
                    return False
                counts = keeping.counts(pool.id, max_age_seconds=self._max_age_seconds)
                plan = self._plan(KeptPool(locked, counts))
                if yielded is not None:
                    # Smaller than what waits, new members would slip past it.
                    plan = replace(plan, create=0)
                if plan.create and locked.spec.get("job_workdir") is not None:
                    room = PoolYielding(connection, locked.tenant_id, self._policy).room_for(locked)
                    plan = replace(plan, create=min(plan.create, room))
                done = self._apply(connection, locked, plan, yielded or 0)
        except SandmillError as error:
            # The queue of its tenant is full, or its credentials cannot be read: not for the others to suffer from.
            if self._refused.get(pool.id) != error.message:
                log.warning("pool_not_filled", pool_id=str(pool.id), code=error.code, error=error.message)
                self._refused[pool.id] = error.message
            return False
        self._refused.pop(pool.id, None)
        self._tell(done)
        return plan.create > _AT_ONCE

    def _plan(self, kept: KeptPool) -> PoolPlan:
        return plan_pool(capacity_of(kept.pool), kept.counts)

    def _apply(self, connection: Connection, pool: PoolRow, plan: PoolPlan, yielded: int) -> _Done:
        keeping = PoolKeepingRepository(connection)
        nodes: _Nodes = {}
        if plan.retire_outdated:
            ids = keeping.retire_outdated(pool.id, revision=pool.revision, reason=_OUTDATED, actor=_ACTOR)
            self._end(connection, ids, _OUTDATED, nodes)
        if plan.retire_aged:
            ids = keeping.retire_aged(
                pool.id,
                max_age_seconds=self._max_age_seconds,
                limit=plan.retire_aged,
                reason=_AGED,
                actor=_ACTOR,
            )
            self._end(connection, ids, _AGED, nodes)
        if plan.retire:
            ids = keeping.retire(pool.id, limit=plan.retire, reason=_SURPLUS, actor=_ACTOR)
            self._end(connection, ids, _SURPLUS, nodes)
        if yielded > plan.retire:
            ids = keeping.retire(pool.id, limit=yielded - plan.retire, reason=_GAVE_WAY, actor=_ACTOR)
            self._end(connection, ids, _GAVE_WAY, nodes)
        created = min(plan.create, _AT_ONCE)
        if created:
            self._create(connection, pool, created)
        return _Done(created, nodes)

    def _create(self, connection: Connection, pool: PoolRow, number: int) -> None:
        sandboxes = LiveSandboxService(
            connection, pool.tenant_id, policy=self._policy, box=self._box, actor=_ACTOR
        )
        new = to_member(pool, self._box)
        member = PoolMember(
            pool.name,
            pool.id,
            pool.revision,
            is_warm=True,
            max_age_seconds=2 * self._max_age_seconds,
        )
        for _ in range(number):
            sandboxes.add_member(new, new_id(), member)

    def _end(self, connection: Connection, ids: Sequence[UUID], reason: str, nodes: _Nodes) -> None:
        POOL_MEMBERS_ENDED.labels(reason).inc(len(ids))
        for node_id, ended in end_members(connection, ids, reason).items():
            nodes.setdefault(node_id, []).extend(ended)

    def _tell(self, done: _Done) -> None:
        if done.ended:
            self._tell_nodes(done.ended)
        if done.created:
            POOL_MEMBERS_STARTED.inc(done.created)
            self._on_submitted()
