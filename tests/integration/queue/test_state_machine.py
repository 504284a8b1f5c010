"""Random histories over the real statements on a real database, with a clock that the test moves; a model says what is
allowed, and every invariant is asked after every step.

SANDMILL_PROPERTY_EXAMPLES and SANDMILL_PROPERTY_STEPS: more than the few that fit into a run of all tests.
"""

import contextlib
import os
from dataclasses import dataclass, field
from random import Random
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy.exc import OperationalError

from core.database import create_database_engine
from repositories.attempts import AttemptEnd, AttemptRepository, ClaimedAttempt
from repositories.dispatch import Bell
from repositories.invariants import InvariantRepository, all_invariants
from repositories.sessions import SessionRepository
from services.batch_verbs import BatchVerbService
from services.reaping import Reaper
from tests.support.queue import QueueWorld, Seat

EXAMPLES = int(os.environ.get("SANDMILL_PROPERTY_EXAMPLES", "12"))
STEPS = int(os.environ.get("SANDMILL_PROPERTY_STEPS", "25"))
LEASE, GRACE, CLAIM_TIMEOUT, RERING = 60.0, 5.0, 30.0, 2.0
TOLERANCE = 2.0
"""Seconds of real time that may pass within an example beside those of the moved clock."""

# Found before pg_catalog by every unqualified call, whichever statement or trigger makes it.
VIRTUAL_CLOCK = """
CREATE SCHEMA virtual;
CREATE TABLE virtual.clock (moved interval NOT NULL);
INSERT INTO virtual.clock VALUES ('0');
CREATE FUNCTION virtual.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
  AS 'SELECT pg_catalog.clock_timestamp() + moved FROM virtual.clock';
DO $$ DECLARE c record; BEGIN
  EXECUTE format('ALTER DATABASE %I SET search_path = virtual, public, pg_catalog', current_database());
  FOR c IN SELECT table_schema, table_name, column_name FROM information_schema.columns
           WHERE table_schema = 'public' AND column_default LIKE '%clock_timestamp()%' LOOP
    EXECUTE format('ALTER TABLE %I.%I ALTER COLUMN %I SET DEFAULT virtual.clock_timestamp()',
                   c.table_schema, c.table_name, c.column_name);
  END LOOP;
END $$
"""


@dataclass
class Held:
    """An attempt that a session has claimed and that has not ended yet."""

    claimed: ClaimedAttempt
    seat: "ModelSeat"
    is_started: bool = False


@dataclass
class ModelSeat:
    """A node with its present session, as the model knows it. lease_until: in model seconds."""

    seat: Seat
    lease_until: float
    is_over: bool = False
    held: list[Held] = field(default_factory=list)


class Queue(RuleBasedStateMachine):
    """One database for all examples, emptied for each."""

    world: QueueWorld

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.tenants: list[int] = []
        self.seats: list[ModelSeat] = []
        self.old_seats: list[ModelSeat] = []
        self.bells: list[Bell] = []
        self.rung_at: dict[tuple[UUID, int], float] = {}
        self.trials: list[tuple[int, UUID]] = []
        self.ends: dict[UUID, str] = {}
        self.rng = Random(0)

    @initialize()
    def begin(self) -> None:
        tables = [
            row["name"]
            for row in self.world.execute(
                "SELECT c.oid::regclass::text AS name FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
                " WHERE n.nspname = 'public' AND c.relkind IN ('r', 'p') AND NOT c.relispartition"
                " AND c.relname NOT IN ('alembic_version', 'state_transitions', 'queues')"
            )
        ]
        # The watch reads the same tables in another order.
        for _ in range(20):
            with contextlib.suppress(OperationalError):
                self.world.execute(f"TRUNCATE {', '.join(tables)} RESTART IDENTITY CASCADE")
                break
        else:
            pytest.fail("the tables cannot be emptied")
        self.world.execute("UPDATE virtual.clock SET moved = '0'")
        self.world.bells.rung.clear()
        self.reaper = Reaper(self.world.engine, lease_grace_seconds=GRACE, lease_seconds=LEASE)
        self.tenants = [
            self.world.tenant("ant", max_running=3),
            self.world.tenant("bee", max_running=5, weight=2),
        ]
        for _ in range(2):
            self.seats.append(ModelSeat(self.world.session(slots=3, lease=LEASE), self.now + LEASE))

    # What clients do.

    @rule(tenant=st.integers(0, 1), count=st.integers(1, 4), priority=st.integers(-1, 1))
    def submit(self, tenant: int, count: int, priority: int) -> None:
        made = self.world.trials(self.tenants[tenant], count, priority=priority)
        self.trials += [(self.tenants[tenant], trial) for trial in made]

    @precondition(lambda self: self.trials)
    @rule(choice=st.integers(0, 1000), mode=st.sampled_from(["graceful", "force"]))
    def cancel(self, choice: int, mode: str) -> None:
        tenant, trial = self.trials[choice % len(self.trials)]
        with self.world.engine.begin() as connection:
            service = BatchVerbService(connection, tenant)
            service.cancel(service.trial(trial), mode=mode)

    @rule(tenant=st.integers(0, 1), limit=st.integers(0, 6))
    def set_quota(self, tenant: int, limit: int) -> None:
        """Also below what runs."""
        self.world.execute(
            "UPDATE tenants SET max_running = %(n)s WHERE id = %(id)s", n=limit, id=self.tenants[tenant]
        )

    # What the scheduler does.

    @rule()
    def tick(self) -> None:
        self.world.dispatcher.tick()
        self._take_bells()

    @rule()
    def ring_again(self) -> None:
        before = self._live("dispatched")
        self.world.dispatcher.ring_again()
        self._take_bells()
        for key in before - self._live("dispatched"):
            assert self.now - self.rung_at[key] > CLAIM_TIMEOUT - TOLERANCE, "recalled before its time"

    @rule()
    def sweep(self) -> None:
        self.reaper.sweep()

    @rule()
    def reap(self) -> None:
        self.reaper.reap()
        live = self._live()
        for seat in [*self.seats, *self.old_seats]:
            for held in list(seat.held):
                if (held.claimed.trial_id, held.claimed.fence) not in live:
                    seat.held.remove(held)
                    is_lapsed = self.now > seat.lease_until + GRACE - TOLERANCE
                    assert seat.is_over or is_lapsed, "the attempt of a living session was reaped"
                    seat.is_over = True

    # What the network and the workers do.

    @precondition(lambda self: self.bells)
    @rule(choice=st.integers(0, 1000), again=st.booleans(), elsewhere=st.booleans())
    def deliver(self, choice: int, again: bool, elsewhere: bool) -> None:
        """Deliver a bell, maybe not for the last time, maybe to the wrong node."""
        bell = self.bells[choice % len(self.bells)]
        if not again:
            self.bells.remove(bell)
        right = [seat for seat in self.seats if (seat.seat.node_id == bell.node_id) != elsewhere]
        if not right:
            return
        is_waiting = (bell.trial_id, bell.fence) in self._live("dispatched")
        claimed = right[0].seat.claim(bell)
        is_sure = abs(self.now - right[0].lease_until) > TOLERANCE
        may = is_waiting and not elsewhere and not right[0].is_over and self.now < right[0].lease_until
        assert (claimed is not None) == may or not is_sure
        if claimed is not None:
            assert is_waiting
            assert not elsewhere
            right[0].held.append(Held(claimed, right[0]))
            if again:
                assert right[0].seat.claim(bell) is None, "a second copy of the bell claimed it again"

    @precondition(lambda self: self.bells)
    @rule(choice=st.integers(0, 1000))
    def drop(self, choice: int) -> None:
        self.bells.pop(choice % len(self.bells))

    @precondition(lambda self: any(seat.held for seat in [*self.seats, *self.old_seats]))
    @rule(choice=st.integers(0, 1000))
    def start(self, choice: int) -> None:
        held = self._choose(choice)
        if not held.is_started:
            assert held.seat.seat.start(held.claimed)
            held.is_started = True

    @precondition(lambda self: any(seat.held for seat in [*self.seats, *self.old_seats]))
    @rule(
        choice=st.integers(0, 1000), kind=st.sampled_from(["passed", "failed", "retry"]), twice=st.booleans()
    )
    def finish(self, choice: int, kind: str, twice: bool) -> None:
        """Also as a ghost: of a session that was superseded, or whose lease has lapsed and nobody noticed yet."""
        held = self._choose(choice)
        key = (held.claimed.trial_id, held.claimed.fence)
        is_live = key in self._live()
        assert self._finish(held, kind) == is_live
        held.seat.held.remove(held)
        if twice:
            assert not self._finish(held, "failed")

    @rule(which=st.integers(0, 1))
    def beat(self, which: int) -> None:
        seat = self.seats[which]
        with self.world.engine.begin() as connection:
            renewed = SessionRepository(connection).renew(seat.seat.session_id, lease_seconds=LEASE)
        is_sure = abs(self.now - seat.lease_until) > TOLERANCE
        assert renewed == (self.now < seat.lease_until and not seat.is_over) or not is_sure
        if renewed:
            seat.lease_until = self.now + LEASE

    @rule(which=st.integers(0, 1))
    def restart_worker(self, which: int) -> None:
        """A new session of the same node: the old one is over, and what it still does is a ghost's."""
        old = self.seats[which]
        old.is_over = True
        self.old_seats.append(old)
        seat = self.world.session(node=old.seat.node_id, slots=3, lease=LEASE)
        self.seats[which] = ModelSeat(seat, self.now + LEASE)

    @rule(seconds=st.sampled_from([1.0, 8.0, 20.0, 33.0, 70.0]))
    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.world.execute("UPDATE virtual.clock SET moved = make_interval(secs => %(s)s)", s=self.now)

    # What must hold.

    @invariant()
    def rows_fit_together(self) -> None:
        if not self.tenants:
            return
        always = [one for one in all_invariants() if one.mode == "always"]
        with self.world.engine.begin() as connection:
            found = InvariantRepository(connection).violations(
                always, slack_seconds=0, lease_seconds=LEASE, window_seconds=86_400
            )
        assert not found, "\n".join(map(str, found))

    @invariant()
    def no_end_changes(self) -> None:
        if not self.tenants:
            return
        rows = self.world.execute("SELECT id, outcome FROM trials WHERE state = 'finished'")
        ends = {row["id"]: row["outcome"] for row in rows}
        assert self.ends.items() <= ends.items()
        self.ends = ends

    def teardown(self) -> None:
        """Let everything heal: each trial ends within a few rounds."""
        if not self.tenants:
            return
        self.world.execute("UPDATE tenants SET max_running = 10")
        for round_ in range(60):
            self.restart_worker(round_ % 2)
            self.advance(70.0)
            self.reap()
            self.ring_again()
            self.sweep()
            for which in range(2):
                self.restart_worker(which)
            self.bells.clear()
            self.tick()
            for bell in self.bells:
                seat = next(one for one in self.seats if one.seat.node_id == bell.node_id)
                claimed = seat.seat.claim(bell)
                if claimed is not None:
                    self._finish(Held(claimed, seat), "passed")
            if not self.world.execute("SELECT 1 FROM trials WHERE state <> 'finished' LIMIT 1"):
                break
        left = self.world.execute("SELECT id, state, state_reason FROM trials WHERE state <> 'finished'")
        assert left == []
        self.rows_fit_together()
        self.no_end_changes()

    def _choose(self, choice: int) -> Held:
        held = [one for seat in [*self.seats, *self.old_seats] for one in seat.held]
        return held[choice % len(held)]

    def _take_bells(self) -> None:
        for bell in self.world.bells.rung:
            self.rung_at.setdefault((bell.trial_id, bell.fence), self.now)
        self.bells += self.world.bells.rung
        self.world.bells.rung.clear()

    def _live(self, *states: str) -> set[tuple[UUID, int]]:
        wanted = states or ("dispatched", "starting", "running", "stopping", "collecting")
        rows = self.world.execute(
            "SELECT trial_id, fence FROM attempts WHERE state = ANY(%(s)s)", s=list(wanted)
        )
        return {(row["trial_id"], row["fence"]) for row in rows}

    def _finish(self, held: Held, kind: str) -> bool:
        failure = '{"class": "infra", "code": "unknown"}' if kind == "retry" else None
        changes: dict[str, Any] = {"retry_seconds": 5.0} if kind == "retry" else {}
        outcome = "error" if kind == "retry" else kind
        end = AttemptEnd(outcome, kind, "finished", failure, "[]", None, "{}", None, 0, 0, 0, **changes)
        with self.world.engine.begin() as connection:
            return AttemptRepository(connection).finish(held.claimed, held.seat.seat.session_id, end)


@pytest.mark.timeout(0 if "SANDMILL_PROPERTY_EXAMPLES" in os.environ else 240)
def test_no_history_breaks_an_invariant(database_url: str):
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(VIRTUAL_CLOCK)
    engine = create_database_engine(database_url, actor="test", pool_size=4)
    Queue.world = QueueWorld(engine)
    quick = settings(
        max_examples=EXAMPLES,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    try:
        run_state_machine_as_test(Queue, settings=quick)
    finally:
        engine.dispose()
