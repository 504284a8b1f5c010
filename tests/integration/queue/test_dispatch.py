import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Connection

from core.database import fetch_rows
from repositories.dispatch import DispatchRepository
from repositories.fair_share import FairShareRepository, PickLimits
from services.batch_verbs import BatchVerbService
from tests.support.queue import QueueWorld
from tests.support.statements import after_statements, noting_statements


def test_queued_trial_becomes_a_bell_for_a_node_with_room(world: QueueWorld):
    seat = world.session()
    (trial,) = world.trials(world.tenant())

    assert world.dispatcher.tick() == 1

    (bell,) = world.bells.rung
    assert (bell.trial_id, bell.fence, bell.node_id) == (trial, 1, seat.node_id)
    assert world.trial(trial)["state"] == "running"
    assert world.attempt(trial, 1)["state"] == "dispatched"


def test_tick_that_finds_nothing_to_start_does_not_ask_whose_turn_it_is(world: QueueWorld):
    """To plan that statement takes longer than all else in a tick."""
    world.session()
    with noting_statements() as statements:
        assert world.dispatcher.tick() == 0
        assert statements
        assert not any("open_shapes AS" in sql for sql in statements)
        world.trials(world.tenant())
        assert world.dispatcher.tick() == 1
        assert sum("open_shapes AS" in sql for sql in statements) == 1


@pytest.mark.parametrize(
    ("waiting", "plan"), [(1, "force_generic_plan"), (31, "force_generic_plan"), (32, "force_custom_plan")]
)
def test_statement_of_whose_turn_it_is_is_planned_anew_only_for_many(world: QueueWorld, waiting, plan):
    world.session()
    world.trials(world.tenant(), waiting)
    limits = PickLimits(8, 8, 8, 0.0, 0.0, 60.0, (64_000, 64 << 30, 0))
    with world.engine.begin() as connection:
        repository = DispatchRepository(connection)
        repository.lock()
        assert len(FairShareRepository(connection).pick(repository.nodes(), limits, start=0)) == min(
            waiting, 8
        )
        assert connection.exec_driver_sql("SHOW plan_cache_mode").scalar() == plan


def test_nothing_is_dispatched_without_a_live_session(world: QueueWorld):
    world.trials(world.tenant())
    world.session(lease=-1.0)

    assert world.dispatcher.tick() == 0


@pytest.mark.parametrize(
    ("column", "value"), [("slots", 3), ("cpu_millicores", 3500), ("memory_bytes", (3 << 28) + 1)]
)
def test_a_node_never_gets_more_than_it_has(world: QueueWorld, column, value):
    tenant = world.tenant()
    world.session(**{column: value})
    world.trials(tenant, 8)

    while world.dispatcher.tick():
        pass

    assert world.states(tenant).count("running") == 3


def test_trials_go_only_to_nodes_that_offer_their_runtime(world: QueueWorld):
    tenant = world.tenant()
    fake = world.session(runtimes=["fake"])
    docker = world.session(runtimes=["docker"])
    (in_fake,) = world.trials(tenant, 1, runtime="fake")
    (in_docker,) = world.trials(tenant, 1, runtime="docker")

    world.dispatcher.tick()

    placed = {bell.trial_id: bell.node_id for bell in world.bells.rung}
    assert placed == {in_fake: fake.node_id, in_docker: docker.node_id}


@pytest.mark.breaks_invariants("trials_miscounted", reason="deletes trials, which nothing of ours does")
def test_unplaceable_trials_at_the_head_do_not_hold_up_the_rest(world: QueueWorld):
    tenant = world.tenant()
    world.session(slots=2)
    world.trials(tenant, 300, runtime="docker", priority=100)
    world.trials(tenant, 2)

    assert world.dispatcher.tick() == 2


def test_priority_then_order_of_submission_within_a_tenant(world: QueueWorld):
    tenant = world.tenant()
    first = world.trials(tenant, 2)
    urgent = world.trials(tenant, 1, priority=50)
    world.session(slots=2)

    world.dispatcher.tick()

    assert [bell.trial_id for bell in world.bells.rung] == [urgent[0], first[0]]


def test_weights_share_the_slots_between_tenants(world: QueueWorld):
    tenants = [world.tenant(name, weight=weight) for name, weight in (("a", 1), ("b", 2), ("c", 4))]
    for tenant in tenants:
        world.trials(tenant, 50)
    world.session(slots=70, cpu_millicores=70_000)

    while world.dispatcher.tick():
        pass

    assert [world.states(tenant).count("running") for tenant in tenants] == [10, 20, 40]


def test_max_running_holds_with_three_dispatchers_at_once(world: QueueWorld):
    tenant = world.tenant(max_running=10)
    world.trials(tenant, 60)
    world.session(slots=100)

    def tick() -> None:
        for _ in range(5):
            world.dispatcher.tick()

    threads = [threading.Thread(target=tick) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert world.states(tenant).count("running") == 10


def test_paused_tenant_and_draining_node_get_nothing(world: QueueWorld):
    world.trials(world.tenant("paused", paused_at="now"))
    seat = world.session()
    assert world.dispatcher.tick() == 0

    world.trials(world.tenant("busy"))
    world.execute("UPDATE worker_sessions SET draining = true WHERE id = %(id)s", id=seat.session_id)
    assert world.dispatcher.tick() == 0


def test_cancelled_trial_is_not_dispatched(world: QueueWorld):
    (trial,) = world.trials(world.tenant(), desired="cancel")
    world.session()

    assert world.dispatcher.tick() == 0
    assert world.trial(trial)["state"] == "queued"


def test_unanswered_bell_is_rung_again(world: QueueWorld):
    world.session()
    world.trials(world.tenant())
    world.dispatcher.tick()
    world.dispatcher.ring_again()
    assert len(world.bells.rung) == 1

    world.execute("UPDATE attempts SET last_rung_at = now() - interval '3 seconds'")
    world.dispatcher.ring_again()
    assert len(world.bells.rung) == 2


def test_unclaimed_attempt_goes_back_to_the_head_without_using_an_attempt(world: QueueWorld):
    world.session()
    tenant = world.tenant()
    (trial,) = world.trials(tenant)
    before = world.trial(trial)
    world.dispatcher.tick()
    world.execute("UPDATE attempts SET start_deadline = now() - interval '1 second'")

    world.dispatcher.ring_again()

    after = world.trial(trial)
    assert (after["state"], after["seq"], after["attempts_used"]) == ("queued", before["seq"], 0)
    assert world.attempt(trial, 1)["state"] == "never_started"
    world.dispatcher.tick()
    assert world.bells.rung[-1].fence == 2


def test_tenant_with_nothing_that_fits_does_not_stand_in_the_way(world: QueueWorld):
    world.session(slots=1)
    world.trials(world.tenant("too-big"), 1, cpu_millicores=1_000_000)
    world.trials(world.tenant("elsewhere"), 1, runtime="docker")
    world.trials(world.tenant("fitting"), 3)

    assert world.dispatcher.tick() == 1


def test_trials_that_fit_no_single_node_do_not_hold_up_those_behind(world: QueueWorld):
    """One node has the cpu, another the memory, neither has both."""
    tenant = world.tenant()
    world.session(slots=4, cpu_millicores=8000, memory_bytes=1 << 28)
    world.session(slots=4, cpu_millicores=1000, memory_bytes=8 << 28)
    world.trials(tenant, 40, cpu_millicores=8000, memory_bytes=8 << 28)
    world.trials(tenant, 2)

    assert world.dispatcher.tick() == 2


def test_dispatch_locks_trials_by_id_as_a_cancel_does(world: QueueWorld):
    """A cancel holds the first trial and wants the last; dispatch, by priority, would take the last one first."""
    world.session(slots=10)
    first, last = sorted(world.trials(world.tenant(), 2))
    world.execute("UPDATE trials SET priority = 50 WHERE id = %(id)s", id=last)
    lock = "SELECT 1 FROM trials WHERE id = %(id)s FOR UPDATE"
    with ThreadPoolExecutor(1) as pool, world.engine.connect() as cancel:
        with cancel.begin():
            cancel.exec_driver_sql(lock, {"id": first})
            dispatched = pool.submit(world.dispatcher.tick)
            waiting = "SELECT count(*) AS n FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"
            while world.execute(waiting)[0]["n"] == 0:
                assert not dispatched.done()
            cancel.exec_driver_sql(lock, {"id": last})
        assert dispatched.result() == 2


def test_cancel_locks_trials_by_id_as_dispatch_does(world: QueueWorld):
    tenant = world.tenant()
    first, last = sorted(world.trials(tenant, 2))
    # Moved to the end of the table, so that a scan in the order of the table would come to it last.
    world.execute("UPDATE trials SET state_reason = 'moved' WHERE id = %(id)s", id=first)
    (row,) = world.execute("SELECT batch_id FROM trials WHERE id = %(id)s", id=first)

    def cancel() -> int:
        with world.engine.begin() as connection:
            verbs = BatchVerbService(connection, tenant)
            return verbs.cancel(verbs.batch(row["batch_id"]), mode="graceful").cancelled

    lock = "SELECT 1 FROM trials WHERE id = %(id)s FOR UPDATE"
    with ThreadPoolExecutor(1) as pool, world.engine.connect() as dispatch:
        with dispatch.begin():
            dispatch.exec_driver_sql(lock, {"id": first})
            cancelled = pool.submit(cancel)
            waiting = "SELECT count(*) AS n FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"
            while world.execute(waiting)[0]["n"] == 0:
                assert not cancelled.done()
            dispatch.exec_driver_sql(lock, {"id": last})
        assert cancelled.result() == 2


def test_only_the_tick_that_dispatches_does_not_wait_for_the_disk(world: QueueWorld):
    """Whatever is done on the strength of a dispatch waits by itself; see docs/decisions/0029."""
    ask = "SELECT current_setting('synchronous_commit') AS value"
    found = []

    def note(connection: Connection, sql: str, _: object) -> None:
        if "INSERT INTO attempts" in sql:
            found.append(fetch_rows(connection, ask, {})[0]["value"])

    world.session()
    world.trials(world.tenant())
    with after_statements(note):
        assert world.dispatcher.tick() == 1
    assert found == ["off"]
    with world.engine.begin() as connection:
        DispatchRepository(connection).lock()
        assert fetch_rows(connection, ask, {}) == [{"value": "on"}]
