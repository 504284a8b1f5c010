"""Takes preemptible attempts away from who holds most, for tenants below their guaranteed share; and drains nodes."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from sqlalchemy import Connection, Engine

from core.logging import get_logger
from repositories.dispatch import DispatchRepository
from repositories.fair_share import FairShareRepository, NodeRoom, PickLimits, Starving, WaitingShape
from repositories.preemption import PreemptionRepository, Victim
from services.placement import could_hold, has_room

__all__ = ["Holdings", "Preemptor", "choose_victims"]

log = get_logger(__name__)

Amounts = tuple[int, int, int]
"""CPU millicores, memory bytes, GPUs."""


@dataclass(frozen=True, slots=True)
class Holdings:
    """Who holds what of the whole, by tenant. guarantees: (weight, guaranteed share or 0)."""

    capacity: Amounts
    held: Mapping[int, Amounts]
    guarantees: Mapping[int, tuple[float, float]]

    def share(self, tenant_id: int, *, more: Amounts = (0, 0, 0)) -> float:
        """The dominant share of a tenant, if it held so much more."""
        held = self.held.get(tenant_id, (0, 0, 0))
        return max((h + m) / max(1, c) for h, m, c in zip(held, more, self.capacity, strict=True))

    def weighted(self, tenant_id: int, *, more: Amounts = (0, 0, 0)) -> float:
        """The same over the tenant's weight."""
        return self.share(tenant_id, more=more) / self.guarantees[tenant_id][0]

    def moved(self, tenant_id: int, amounts: Amounts, *, sign: int) -> "Holdings":
        """Give the holdings after a tenant got or lost so much."""
        held = self.held.get(tenant_id, (0, 0, 0))
        cpu, memory, gpu = (h + sign * a for h, a in zip(held, amounts, strict=True))
        return replace(self, held={**self.held, tenant_id: (cpu, memory, gpu)})


def choose_victims(
    waiting: Sequence[Starving], victims: Sequence[Victim], nodes: Sequence[NodeRoom], holdings: Holdings
) -> list[Victim]:
    """Say which attempts to take away. Pure.

    For each shape that waits, in its order, as long as its tenant stays within its guaranteed share: the node on which
    the fewest attempts have to go. Taken first from the tenant with the largest share for its weight, the youngest
    attempt first; never so many that its share would fall below what the other one would then have, or below its own
    guarantee. What is on its way out already is waited for, not taken twice.
    """
    leaving = [victim for victim in victims if victim.is_told]
    rooms = {node.id: _with(node, [v for v in leaving if v.node_id == node.id]) for node in nodes}
    for victim in leaving:
        holdings = holdings.moved(victim.tenant_id, _amounts(victim), sign=-1)
    left = [victim for victim in victims if not victim.is_told]
    chosen: list[Victim] = []
    for claim in waiting:
        wanted = _amounts(claim.wanted)
        if holdings.share(claim.tenant_id, more=wanted) > holdings.guarantees[claim.tenant_id][1] + 1e-9:
            continue
        plans = [
            (plan, node)
            for node in rooms.values()
            if (plan := _plan(claim, node, left, holdings)) is not None
        ]
        if not plans:
            continue
        plan, node = min(plans, key=lambda found: (len(found[0]), found[1].id))
        holdings = holdings.moved(claim.tenant_id, wanted, sign=1)
        for victim in plan:
            holdings = holdings.moved(victim.tenant_id, _amounts(victim), sign=-1)
        rooms[node.id] = _without(_with(node, plan), claim.wanted)
        left = [victim for victim in left if victim not in plan]
        chosen += plan
    return chosen


def _plan(
    claim: Starving, node: NodeRoom, victims: Sequence[Victim], holdings: Holdings
) -> list[Victim] | None:
    """Give the attempts that have to go from this node; None if that is not allowed or not enough."""
    if not could_hold(claim.wanted, node):
        return None
    plan: list[Victim] = []
    mine = holdings.weighted(claim.tenant_id, more=_amounts(claim.wanted))
    candidates = [v for v in victims if v.node_id == node.id and v.tenant_id != claim.tenant_id]
    while not has_room(claim.wanted, node):
        allowed = [victim for victim in candidates if _may_lose(victim, mine, holdings)]
        if not allowed:
            return None
        victim = max(allowed, key=lambda v: (holdings.weighted(v.tenant_id), v.created_at))
        candidates.remove(victim)
        plan.append(victim)
        node = _with(node, [victim])
        holdings = holdings.moved(victim.tenant_id, _amounts(victim), sign=-1)
    return plan


def _may_lose(victim: Victim, claimed: float, holdings: Holdings) -> bool:
    after = holdings.moved(victim.tenant_id, _amounts(victim), sign=-1)
    guaranteed = holdings.guarantees[victim.tenant_id][1]
    return after.weighted(victim.tenant_id) >= claimed and after.share(victim.tenant_id) >= guaranteed


def _amounts(of: Victim | WaitingShape) -> Amounts:
    return of.cpu_millicores, of.memory_bytes, of.gpu


def _with(node: NodeRoom, victims: Sequence[Victim]) -> NodeRoom:
    return replace(
        node,
        free_slots=node.free_slots + len(victims),
        free_cpu_millicores=node.free_cpu_millicores + sum(v.cpu_millicores for v in victims),
        free_memory_bytes=node.free_memory_bytes + sum(v.memory_bytes for v in victims),
        free_gpu=node.free_gpu + sum(v.gpu for v in victims),
    )


def _without(node: NodeRoom, wanted: WaitingShape) -> NodeRoom:
    return replace(
        node,
        free_slots=node.free_slots - 1,
        free_cpu_millicores=node.free_cpu_millicores - wanted.cpu_millicores,
        free_memory_bytes=node.free_memory_bytes - wanted.memory_bytes,
        free_gpu=node.free_gpu - wanted.gpu,
    )


class Preemptor:
    """Looks once in a while who has to make room."""

    def __init__(
        self, engine: Engine, tell: Callable[[Mapping[UUID, Sequence[UUID]]], None], *, after_seconds: float
    ) -> None:
        """tell: gets the trials by node, to wake their workers. after_seconds: so long a trial has waited before."""
        self._engine = engine
        self._tell = tell
        self._after = after_seconds

    def run(self) -> int:
        """Tell attempts to go; gives how many were told now."""
        with self._engine.begin() as connection:
            dispatch = DispatchRepository(connection)
            dispatch.lock()
            repository = PreemptionRepository(connection)
            told = repository.drain()
            told += self._make_room(connection, dispatch.nodes())
            if told:
                repository.take_back_unclaimed()
        nodes: dict[UUID, list[UUID]] = {}
        for trial_id, node_id in told:
            nodes.setdefault(node_id, []).append(trial_id)
        if nodes:
            log.info("attempts_preempted", count=len(told))
            self._tell(nodes)
        return len(told)

    def _make_room(self, connection: Connection, nodes: Sequence[NodeRoom]) -> list[tuple[UUID, UUID]]:
        repository = PreemptionRepository(connection)
        guarantees = repository.guarantees()
        if not guarantees or not nodes:
            return []
        capacity = (
            sum(node.cpu_millicores for node in nodes),
            sum(node.memory_bytes for node in nodes),
            sum(node.gpu for node in nodes),
        )
        limits = PickLimits(1, 0, 0, 0.0, history=0.0, hold_seconds=self._after, capacity=capacity)
        free = [node for node in nodes if node.free_slots > 0]
        waiting = FairShareRepository(connection).waiting_with_guarantee(
            free, limits, start=random.getrandbits(62)
        )
        if not waiting:
            return []
        holdings = Holdings(capacity, repository.held(), guarantees)
        victims = choose_victims(waiting, repository.preemptible(), nodes, holdings)
        return repository.preempt(victims) if victims else []
