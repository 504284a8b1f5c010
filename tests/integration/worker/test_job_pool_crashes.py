"""Workers killed around the moment at which an attempt is given a member of a pool, and while it uses one."""

import contextlib
import signal
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from api.wire.pool_requests import to_pool_template
from runtimes.registry import build_runtime
from services.jobspec import Step
from services.live_sandboxes import SandboxPolicy
from services.pool_keeping import PoolKeeper
from services.session_sweeping import SessionSweeper
from tests.integration.worker.test_adoption import GATED, STEPS, Node, check, make_node
from tests.support.images import ensure_images, require_docker
from tests.support.pools import BOX, make_pool
from tests.support.sandboxes import is_root

__all__ = ["make_node"]

pytestmark = [pytest.mark.timeout(300), pytest.mark.skipif(not is_root(), reason="the zygote needs root")]

BEFORE: dict[str, dict[str, str]] = {
    "before the transaction": {"failpoints": "member.before_take:kill9"},
    "within it": {"dies_in": "repositories.job_members:JobMemberRepository.take"},
}
AFTER: dict[str, dict[str, str]] = {
    "its reply unread": {"dies_in": "services.attempt_writes:AttemptWriter.ask_whole"},
    "right after it": {"failpoints": "member.after_take:kill9"},
    "first step written down, not started": {"failpoints": "worker.after_start:kill9"},
    "output stored": {"failpoints": "worker.mid_log:kill9:2"},
    "last step ended": {"failpoints": "worker.after_exit:kill9:3"},
    "sandbox removed, end not written": {"failpoints": "worker.before_finish:kill9"},
}


class PooledNode:
    """A node with a pool for jobs of one member, and the scheduler's part of it."""

    def __init__(self, node: Node) -> None:
        self.node, self.world = node, node.world
        extensions = {"sandmill.for": "jobs", "sandmill.runtime": node.runtime}
        template = to_pool_template({"image": {"uri": node.image}, "extensions": extensions})
        make_pool(self.world, node.tenant, template, buffer_min=1, buffer_max=1)
        self.keeper = PoolKeeper(
            self.world.engine,
            box=BOX,
            policy=SandboxPolicy(default_runtime=node.runtime),
            max_age_seconds=3600.0,
            tell_nodes=lambda _: None,
            on_submitted=lambda: None,
        )
        self.sweeper = SessionSweeper(self.world.engine, tell_nodes=lambda _: None, tell=lambda _: None)
        self.runtime = build_runtime(node.runtime, node.home / "runtimes")

    def filled(self) -> dict[str, Any]:
        """Wait for the free member; gives its row."""

        def has_one() -> bool:
            self.tick()
            return bool(self.free())

        self.node.until(has_one)
        (row,) = self.free()
        return row

    def offered(self) -> dict[str, Any]:
        """The same, and the worker that is here has it in hand: it obeys what is wished of it."""
        self.filled()
        self.world.execute(
            "UPDATE sandbox_sessions SET state = 'Resuming', wish_no = wish_no + 1 WHERE is_warm AND state = 'Running'"
        )
        self.node.until(lambda: bool(self.free()))
        (row,) = self.free()
        return row

    def tick(self) -> None:
        self.node.reaper.reap()
        self.node.reaper.sweep()
        self.keeper.tick()
        self.world.dispatcher.tick()
        self.sweeper.run()

    def free(self) -> list[dict[str, Any]]:
        return self.world.execute("SELECT * FROM sandbox_sessions WHERE is_warm AND state = 'Running'")

    def names(self) -> set[str]:
        """Of the sandboxes of this node; of an engine others may have containers, too."""
        (row,) = self.world.execute("SELECT id FROM nodes")
        return {
            each.name for each in self.runtime.list() if each.labels.get("sandmill.node") == str(row["id"])
        }

    def check_rest(self, trial: UUID, member: dict[str, Any], *, is_given: bool) -> None:
        """Each trial has ended as it should, nothing is left, and the pool is full again."""
        assert self.world.attempt(trial, 1)["sandbox_name"] == (member["sandbox_name"] if is_given else None)
        row = self.world.trial(member["trial_id"])
        if is_given:
            assert (row["state"], row["state_reason"]) == ("finished", "POOL_GIVEN_TO_JOB")
        else:
            assert row["state"] == "running"
        free = self.filled()
        assert (free["trial_id"] == member["trial_id"]) is not is_given
        ends = self.world.execute(
            "SELECT trial_id, count(*) AS n FROM trial_events WHERE subject = 'trial' AND to_state = 'finished'"
            " AND trial_id = ANY(%(ids)s) GROUP BY trial_id",
            ids=[trial, member["trial_id"]],
        )
        assert {each["trial_id"]: each["n"] for each in ends} == (
            {trial: 1, member["trial_id"]: 1} if is_given else {trial: 1}
        )
        assert self.names() == {free["sandbox_name"]}
        open_rows = self.world.execute("SELECT name FROM sandboxes WHERE state <> 'removed'")
        assert [each["name"] for each in open_rows] == [free["sandbox_name"]]


def crash(pooled: PooledNode, dying: dict[str, str], *, is_given: bool) -> None:
    node = pooled.node
    worker = node.start(**dying)
    member = pooled.offered()
    trial = node.submit()
    node.nursery.wait(worker)
    assert node.reaper.reap() == 0
    successor = node.start()
    check(node, trial)
    pooled.check_rest(trial, member, is_given=is_given)
    node.nursery.end(successor)


@contextlib.contextmanager
def pooled_node(node: Node) -> Iterator[PooledNode]:
    yield PooledNode(node)
    # In an orderly way, so that the free members end with it.
    if node.worker:
        node.nursery.end(node.worker, signal.SIGINT)


@pytest.fixture
def pooled(make_node) -> Iterator[PooledNode]:
    with make_node() as node, pooled_node(node) as made:
        yield made


def test_attempt_and_member_go_on_apart_if_the_worker_is_killed_before(pooled: PooledNode):
    for dying in BEFORE.values():
        crash(pooled, dying, is_given=False)


def test_attempt_goes_on_with_what_it_was_given_wherever_its_worker_is_killed(pooled: PooledNode):
    for dying in AFTER.values():
        crash(pooled, dying, is_given=True)


def test_given_sandbox_is_gone_on_with_more_than_once_in_the_middle_of_a_step(pooled: PooledNode):
    node = pooled.node
    worker = node.start()
    member = pooled.offered()
    trial = node.submit(steps=(STEPS[0], Step(name="long", run=GATED), STEPS[2]))
    for gate, number in ((5, signal.SIGKILL), (12, signal.SIGTERM)):
        node.until(lambda gate=gate: b"out %d\n" % gate in node.log(trial, "long"))
        assert pooled.names() == {member["sandbox_name"]}
        node.nursery.end(worker, number)
        worker = node.start()
        node.put(f"/tmp/go{gate}")
    check(node, trial, adoptions=2)
    pooled.check_rest(trial, member, is_given=True)


def test_given_sandbox_that_is_gone_before_anything_ran_is_made_up_for(pooled: PooledNode):
    node = pooled.node
    worker = node.start(failpoints="member.after_take:kill9")
    member = pooled.offered()
    trial = node.submit()
    node.nursery.wait(worker)
    for handle in pooled.runtime.list():
        pooled.runtime.remove(handle)
    node.start()
    check(node, trial)
    assert node.world.attempt(trial, 1)["sandbox_name"] is None
    assert node.world.trial(member["trial_id"])["state"] == "finished"
    free = pooled.filled()
    assert pooled.names() == {free["sandbox_name"]}


def test_cancel_that_came_while_nobody_was_there_removes_what_was_given(pooled: PooledNode):
    node = pooled.node
    worker = node.start()
    member = pooled.offered()
    trial = node.submit(steps=(Step(name="run", run="echo begun; sleep 60"),), inputs=())
    node.until(lambda: node.log(trial, "run") == b"begun\n")
    node.nursery.end(worker)
    node.world.execute(
        "UPDATE trials SET desired = 'cancel', cancel_mode = 'force' WHERE id = %(id)s", id=trial
    )
    node.start()
    assert node.await_end(trial)["outcome"] == "cancelled"
    pooled.check_rest(trial, member, is_given=True)


def test_orderly_stop_ends_what_was_given(pooled: PooledNode):
    node = pooled.node
    worker = node.start()
    pooled.offered()
    trial = node.submit(steps=(Step(name="run", run="echo begun; sleep 60"),), inputs=())
    node.until(lambda: node.log(trial, "run") == b"begun\n")
    node.nursery.end(worker, signal.SIGINT)
    assert pooled.names() == set()
    assert node.world.execute("SELECT name FROM sandboxes WHERE state <> 'removed'") == []
    node.world.execute("UPDATE trials SET desired = 'cancel'")


@pytest.mark.docker
def test_containers_are_given_and_gone_on_with_as_well(make_node):
    require_docker()
    ensure_images()
    with make_node(runtime="docker") as node, pooled_node(node) as pooled:
        crash(pooled, BEFORE["before the transaction"], is_given=False)
        for name in ("right after it", "output stored"):
            crash(pooled, AFTER[name], is_given=True)
