import threading
from collections.abc import Callable

import pytest

from core.database import create_database_engine
from core.ids import new_id
from services.attempt_control import StopReason
from tests.support.queue import QueueWorld
from workers.lease import LeaseKeeper, LeaseTimes, NodeDescription
from workers.registry import AttemptRegistry


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    pause = threading.Event()
    for _ in range(int(seconds / 0.02)):
        if condition():
            return
        pause.wait(0.02)
    pytest.fail("the condition did not come true in time")


@pytest.fixture
def keeper(world: QueueWorld, database_url):
    node = NodeDescription(new_id(), "n", ("fake",), 64_000, 64 << 30, 8, 1, "0")
    engine = create_database_engine(database_url, actor="lease", pool_size=1, statement_timeout_seconds=3)
    registry = AttemptRegistry()
    keeper = LeaseKeeper(engine, node, registry, LeaseTimes(3.0, 1.0, 0.1), on_beat=lambda: None)
    keeper.node, keeper.registry = node, registry
    keeper.start()
    yield keeper
    keeper.stop()
    engine.dispose()


def claim_one(world: QueueWorld, keeper):
    """Dispatch and claim one trial for the keeper's session; gives its control."""
    (trial,) = world.trials(world.tenant())
    world.dispatcher.tick()
    control = keeper.registry.enter(trial, 1)
    world.execute(
        "UPDATE attempts SET state = 'starting', session_id = %(s)s WHERE trial_id = %(t)s",
        s=keeper.session_id,
        t=trial,
    )
    keeper.registry.mark_claimed(trial, 1)
    return trial, control


def test_lease_is_renewed_again_and_again(world: QueueWorld, keeper):
    def beats() -> float:
        (row,) = world.execute(
            "SELECT extract(epoch FROM beat_at - created_at)::float8 AS s FROM worker_sessions"
        )
        return row["s"]

    wait_until(lambda: beats() > 0.4)
    assert keeper.valid


@pytest.mark.parametrize(
    ("mode", "reason"), [("graceful", StopReason.CANCEL), ("force", StopReason.FORCE_CANCEL)]
)
def test_cancel_comes_with_the_heartbeat(world: QueueWorld, keeper, mode, reason):
    _, control = claim_one(world, keeper)
    world.execute("UPDATE trials SET desired = 'cancel', cancel_mode = %(m)s", m=mode)
    wait_until(control.stop.is_set)
    assert control.reason is reason


def test_ended_session_disowns_what_runs_and_a_new_one_is_opened(world: QueueWorld, keeper):
    _, control = claim_one(world, keeper)
    old = keeper.session_id
    world.execute("UPDATE worker_sessions SET ended_at = now(), end_reason = 'test'")
    wait_until(lambda: control.disowned)
    wait_until(lambda: keeper.session_id != old)
    (row,) = world.execute("SELECT id FROM worker_sessions WHERE ended_at IS NULL")
    assert row["id"] == keeper.session_id


@pytest.mark.breaks_invariants("running_without_attempt", reason="takes the attempt away by hand")
def test_attempt_taken_away_in_the_database_is_disowned(world: QueueWorld, keeper):
    _, control = claim_one(world, keeper)
    world.execute("UPDATE attempts SET state = 'lost'")
    wait_until(lambda: control.disowned)


def test_orphan_in_a_live_session_goes_back_to_the_queue(world: QueueWorld, keeper):
    trial, _ = claim_one(world, keeper)
    keeper.registry.leave(trial, 1)
    wait_until(lambda: world.trial(trial)["state"] == "queued")
    row = world.trial(trial)
    assert (row["infra_losses"], row["state_reason"]) == (1, "orphaned")


def test_attempt_between_entry_and_claim_is_no_orphan(world: QueueWorld, keeper):
    (trial,) = world.trials(world.tenant())
    world.dispatcher.tick()
    keeper.registry.enter(trial, 1)
    world.execute("UPDATE attempts SET state = 'starting', session_id = %(s)s", s=keeper.session_id)
    threading.Event().wait(0.5)
    assert world.trial(trial)["state"] == "running"


def test_lease_that_cannot_be_renewed_kills_before_it_lapses(world: QueueWorld, keeper):
    """The table is locked, so every beat times out: what runs must be dead before the reaper may act."""
    trial, control = claim_one(world, keeper)
    killed_while_valid = []

    def kill() -> None:
        (row,) = world.execute(
            "SELECT lease_until > clock_timestamp() AS valid FROM worker_sessions WHERE ended_at IS NULL"
        )
        killed_while_valid.append(row["valid"])

    control.arm(kill)
    with world.engine.begin() as connection:
        connection.exec_driver_sql("SELECT 1 FROM worker_sessions FOR UPDATE")
        wait_until(lambda: bool(killed_while_valid))
    assert killed_while_valid == [True]
    assert control.disowned
    keeper.registry.leave(trial, 1)
    wait_until(lambda: world.trial(trial)["state"] == "queued")


def test_two_workers_cannot_share_a_node_id(tmp_path):
    from core.errors import UnavailableError  # noqa: PLC0415
    from workers.identity import NodeIdentity  # noqa: PLC0415

    first = NodeIdentity(tmp_path)
    with pytest.raises(UnavailableError, match="another worker"):
        NodeIdentity(tmp_path)
    first.close()
    second = NodeIdentity(tmp_path)
    assert second.id == first.id
    second.close()
