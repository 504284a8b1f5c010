"""Warm pools between scheduler, node and creates: sizes, single use, losses; over the real queue."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from api.wire.pool_requests import to_pool_template
from api.wire.requests import to_new_sandbox
from api.wire.schemas import CreateSandboxRequest
from core.ids import new_id
from services.live_sandboxes import LiveSandboxService, SandboxPolicy
from services.pool_plan import Capacity
from services.warm_creates import Made, WarmCreates
from tests.support.pools import BOX, PLAIN, PoolNode, make_pool, pool_service
from tests.support.queue import QueueWorld

TEMPLATE = to_pool_template(PLAIN)


@pytest.fixture
def tenant(world: QueueWorld) -> int:
    return world.tenant(max_running=100)


@pytest.fixture
def node(world: QueueWorld, monkeypatch: pytest.MonkeyPatch) -> Iterator[PoolNode]:
    # Deaths are noticed by a look every three seconds.
    monkeypatch.setattr("workers.sessions._LOOK_SECONDS", 0.1)
    monkeypatch.setattr("workers.sessions._POLL_SECONDS", 0.1)
    node = PoolNode(world)
    yield node
    node.close()


def take(world: QueueWorld, tenant: int, **changes: Any) -> Made:
    """A create of just what the pool makes."""
    body = {
        "image": {"uri": "ubuntu"},
        "resourceLimits": {"cpu": "1", "memory": "2Gi"},
        "entrypoint": ["tail", "-f", "/dev/null"],
        **changes,
    }
    new = to_new_sandbox(CreateSandboxRequest.model_validate(body))
    with world.engine.begin() as connection:
        return creates(connection, tenant).create(new, new_id())


def creates(connection: Any, tenant: int) -> WarmCreates:
    sandboxes = LiveSandboxService(
        connection, tenant, policy=SandboxPolicy(default_runtime="fake"), box=BOX, actor="key:test"
    )
    return WarmCreates(
        connection,
        tenant,
        sandboxes,
        box=BOX,
        default_runtime="fake",
        max_age_seconds=3600.0,
        actor="key:test",
    )


def counts(world: QueueWorld, tenant: int, name: str = "p") -> Any:
    return pool_service(world, tenant, lambda pools: pools.get(name)).counts


def test_a_pool_is_filled_and_refilled_after_a_taking(world, tenant, node):
    make_pool(world, tenant, TEMPLATE)
    assert node.turn() == 2
    first = take(world, tenant)
    assert first.warm is not None
    assert first.warm.state == "Running"
    assert counts(world, tenant).free == 1
    assert node.turn() == 1
    now = counts(world, tenant)
    assert (now.total, now.allocated, now.free) == (3, 1, 2)


def test_the_longest_warm_is_given_first_and_never_again(world, tenant, node):
    make_pool(world, tenant, TEMPLATE, buffer_min=3, buffer_max=3, pool_max=3)
    node.turn()
    waiting = [row["trial_id"] for row in sorted(node.free(), key=lambda row: row["running_at"])]
    given = [take(world, tenant).sandbox_id for _ in range(3)]
    assert given == waiting
    assert take(world, tenant).warm is None


def test_as_many_creates_at_once_as_members_get_one_each(world, tenant, node):
    make_pool(world, tenant, TEMPLATE, buffer_min=6, buffer_max=6)
    node.turn()
    gate = threading.Barrier(8)

    def run(_: int) -> Made:
        gate.wait()
        return take(world, tenant)

    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(run, range(8)))
    warm = [one.sandbox_id for one in made if one.warm is not None]
    assert len(warm) == len(set(warm)) == 6


def test_a_member_counts_for_its_tenant_and_a_pool_cannot_exceed_a_quota(world, node):
    tenant = world.tenant("small", max_running=3)
    make_pool(world, tenant, TEMPLATE, buffer_min=5, buffer_max=5)
    assert node.turn() == 3
    now = counts(world, tenant)
    assert (now.free, now.starting) == (3, 2)
    assert world.states(tenant).count("queued") == 2


def test_members_wait_behind_what_somebody_asked_for(world, node):
    tenant = world.tenant("small", max_running=1)
    make_pool(world, tenant, TEMPLATE)
    node.pools.tick()
    asked = take(world, tenant, env={"A": "other"})
    assert node.start_queued() == 1
    assert node.rows("state = 'Running'")[0]["trial_id"] == asked.sandbox_id


def test_a_full_queue_of_the_tenant_holds_up_no_other_pool(world, tenant, node):
    small = world.tenant("small", max_queued=0)
    make_pool(world, small, TEMPLATE)
    make_pool(world, tenant, TEMPLATE)
    assert node.turn() == 2
    assert counts(world, small).total == 0


def test_members_are_made_below_the_low_mark_only_and_up_to_the_high_one(world, tenant, node):
    make_pool(world, tenant, TEMPLATE, buffer_min=2, buffer_max=4)
    assert node.turn() == 4
    take(world, tenant)
    take(world, tenant)
    assert node.turn() == 0
    take(world, tenant)
    assert node.turn() == 3
    assert counts(world, tenant).free == 4


def test_a_pool_never_outgrows_its_limit_those_that_leave_included(world, tenant, node):
    make_pool(world, tenant, TEMPLATE, pool_max=3)
    node.turn()
    taken = [take(world, tenant).sandbox_id for _ in range(2)]
    assert node.turn() == 1
    assert node.turn() == 0
    assert counts(world, tenant).total == 3
    world.execute(
        "UPDATE sandbox_sessions SET state = 'Stopping', node_id = NULL WHERE trial_id = %(id)s", id=taken[0]
    )
    assert node.turn() == 0
    # Else it waits for the end of what nobody ends.
    world.execute(
        "UPDATE sandbox_sessions SET node_id = %(node)s WHERE trial_id = %(id)s",
        node=node.seat.node_id,
        id=taken[0],
    )


def test_a_smaller_pool_ends_what_is_too_much_and_nothing_that_is_used(world, tenant, node):
    make_pool(world, tenant, TEMPLATE, buffer_min=3, buffer_max=3)
    node.turn()
    used = take(world, tenant).sandbox_id
    small = Capacity(buffer_min=0, buffer_max=1, pool_min=0, pool_max=2)
    pool_service(world, tenant, lambda pools: pools.change("p", capacity=small, template=None))
    node.turn()
    now = counts(world, tenant)
    assert (now.total, now.allocated, now.free) == (2, 1, 1)
    assert node.rows("trial_id = %(id)s", id=used)[0]["state"] == "Running"


def test_members_of_an_older_template_are_given_to_nobody_and_replaced(world, tenant, node):
    make_pool(world, tenant, TEMPLATE)
    node.turn()
    old = {row["trial_id"] for row in node.free()}
    changed = to_pool_template({**PLAIN, "env": {"NEW": "1"}})
    pool_service(world, tenant, lambda pools: pools.change("p", capacity=None, template=changed))
    assert take(world, tenant, env={"NEW": "1"}).warm is None
    assert node.turn() == 3  # the one that was just asked for, too
    assert take(world, tenant, env={"NEW": "1"}).sandbox_id not in old
    ends = {row["end_reason"] for row in node.rows("trial_id = ANY(%(ids)s)", ids=list(old))}
    assert ends == {"POOL_OUTDATED"}


def test_a_deleted_pool_takes_its_free_members_along_and_leaves_the_others(world, tenant, node):
    make_pool(world, tenant, TEMPLATE)
    node.turn()
    used = take(world, tenant).sandbox_id
    ended = pool_service(world, tenant, lambda pools: pools.delete("p"))
    assert [len(ids) for ids in ended.values()] == [1]
    node.settle()
    rows = {row["trial_id"]: row for row in node.rows()}
    assert rows.pop(used)["state"] == "Running"
    assert [(row["state"], row["end_reason"]) for row in rows.values()] == [("Terminated", "POOL_DELETED")]
    assert [handle.name for handle in node.runtime.list()] == [f"sm-{used}-1"]


def test_a_member_that_was_written_about_while_its_pool_was_deleted_ends_too(world, tenant, node):
    make_pool(world, tenant, TEMPLATE, buffer_min=1, buffer_max=1)
    node.turn()
    member = node.free()[0]["trial_id"]
    with world.engine.connect() as other:
        other.exec_driver_sql("SELECT 1 FROM trials WHERE id = %(id)s FOR UPDATE", {"id": member})
        pool_service(world, tenant, lambda pools: pools.delete("p"))
        assert len(node.free()) == 1
        other.rollback()
    node.turn()
    assert node.free() == []


def test_a_member_is_not_ended_that_somebody_takes_at_this_moment(world, tenant, node):
    make_pool(world, tenant, TEMPLATE, buffer_min=1, buffer_max=1)
    node.turn()
    none = Capacity(buffer_min=0, buffer_max=0, pool_min=0, pool_max=5)
    pool_service(world, tenant, lambda pools: pools.change("p", capacity=none, template=None))
    new = to_new_sandbox(
        CreateSandboxRequest.model_validate(
            {**PLAIN, "resourceLimits": {"cpu": "1"}, "entrypoint": ["tail", "-f", "/dev/null"]}
        )
    )
    with world.engine.begin() as connection:
        made = creates(connection, tenant).create(new, new_id())
        ticking = threading.Thread(target=node.pools.tick)
        ticking.start()
        ticking.join(0.3)
    ticking.join()
    node.settle()
    assert made.warm is not None
    assert node.rows("trial_id = %(id)s", id=made.sandbox_id)[0]["state"] == "Running"


def test_what_waited_too_long_is_replaced_first_and_ended_then(world, tenant):
    node = PoolNode(world, max_age_seconds=600)
    make_pool(world, tenant, TEMPLATE)
    node.turn()
    old = {row["trial_id"] for row in node.free()}
    world.execute("UPDATE sandbox_sessions SET running_at = running_at - interval '11 minutes'")
    node.turn()
    assert len(node.free()) == 4
    node.turn()
    fresh = {row["trial_id"] for row in node.free()}
    assert len(fresh) == 2
    assert not fresh & old
    assert {row["end_reason"] for row in node.rows("trial_id = ANY(%(ids)s)", ids=list(old))} == {
        "POOL_MEMBER_AGED"
    }
    node.close()


def test_members_that_do_not_start_are_tried_again_later_and_the_pool_says_why(world, tenant, node):
    make_pool(world, tenant, to_pool_template({"image": {"uri": "missing"}}))
    world.execute("UPDATE sandbox_pools SET updated_at = updated_at - interval '1 minute'")
    node.turn()
    now = counts(world, tenant)
    assert (now.total, now.failed_tries) == (0, 1)
    assert "no image 'missing'" in now.problem
    node.turn()
    assert len(node.rows()) == 2  # not again at once
    later = "UPDATE sandbox_sessions SET ended_at = ended_at - interval '1 second'"
    world.execute(later)
    node.turn()
    assert len(node.rows()) == 4
    world.execute(later)
    node.turn()
    assert len(node.rows()) == 4  # two tries have failed: two seconds


def test_a_template_that_was_mended_is_tried_at_once(world, tenant, node):
    make_pool(world, tenant, to_pool_template({"image": {"uri": "missing"}}))
    node.turn()
    pool_service(world, tenant, lambda pools: pools.change("p", capacity=None, template=TEMPLATE))
    assert node.turn() == 2
    assert counts(world, tenant).problem is None


def test_a_member_that_dies_is_replaced_and_given_to_nobody(world, tenant, node):
    make_pool(world, tenant, TEMPLATE)
    node.turn()
    dead, living = (row["trial_id"] for row in sorted(node.free(), key=lambda row: row["running_at"]))
    node.kill(dead)
    assert take(world, tenant).sandbox_id == living
    world.execute(
        "UPDATE sandbox_sessions SET ended_at = ended_at - interval '2 seconds' WHERE ended_at IS NOT NULL"
    )
    assert node.turn() == 2


def test_members_that_are_lost_after_they_ran_for_a_while_are_replaced_at_once(world, tenant, node):
    make_pool(world, tenant, TEMPLATE, buffer_min=1, buffer_max=3)
    node.turn()
    lost = [row["trial_id"] for row in node.free()]
    world.execute("UPDATE sandbox_sessions SET running_at = running_at - interval '1 minute'")
    for trial in lost:
        node.kill(trial)
    assert node.turn() == 3
    assert counts(world, tenant).failed_tries == 0


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE nodes SET cordoned_at = clock_timestamp()",
        "UPDATE nodes SET drained_at = clock_timestamp()",
        "UPDATE worker_sessions SET draining = true",
        "UPDATE worker_sessions SET lease_until = clock_timestamp() - interval '1 second'",
    ],
    ids=["cordoned", "drained", "draining", "without a lease"],
)
def test_nothing_is_given_away_on_a_node_that_takes_no_work(world, tenant, node, statement):
    make_pool(world, tenant, TEMPLATE)
    node.turn()
    world.execute(statement)
    assert take(world, tenant).warm is None


def test_a_taken_member_has_what_its_create_gave_it(world, tenant, node):
    make_pool(world, tenant, to_pool_template({**PLAIN, "metadata": {"from": "pool", "kept": "yes"}}))
    node.turn()
    made = take(
        world,
        tenant,
        metadata={"from": "me"},
        timeout=600,
        secureAccess=True,
        extensions={"access.renew.extend.seconds": "300"},
    )
    row = node.rows("trial_id = %(id)s", id=made.sandbox_id)[0]
    assert row["metadata"] == {"from": "me", "kept": "yes"}
    assert (row["expires_at"] - row["created_at"]).total_seconds() == 600
    assert (row["hidden_at"], row["is_warm"], row["is_secure"], row["renew_seconds"]) == (
        None,
        False,
        True,
        300,
    )
    assert row["created_at"] >= row["running_at"]


def test_a_budget_holds_back_what_a_taken_member_may_use(world, node):
    tenant = world.tenant("paying", budget_cpu_seconds=1_000_000, budget_period_seconds=86_400)
    make_pool(world, tenant, TEMPLATE, buffer_min=1, buffer_max=1)
    node.turn()
    waiting = world.execute("SELECT reserved_cpu_seconds AS n FROM attempts")[0]["n"]
    assert waiting == pytest.approx(0.1 * 2 * 3600)
    take(world, tenant, timeout=600)
    assert world.execute("SELECT reserved_cpu_seconds AS n FROM attempts")[0]["n"] == pytest.approx(
        waiting + 60
    )


def test_other_tenants_get_nothing_of_a_pool(world, tenant, node):
    make_pool(world, tenant, TEMPLATE)
    node.turn()
    assert take(world, world.tenant("other")).warm is None


@pytest.mark.parametrize(
    "changes",
    [
        {"image": {"uri": "debian"}},
        {"image": {"uri": "ubuntu", "auth": {"username": "u", "password": "p"}}},
        {"env": {"A": "1"}},
        {"resourceLimits": {"cpu": "2", "memory": "2Gi"}},
        {"entrypoint": ["sleep", "inf"]},
        {"extensions": {"sandmill.oci-runtime": "runsc"}},
        {"extensions": {"sandmill.runtime": "docker"}},
        {"platform": {"os": "linux", "arch": "amd64"}},
        {"volumes": [{"name": "v", "mountPath": "/v", "pvc": {"claimName": "c"}}]},
    ],
    ids=["image", "credentials", "env", "limits", "entrypoint", "oci", "runtime", "platform", "volume"],
)
def test_a_create_that_wants_anything_else_is_started_anew(world, tenant, node, changes):
    make_pool(world, tenant, TEMPLATE)
    node.turn()
    world.session(runtimes=["docker"])
    made = take(world, tenant, **changes)
    assert made.warm is None
    assert not made.pooled


def test_two_schedulers_at_once_make_no_member_too_many(world, tenant, node):
    make_pool(world, tenant, TEMPLATE, buffer_min=5, buffer_max=5, pool_max=5)
    gate = threading.Barrier(4)

    def tick(_: int) -> None:
        gate.wait()
        node.pools.tick()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(tick, range(4)))
    assert len(node.rows()) == 5


def test_private_images_are_pulled_with_the_credentials_of_the_pool(world, tenant, node):
    template = to_pool_template({"image": {"uri": "ubuntu", "auth": {"username": "u", "password": "s3cret"}}})
    assert "s3cret" not in str(template.sent)
    kept = make_pool(world, tenant, template, buffer_min=1, buffer_max=1)
    assert b"s3cret" not in (kept.pool.image_auth or b"")
    node.turn()
    assert node.free()[0]["image_auth"] is not None
    assert take(world, tenant).warm is None  # without credentials it is the registry that answers
