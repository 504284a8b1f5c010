"""Guards that no random history is sure to meet: each of these turns red when its guard is taken out."""

import threading
import time

import pytest

from core.config import Settings
from core.database import create_database_engine
from core.ids import new_id
from repositories.sessions import SessionRepository
from scheduler.process import Scheduler
from services.dispatch import Dispatcher
from services.log_pump import LogWriter
from tests.support.queue import QueueWorld
from workers.lease import LeaseKeeper, LeaseTimes, NodeDescription, boot_seconds
from workers.registry import AttemptRegistry


def test_bells_are_rung_after_the_commit(world: QueueWorld):
    seen = []

    class Ringer:
        def ring(self, bells, *, again=False) -> None:
            seen.extend(world.attempt(bell.trial_id, bell.fence)["state"] for bell in bells)

    world.session()
    world.trials(world.tenant(), 2)
    Dispatcher(world.engine, Ringer(), world.policy).tick()
    assert seen == ["dispatched", "dispatched"]


def test_output_is_stored_before_it_is_told(world: QueueWorld):
    told = []

    def publish(chunks) -> None:
        told.extend((chunk.data, world.execute("SELECT bytes FROM log_chunks")) for chunk in chunks)

    writer = LogWriter(world.engine, publish, node_id=new_id())
    writer.start()
    try:
        pump = writer.open(new_id(), new_id(), 1, cap_bytes=1 << 16)
        pump.write("run", "stdout", b"x")
        pump.close()
        deadline = time.monotonic() + 10
        while not told and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        writer.stop()
    assert told == [(b"x", [{"bytes": b"x"}])]


def test_a_lease_counts_from_before_it_was_asked_for(world: QueueWorld, database_url, monkeypatch):
    """What a slow reply takes is not added to the lease: the database has counted from the question on."""
    engine = create_database_engine(database_url, actor="lease", pool_size=1)
    node = NodeDescription(new_id(), "n", ("fake",), 1000, 1 << 30, 1, 1, "0")
    keeper = LeaseKeeper(engine, node, AttemptRegistry(), LeaseTimes(30.0, 1.0, 600.0), on_beat=lambda: None)
    keeper.start()
    renew, renewed = SessionRepository.renew, threading.Event()

    def renew_slowly(self, session_id, *, lease_seconds):
        answer = renew(self, session_id, lease_seconds=lease_seconds)
        time.sleep(1.0)
        renewed.set()
        return answer

    monkeypatch.setattr(SessionRepository, "renew", renew_slowly)
    monkeypatch.setattr(keeper, "_on_beat", threading.Event().set)
    before = keeper._good_until
    keeper.beat_soon()
    assert renewed.wait(10)
    deadline = time.monotonic() + 10
    while keeper._good_until == before and time.monotonic() < deadline:
        time.sleep(0.01)
    left = keeper._good_until - boot_seconds()
    keeper.stop()
    engine.dispose()
    assert left < 30.0 - 1.0 - 0.9


@pytest.mark.parametrize(("led_for", "judges"), [(0.0, False), (59.0, False), (61.0, True)])
def test_a_new_leader_judges_no_lease_before_one_lease_time(
    database_url, redis_url, monkeypatch, led_for, judges
):
    settings = Settings(database_url=database_url, redis_url=redis_url, lease_seconds=60.0)
    scheduler = Scheduler(settings)
    asked = []
    monkeypatch.setattr(
        scheduler._reaper, "reap", lambda *, lapsed_sessions: asked.append(lapsed_sessions) or 0
    )
    scheduler._leadership.since = time.monotonic() - led_for
    scheduler._reap()
    scheduler._engine.dispose()
    assert asked == [judges]
