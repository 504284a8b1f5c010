"""Admission and placement: one transaction under the dispatch lock, bells after the commit."""

import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from sqlalchemy import Connection, Engine

from core.failpoints import failpoint
from core.ids import new_id
from core.logging import get_logger
from core.metrics import DISPATCHED, REAPED, TICK_SECONDS
from core.tracing import span
from repositories.dispatch import Bell, DispatchRepository
from repositories.fair_share import FairShareRepository, NodeRoom, PickLimits, QueuedTrial
from repositories.tenant_budgets import TenantBudgetRepository
from services.gates import Gates
from services.placement import place
from services.reservations import Reservations
from services.spare_placement import with_spares

__all__ = ["BellRinger", "DispatchPolicy", "Dispatcher"]

log = get_logger(__name__)


class BellRinger(Protocol):
    """Tells a node that an attempt waits for it."""

    def ring(self, bells: Sequence[Bell], *, again: bool = False) -> None:
        """Send what can be sent. Never raises: a bell that gets lost is rung again from the database.

        again: nobody answered them the first time.
        """


@dataclass(frozen=True, slots=True)
class DispatchPolicy:
    """slots_per_tick: most trials started at once. Seconds and the rest: see the settings of the same names."""

    slots_per_tick: int
    rering_seconds: float
    claim_timeout_seconds: float
    hold_seconds: float = 60.0
    avoid_node_seconds: float = 30.0
    usage_weight: float = 0.0
    newcomer_reserve: float = 0.0


class Dispatcher:
    """Starts queued trials on nodes with room."""

    def __init__(self, engine: Engine, ringer: BellRinger, policy: DispatchPolicy) -> None:
        """engine: its connections write events as the scheduler."""
        self._engine = engine
        self._ringer = ringer
        self._policy = policy
        self._gates = Gates()
        self._reservations = Reservations()
        self._reserve_at = 0.0

    def tick(self) -> int:
        """Dispatch once; gives how many trials were started. A full tick means that more may wait.

        A crash before the commit changes nothing; after it, the attempts in state `dispatched` are the record from
        which `ring_again` rings.
        """
        with TICK_SECONDS.time(), self._engine.begin() as connection:
            repository = DispatchRepository(connection)
            repository.lock(is_durable=False)
            failpoint("dispatch.after_lock")
            nodes, has_capped = repository.look()
            bells = self._start(connection, nodes, has_capped=has_capped)
            if not bells:
                return 0
            failpoint("dispatch.before_commit")
        failpoint("dispatch.after_commit")
        DISPATCHED.inc(len(bells))
        with span("dispatch", kind="producer", attributes={"sandmill.bells": len(bells)}):
            self._ringer.ring(bells)
        failpoint("dispatch.after_send")
        log.debug("trials_dispatched", count=len(bells))
        return len(bells)

    def _start(
        self, connection: Connection, nodes: Sequence[NodeRoom], *, has_capped: bool = True
    ) -> list[Bell]:
        self._reserve(connection, nodes)
        free = [node for node in nodes if node.free_slots > 0]
        if not free:
            return []
        if has_capped:
            self._gates.open(connection, limit=self._policy.slots_per_tick)
        bells: list[Bell] = []
        for node, shape in self._reservations.ready(free):
            started = self._start_on(connection, [node], nodes, only=(shape.tenant_id, shape.shape))
            if started:
                self._reservations.drop(node.id)
            bells += started
        kept = self._reservations.nodes | {bell.node_id for bell in bells}
        return bells + self._start_on(connection, [node for node in free if node.id not in kept], nodes)

    def _reserve(self, connection: Connection, nodes: Sequence[NodeRoom]) -> None:
        """Once a second: it costs as much as a tick, and is about waits of a minute."""
        now = time.monotonic()
        if now < self._reserve_at or not nodes:
            return
        self._reserve_at = now + 1.0
        kept = self._reservations.nodes
        others = [node for node in nodes if node.free_slots > 0 and node.id not in kept]
        starving = FairShareRepository(connection).starving(
            others, self._limits(nodes, nodes), start=_any_place()
        )
        self._reservations.update(starving, nodes)

    def _start_on(
        self,
        connection: Connection,
        free: Sequence[NodeRoom],
        nodes: Sequence[NodeRoom],
        *,
        only: tuple[int, int] | None = None,
    ) -> list[Bell]:
        if not free:
            return []
        limits = self._limits(free, nodes)
        trials: Sequence[QueuedTrial] = FairShareRepository(connection).pick(
            free, limits, start=_any_place(), only=only
        )
        full = [node for node in nodes if node.free_slots <= 0]
        trials, free = with_spares(DispatchRepository(connection), trials, free)
        pairs = place(trials, free, full=full, avoid_seconds=self._policy.avoid_node_seconds)
        placed = [(trial, node, new_id()) for trial, node in _until_full(trials, pairs)]
        if not placed:
            return []
        bells = DispatchRepository(connection).dispatch(
            placed, claim_timeout_seconds=self._policy.claim_timeout_seconds
        )
        rated = {trial.id: trial.tenant_id for trial in trials if trial.has_rate}
        starts = Counter(rated[bell.trial_id] for bell in bells if bell.trial_id in rated)
        if starts:
            TenantBudgetRepository(connection).take_tokens(starts)
        return bells

    def _limits(self, free: Sequence[NodeRoom], nodes: Sequence[NodeRoom]) -> PickLimits:
        policy = self._policy
        free_slots = sum(max(0, node.free_slots) for node in free)
        return PickLimits(
            slots=min(free_slots, policy.slots_per_tick),
            free_slots=free_slots,
            all_slots=sum(node.slots for node in nodes),
            newcomer_reserve=policy.newcomer_reserve,
            history=policy.usage_weight,
            hold_seconds=policy.hold_seconds,
            capacity=(
                sum(node.cpu_millicores for node in nodes),
                sum(node.memory_bytes for node in nodes),
                sum(node.gpu for node in nodes),
            ),
        )

    def ring_again(self) -> int:
        """Ring for attempts nobody claimed, and take back those past their claim timeout."""
        with self._engine.begin() as connection:
            repository = DispatchRepository(connection)
            repository.lock()
            recalled = repository.recall_unclaimed()
            bells = repository.ring_again(age_seconds=self._policy.rering_seconds)
        self._ringer.ring(bells, again=True)
        REAPED.labels("recalled").inc(recalled)
        if recalled or bells:
            log.info("bells_rung_again", count=len(bells), recalled=recalled)
        return recalled


def _until_full(
    trials: Sequence[QueuedTrial], pairs: Sequence[tuple[UUID, UUID]]
) -> Sequence[tuple[UUID, UUID]]:
    """Drop what comes after the first trial for which there was no room left.

    It was its tenant's turn: the next tick gives it to what of that tenant still fits, before others go on. Nothing of
    that shape fits any more, so this costs at most one tick per shape.
    """
    placed = {trial for trial, _ in pairs}
    for number, trial in enumerate(trials):
        if trial.id not in placed and not trial.avoided:
            before = {earlier.id for earlier in trials[:number]}
            return [pair for pair in pairs if pair[0] in before]
    return pairs


def _any_place() -> int:
    return random.getrandbits(63) - (1 << 62)
