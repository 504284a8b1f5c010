"""Pairs of statements that meet on the same rows, one uncommitted while the other begins, in both orders: one wins."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest
from sqlalchemy import Connection

from repositories.attempts import AttemptEnd, AttemptRepository, ClaimedAttempt
from repositories.dispatch import Bell, DispatchRepository
from services.batch_verbs import BatchVerbService
from services.lost_attempts import reap_ended_sessions
from tests.support.queue import QueueWorld, Seat

Action = Callable[[Connection], Any]
BOOT = "a-boot"


def interleave(world: QueueWorld, first: Action, second: Action) -> tuple[Any, Any]:
    """Do the first and keep it open, begin the second, commit the first, let the second end; gives both results."""
    began = threading.Event()

    def run_second() -> Any:
        with world.engine.begin() as connection:
            connection.exec_driver_sql("SET LOCAL lock_timeout = '10s'")
            began.set()
            return second(connection)

    with ThreadPoolExecutor(1) as pool:
        with world.engine.begin() as connection:
            one = first(connection)
            other = pool.submit(run_second)
            assert began.wait(10)
            # Long enough for the second to have met the first's rows.
            threading.Event().wait(0.1)
        return one, other.result(20)


def dispatch(world: QueueWorld) -> Action:
    def run(connection: Connection) -> list[Bell]:
        repository = DispatchRepository(connection)
        repository.lock()
        return world.dispatcher._start(connection, repository.nodes())

    return run


def claim(seat: Seat, bell: Bell) -> Action:
    return lambda connection: AttemptRepository(connection).claim(
        bell.trial_id, bell.fence, session_id=seat.session_id, node_id=seat.node_id
    )


def finish(seat: Seat, claimed: ClaimedAttempt, outcome: str = "passed") -> Action:
    end = AttemptEnd(outcome, outcome, "finished", None, "[]", None, "{}", None, 0, 0, 0)
    return lambda connection: AttemptRepository(connection).finish(claimed, seat.session_id, end)


def cancel(tenant: int, claimed: ClaimedAttempt | Any) -> Action:
    def run(connection: Connection) -> int:
        service = BatchVerbService(connection, tenant)
        return service.cancel(service.trial(claimed), mode="graceful").cancelled

    return run


def recall(connection: Connection) -> int:
    repository = DispatchRepository(connection)
    repository.lock()
    return repository.recall_unclaimed()


def reap(connection: Connection) -> int:
    """As a scheduler that believes the time for adoption to be over, which the adopting worker does not."""
    DispatchRepository(connection).lock()
    return reap_ended_sessions(connection, grace_seconds=-3600.0, rng=Random(1))


def adopt(seat: Seat) -> Action:
    return lambda connection: AttemptRepository(connection).adopt(
        session_id=seat.session_id, node_id=seat.node_id, boot_id=BOOT, runtimes=("fake",)
    )


@pytest.fixture
def tenant(world: QueueWorld) -> int:
    return world.tenant(max_running=3)


@pytest.fixture
def seat(world: QueueWorld) -> Seat:
    return world.session(boot_id=BOOT)


@pytest.fixture
def running(world: QueueWorld, tenant: int, seat: Seat) -> ClaimedAttempt:
    world.trials(tenant)
    world.dispatcher.tick()
    claimed = seat.claim(world.bells.rung[-1])
    assert claimed is not None
    assert seat.start(claimed, progress=json.dumps({"step": 0}))
    return claimed


def test_dispatch_and_dispatch_keep_the_quota(world: QueueWorld, tenant, seat):
    def first(connection: Connection) -> list[Bell]:
        bells = dispatch(world)(connection)
        # What the other would pick now: else the two would meet on the same rows, and be saved by that alone.
        world.trials(tenant, 5, priority=9)
        return bells

    world.trials(tenant, 5)
    one, other = interleave(world, first, dispatch(world))
    assert (len(one), len(other)) == (3, 0)


@pytest.mark.parametrize("cancel_first", [True, False])
def test_dispatch_and_cancel_of_a_waiting_trial(world: QueueWorld, tenant, seat, cancel_first):
    (trial,) = world.trials(tenant)
    actions = [cancel(tenant, trial), dispatch(world)]
    one, other = interleave(world, *(actions if cancel_first else reversed(actions)))
    if cancel_first:
        assert (one, other) == (1, [])
        assert world.trial(trial)["outcome"] == "cancelled"
    else:
        # It runs, and is told to stop: only its owner writes the end.
        assert (len(one), other) == (1, 0)
        assert (world.trial(trial)["state"], world.trial(trial)["desired"]) == ("running", "cancel")


@pytest.mark.parametrize("finish_first", [True, False])
def test_finish_and_reap(world: QueueWorld, running, seat, finish_first):
    world.execute("UPDATE worker_sessions SET ended_at = clock_timestamp(), lease_until = clock_timestamp()")
    actions = [finish(seat, running), reap]
    one, other = interleave(world, *(actions if finish_first else reversed(actions)))
    finished, reaped = (one, other) if finish_first else (other, one)
    assert (finished, reaped) == ((True, 0) if finish_first else (False, 1))
    assert world.trial(running.trial_id)["state"] == ("finished" if finish_first else "queued")


@pytest.mark.parametrize("finish_first", [True, False])
def test_finish_and_cancel(world: QueueWorld, tenant, running, seat, finish_first):
    actions = [finish(seat, running), cancel(tenant, running.trial_id)]
    one, other = interleave(world, *(actions if finish_first else reversed(actions)))
    assert (one if finish_first else other) is True
    assert (other if finish_first else one) == 0
    assert world.trial(running.trial_id)["outcome"] == "passed"


@pytest.mark.parametrize("claim_first", [True, False])
def test_claim_and_recall(world: QueueWorld, tenant, seat, claim_first):
    (trial,) = world.trials(tenant)
    world.dispatcher.tick()
    world.execute("UPDATE attempts SET start_deadline = clock_timestamp()")
    actions = [claim(seat, world.bells.rung[-1]), recall]
    one, other = interleave(world, *(actions if claim_first else reversed(actions)))
    claimed, recalled = (one, other) if claim_first else (other, one)
    assert (claimed is not None, recalled) == ((True, 0) if claim_first else (False, 1))
    assert world.trial(trial)["state"] == ("running" if claim_first else "queued")


@pytest.mark.parametrize("adopt_first", [True, False])
def test_adopt_and_reap(world: QueueWorld, running, seat, adopt_first):
    successor = world.session(node=seat.node_id, boot_id=BOOT)
    actions = [adopt(successor), reap]
    one, other = interleave(world, *(actions if adopt_first else reversed(actions)))
    adopted, reaped = (one, other) if adopt_first else (other, one)
    assert len(adopted) + reaped == 1
    owners = world.execute("SELECT session_id FROM attempts WHERE state = 'running'")
    assert [row["session_id"] for row in owners] == ([successor.session_id] if adopted else [])


def test_two_bells_claim_once(world: QueueWorld, tenant, seat):
    world.trials(tenant)
    world.dispatcher.tick()
    bell = world.bells.rung[-1]
    one, other = interleave(world, claim(seat, bell), claim(seat, bell))
    assert one is not None
    assert other is None
