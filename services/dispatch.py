"""Admission and placement: one transaction under the dispatch lock, bells after the commit."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sqlalchemy import Engine

from core.failpoints import failpoint
from core.ids import new_id
from core.logging import get_logger
from core.metrics import DISPATCHED, REAPED, TICK_SECONDS
from core.tracing import span
from repositories.dispatch import Bell, DispatchRepository
from services.placement import place

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
    """slots_per_tick: most trials started at once. Seconds: see the settings of the same names."""

    slots_per_tick: int
    rering_seconds: float
    claim_timeout_seconds: float


class Dispatcher:
    """Starts queued trials on nodes with room."""

    def __init__(self, engine: Engine, ringer: BellRinger, policy: DispatchPolicy) -> None:
        """engine: its connections write events as the scheduler."""
        self._engine = engine
        self._ringer = ringer
        self._policy = policy

    def tick(self) -> int:
        """Dispatch once; gives how many trials were started. A full tick means that more may wait.

        A crash before the commit changes nothing; after it, the attempts in state `dispatched` are the record from
        which `ring_again` rings.
        """
        with TICK_SECONDS.time(), self._engine.begin() as connection:
            repository = DispatchRepository(connection)
            repository.lock()
            failpoint("dispatch.after_lock")
            nodes = [node for node in repository.nodes() if node.free_slots > 0]
            if not nodes:
                return 0
            slots = min(sum(node.free_slots for node in nodes), self._policy.slots_per_tick)
            trials = repository.pick(nodes, slots=slots)
            placed = [(trial, node, new_id()) for trial, node in place(trials, nodes)]
            if not placed:
                return 0
            bells = repository.dispatch(placed, claim_timeout_seconds=self._policy.claim_timeout_seconds)
            failpoint("dispatch.before_commit")
        failpoint("dispatch.after_commit")
        DISPATCHED.inc(len(bells))
        with span("dispatch", kind="producer", attributes={"sandmill.bells": len(bells)}):
            self._ringer.ring(bells)
        failpoint("dispatch.after_send")
        log.debug("trials_dispatched", count=len(bells))
        return len(bells)

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
