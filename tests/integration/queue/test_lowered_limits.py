"""The database notes when a limit is lowered: what started before was right by the limit of its time."""

import threading

import pytest

from repositories.dispatch import _DISPATCH_LOCK as DISPATCH_LOCK
from tests.support.queue import QueueWorld


@pytest.mark.parametrize(
    ("change", "is_lowered"),
    [
        ("max_running = 2", True),
        ("max_running = 20", False),
        ("max_running = 10, weight = 1", False),
        ("paused_at = now()", False),
    ],
)
def test_only_lowering_a_limit_of_a_tenant_is_noted(world: QueueWorld, change, is_lowered):
    tenant = world.tenant()
    world.execute("UPDATE tenants SET max_running = 10, weight = 4")
    world.execute("UPDATE tenants SET limits_lowered_at = NULL")
    world.execute(f"UPDATE tenants SET {change} WHERE id = %(id)s", id=tenant)
    (row,) = world.execute("SELECT limits_lowered_at FROM tenants")
    assert (row["limits_lowered_at"] is not None) is is_lowered


def test_a_node_that_comes_back_smaller_is_noted(world: QueueWorld):
    node = world.session(slots=8).node_id
    world.session(node=node, slots=9)
    assert world.execute("SELECT limits_lowered_at FROM nodes")[0]["limits_lowered_at"] is None
    world.session(node=node, slots=7)
    assert world.execute("SELECT limits_lowered_at FROM nodes")[0]["limits_lowered_at"] is not None


def test_lowering_waits_for_the_tick_that_has_read_the_old_limit(world: QueueWorld):
    tenant = world.tenant()
    lowered = threading.Event()

    def lower() -> None:
        world.execute("UPDATE tenants SET max_running = 1 WHERE id = %(id)s", id=tenant)
        lowered.set()

    thread = threading.Thread(target=lower)
    with world.engine.begin() as connection:
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(%(lock)s)", {"lock": DISPATCH_LOCK})
        thread.start()
        assert not lowered.wait(0.3)
        (tick,) = connection.exec_driver_sql("SELECT clock_timestamp()").one()
    thread.join(10)
    assert world.execute("SELECT limits_lowered_at FROM tenants")[0]["limits_lowered_at"] > tick
