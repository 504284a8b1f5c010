"""Members of warm pools that are given to attempts of jobs: which, once, to nobody else; over the real queue."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from api.wire.pool_requests import to_pool_template
from core.blobstore import BlobStore
from core.errors import ExecdUnreachableError
from core.metrics import REGISTRY
from repositories.attempts import AttemptRepository, ClaimedAttempt
from repositories.job_members import JobMemberRepository, Member
from repositories.pools import PoolRepository, PoolTaking
from runtimes.base import Command, SandboxStats
from runtimes.fake import FakeOutcome
from services.attempt_control import AttemptControl, StopReason
from services.attempt_members import MemberTaker
from services.attempt_runner import AttemptRunner, WorkerParts
from services.attempt_sandbox import AttemptSandbox
from services.attempt_writes import AttemptStatements, AttemptWriter
from services.jobspec import JobSpec, Resources, Step
from services.log_pump import LogWriter
from services.pool_plan import Capacity
from services.reaping import Reaper
from services.session_endings import SessionEnd, to_session_attempt_end
from tests.integration.queue.test_pools import counts
from tests.support.pools import PLAIN, PoolNode, eventually, make_pool, pool_service
from tests.support.queue import QueueWorld, make_spec
from tests.support.statements import noting_statements
from workers.spare_members import Spare

FOR_JOBS = {"image": {"uri": "fake"}, "extensions": {"sandmill.for": "jobs"}}
TEMPLATE = to_pool_template(FOR_JOBS)


class JobNode(PoolNode):
    """A node that also runs jobs. commands: all that were run, with their sandbox's image."""

    def __init__(self, world: QueueWorld, folder: Path, **options: Any) -> None:
        self.commands: list[Command] = []
        self.gate = threading.Event()
        self.gate.set()
        super().__init__(world, script=self._run, **options)
        self.logs = LogWriter(world.engine, lambda _: None, node_id=self.seat.node_id)
        self.logs.start()
        self.control = AttemptControl()
        self.runner = AttemptRunner(
            WorkerParts(
                statements=AttemptStatements(world.engine, world.engine, node_id=self.seat.node_id),
                runtimes={"fake": self.runtime},
                blobs=BlobStore(folder / "blobs"),
                logs=self.logs,
                node_id=self.seat.node_id,
                log_cap_bytes=1 << 20,
                members=self.keeper.members,
            )
        )

    def _run(self, _image: str, command: Command) -> FakeOutcome | None:
        self.commands.append(command)
        assert self.gate.wait(30)
        return None

    def submit(self, tenant: int, spec: JobSpec | None = None, **columns: Any) -> ClaimedAttempt:
        """Queue one trial and claim its attempt."""
        (trial,) = self.world.trials(tenant, spec=spec or make_spec(), **columns)
        self.world.dispatcher.tick()
        (bell,) = [bell for bell in self.rung() if bell.trial_id == trial]
        claimed = self.seat.claim(bell)
        assert claimed is not None
        return claimed

    def run(self, claimed: ClaimedAttempt, *, is_adopted: bool = False) -> dict[str, Any]:
        """Run an attempt to its end; gives the row of its trial."""
        self.runner.run(claimed, self.seat.session_id, self.control, is_adopted=is_adopted)
        return self.world.trial(claimed.trial_id)

    def close(self) -> None:
        self.gate.set()
        super().close()
        self.logs.stop()

    def names(self) -> set[str]:
        return {handle.name for handle in self.runtime.list()}


@pytest.fixture
def tenant(world: QueueWorld) -> int:
    return world.tenant(max_running=100)


@pytest.fixture
def node(world: QueueWorld, tmp_path) -> Iterator[JobNode]:
    node = JobNode(world, tmp_path)
    yield node
    node.close()
    assert node.runtime.list() == []
    assert world.execute("SELECT name FROM sandboxes WHERE state <> 'removed'") == []


def given(world: QueueWorld, claimed: ClaimedAttempt) -> str | None:
    return world.attempt(claimed.trial_id, claimed.fence)["sandbox_name"]


def claims(result: str) -> float:
    return REGISTRY.get_sample_value("sandmill_job_pool_claims_total", {"result": result}) or 0.0


def filled(world: QueueWorld, tenant: int, node: JobNode, template: Any = TEMPLATE, **numbers: int) -> list:
    make_pool(world, tenant, template, **numbers)
    node.turn()
    return node.free()


def held(node: JobNode) -> Spare:
    """Hold the one free member as an attempt does."""
    (kind,) = node.keeper.members._spares
    spare = node.keeper.members.hold(*kind)
    assert spare is not None
    return spare


def test_a_job_is_given_a_member_and_the_pool_is_filled_up(world, tenant, node):
    first, second = filled(world, tenant, node)
    before = claims("hit")
    claimed = node.submit(tenant)
    assert node.run(claimed)["outcome"] == "passed"
    assert given(world, claimed) == first["sandbox_name"]
    assert node.names() == {second["sandbox_name"]}
    assert claims("hit") == before + 1
    row = node.rows("trial_id = %(id)s", id=first["trial_id"])[0]
    assert (row["state"], row["end_reason"], row["is_warm"]) == ("Terminated", "POOL_GIVEN_TO_JOB", False)
    assert row["state_message"] == f"to attempt 1 of trial {claimed.trial_id}"
    member = world.trial(first["trial_id"])
    assert (member["state"], member["outcome"], member["state_reason"]) == (
        "finished",
        "cancelled",
        "POOL_GIVEN_TO_JOB",
    )
    assert node.turn() == 1
    now = counts(world, tenant)
    assert (now.total, now.allocated, now.free) == (2, 0, 2)


def test_the_sandbox_goes_over_to_the_attempt_and_its_own_is_never_made(world, tenant, node):
    (member,) = filled(world, tenant, node, buffer_min=1, buffer_max=1)
    claimed = node.submit(tenant)
    node.run(claimed)
    rows = world.execute("SELECT * FROM sandboxes")
    assert [(row["name"], row["trial_id"], row["fence"], row["state"]) for row in rows] == [
        (member["sandbox_name"], claimed.trial_id, claimed.fence, "removed")
    ]


def test_as_many_attempts_at_once_as_members_get_one_each(world, tenant, node):
    members = {row["sandbox_name"] for row in filled(world, tenant, node, buffer_min=5, buffer_max=5)}
    claimed = [node.submit(tenant) for _ in range(7)]
    gate = threading.Barrier(len(claimed))

    def run(one: ClaimedAttempt) -> str:
        gate.wait()
        return node.run(one)["outcome"]

    with ThreadPoolExecutor(len(claimed)) as threads:
        assert set(threads.map(run, claimed)) == {"passed"}
    names = [given(world, one) for one in claimed]
    assert {name for name in names if name} == members
    assert names.count(None) == 2


OTHERS: dict[str, Callable[[JobSpec], JobSpec]] = {
    "image": lambda spec: replace(spec, image="another"),
    "workdir": lambda spec: replace(spec, workdir="/testbed"),
    "cpu": lambda spec: replace(spec, resources=Resources(cpu_millicores=500)),
    "memory": lambda spec: replace(spec, resources=Resources(memory_bytes=1 << 30)),
    "disk": lambda spec: replace(spec, resources=Resources(disk_bytes=2 << 30)),
    "pids": lambda spec: replace(spec, resources=Resources(pids=100)),
    "too large an environment": lambda spec: replace(spec, env={"A": "x" * (64 << 10)}),
}


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS.keys())
def test_a_job_that_wants_anything_else_has_its_own_made(world, tenant, node, change):
    (member,) = filled(world, tenant, node, buffer_min=1, buffer_max=1)
    claimed = node.submit(tenant, change(make_spec()))
    assert node.run(claimed)["outcome"] == "passed"
    assert given(world, claimed) is None
    assert node.names() == {member["sandbox_name"]}


def test_nobody_is_given_another_tenants_member(world, tenant, node):
    filled(world, tenant, node, buffer_min=1, buffer_max=1)
    other = world.tenant("other")
    claimed = node.submit(other)
    assert node.run(claimed)["outcome"] == "passed"
    assert given(world, claimed) is None
    # Nor if a worker should mistake one for the other: the statement asks, too.
    again = node.submit(other)
    one = held(node)
    assert take(node, again, one) == "not_free"
    one.put_back()
    node.run(again)


def test_a_live_pool_is_never_for_jobs(world, tenant, node):
    """Not even one that has all that a job wants but the form."""
    alike = {
        **PLAIN,
        "image": {"uri": "fake"},
        "resourceLimits": {"cpu": "1", "memory": "512Mi", "pids": "256"},
    }
    (member,) = filled(world, tenant, node, to_pool_template(alike), buffer_min=1, buffer_max=1)
    claimed = node.submit(tenant)
    assert node.run(claimed)["outcome"] == "passed"
    assert given(world, claimed) is None
    (row,) = node.keeper._kept._live.values()
    one = Member(row.claimed, node.seat.session_id, member["sandbox_name"])
    again = node.submit(tenant)
    assert take_member(node, again, one) == "not_free"
    node.run(again)


def test_a_pool_for_jobs_is_never_for_creates(world, tenant, node):
    (member,) = filled(world, tenant, node, buffer_min=1, buffer_max=1)
    taking = PoolTaking({}, {}, 600, None, is_secure=False)
    with world.engine.begin() as connection:
        assert PoolRepository(connection, tenant).take([member["pool_id"]], taking, actor="key:test") is None
    assert len(node.free()) == 1


def test_what_a_member_has_is_of_no_job_and_what_a_job_has_is_there_in_its_steps(world, tenant, node):
    filled(world, tenant, node, buffer_min=1, buffer_max=1)
    spec = make_spec(env={"SECRET": "of the job"}, steps=(Step(name="run", run="true", env={"B": "2"}),))
    claimed = node.submit(tenant, spec, seed=7)
    assert node.run(claimed)["outcome"] == "passed"
    assert given(world, claimed) is not None
    (command,) = node.commands
    assert command.env == {"SECRET": "of the job", "TRIAL_INDEX": "0", "TRIAL_SEED": "7", "B": "2"}


def test_dead_members_are_ended_and_the_next_is_asked(world, tenant, node):
    first, second = filled(world, tenant, node)
    before = claims("dead")
    break_execd(node, first["sandbox_name"])
    claimed = node.submit(tenant)
    assert node.run(claimed)["outcome"] == "passed"
    assert given(world, claimed) == second["sandbox_name"]
    assert claims("dead") == before + 1
    node.settle()
    row = until_ended(node, first["trial_id"])
    assert (row["state"], row["end_reason"]) == ("Failed", "POOL_MEMBER_DEAD")


def test_where_none_answers_one_is_made(world, tenant, node):
    members = filled(world, tenant, node)
    for member in members:
        break_execd(node, member["sandbox_name"])
    before = claims("miss")
    claimed = node.submit(tenant)
    assert node.run(claimed)["outcome"] == "passed"
    assert given(world, claimed) is None
    assert claims("miss") == before + 1
    for member in members:
        until_ended(node, member["trial_id"])


def test_jobs_without_a_pool_are_no_misses(world, tenant, node):
    before = claims("miss")
    node.run(node.submit(tenant))
    assert claims("miss") == before


def test_a_member_that_was_given_up_at_this_moment_is_not_given(world, tenant, node):
    (member,) = filled(world, tenant, node, buffer_min=1, buffer_max=1)
    claimed = node.submit(tenant)
    one = held(node)
    ended = pool_service(world, tenant, lambda pools: pools.delete("p"))
    assert sum(map(len, ended.values())) == 1
    assert take(node, claimed, one) == "not_free"
    one.put_back()
    assert node.run(claimed)["outcome"] == "passed"
    assert given(world, claimed) is None
    assert until_ended(node, member["trial_id"])["end_reason"] == "POOL_DELETED"


@pytest.mark.breaks_invariants("job_member_shown", "session_not_as_told", reason="rows are moved by the test")
def test_a_member_whose_end_is_wished_is_not_given(world, tenant, node):
    filled(world, tenant, node, buffer_min=1, buffer_max=1)
    claimed = node.submit(tenant)
    one = held(node)
    world.execute("UPDATE sandbox_sessions SET state = 'Stopping', end_reason = 'POOL_SURPLUS'")
    assert take(node, claimed, one) == "not_free"
    world.execute("UPDATE sandbox_sessions SET state = 'Running', is_warm = false, hidden_at = NULL")
    assert take(node, claimed, one) == "not_free"
    world.execute("UPDATE sandbox_sessions SET is_warm = true, hidden_at = clock_timestamp()")
    one.put_back()
    node.run(claimed)


def test_a_member_that_is_given_at_this_moment_is_not_given_up(world, tenant, node):
    (member,) = filled(world, tenant, node, buffer_min=1, buffer_max=1)
    claimed = node.submit(tenant)
    one = held(node)
    none = Capacity(buffer_min=0, buffer_max=0, pool_min=0, pool_max=5)
    pool_service(world, tenant, lambda pools: pools.change("p", capacity=none, template=None))
    with world.engine.begin() as connection:
        repository = JobMemberRepository(connection)
        taken = repository.take(
            claimed, node.seat.session_id, one.member, node_id=node.seat.node_id, actor="worker:test"
        )
        assert taken == "taken"
        ticking = threading.Thread(target=node.pools.tick)
        ticking.start()
        ticking.join(0.3)
        connection.rollback()
    ticking.join()
    one.put_back()
    # It was not given in the end, so it is given up by the next look.
    node.turn()
    assert until_ended(node, member["trial_id"])["end_reason"] == "POOL_SURPLUS"
    node.run(claimed)


def test_a_member_of_an_older_template_is_not_given(world, tenant, node):
    filled(world, tenant, node, buffer_min=1, buffer_max=1)
    pool_service(world, tenant, lambda pools: pools.change("p", capacity=None, template=TEMPLATE))
    claimed = node.submit(tenant)
    assert node.run(claimed)["outcome"] == "passed"
    assert given(world, claimed) is None


def test_an_attempt_that_is_not_ours_any_more_is_given_nothing(world, tenant, node):
    (member,) = filled(world, tenant, node, buffer_min=1, buffer_max=1)
    claimed = node.submit(tenant)
    one = held(node)
    with world.engine.begin() as connection:
        stranger = JobMemberRepository(connection).take(
            claimed, UUID(int=1), one.member, node_id=node.seat.node_id, actor="worker:test"
        )
    assert stranger == "not_mine"
    one.put_back()
    assert [row["trial_id"] for row in node.free()] == [member["trial_id"]]
    world.execute(
        "UPDATE attempts SET session_id = %(s)s WHERE trial_id = %(t)s", s=UUID(int=1), t=claimed.trial_id
    )
    node.run(claimed)
    assert node.control.reason is StopReason.DISOWNED
    assert node.names() == {member["sandbox_name"]}
    assert len(node.free()) == 1
    own = {"s": node.seat.session_id, "t": claimed.trial_id}
    world.execute("UPDATE attempts SET session_id = %(s)s WHERE trial_id = %(t)s", **own)
    assert node.seat.finish(claimed)


def test_taking_again_after_a_lost_reply_is_the_same_taking(world, tenant, node):
    (member,) = filled(world, tenant, node, buffer_min=1, buffer_max=1)
    claimed = node.submit(tenant)
    one = held(node)
    # The first commit goes through and nobody hears of it.
    assert [take(node, claimed, one) for _ in range(2)] == ["taken", "taken"]
    assert world.trial(member["trial_id"])["state"] == "finished"
    sql = "SELECT count(*) AS n FROM sandbox_events WHERE reason = 'POOL_GIVEN_TO_JOB'"
    assert world.execute(sql) == [{"n": 1}]
    one.gone()
    node.run(replace(claimed, given_sandbox=one.handle.name), is_adopted=True)


def test_a_taken_member_and_its_attempt_are_counted_once(world, node):
    """Before, both count; from the taking on the attempt alone does, in the same commit."""
    tenant = world.tenant("small", max_running=3)
    filled(world, tenant, node)
    node.gate.clear()
    claimed = node.submit(tenant)
    assert live(world, tenant) == 3
    thread = threading.Thread(target=node.run, args=(claimed,))
    thread.start()
    eventually(lambda: node.commands)
    assert live(world, tenant) == 2
    assert world.trial(claimed.trial_id)["state"] == "running"
    node.gate.set()
    thread.join()
    assert live(world, tenant) == 1


def reasons(world: QueueWorld) -> list[str]:
    """Of members that have ended, or are about to."""
    sql = "SELECT end_reason FROM sandbox_sessions WHERE end_reason IS NOT NULL ORDER BY state_at"
    return [row["end_reason"] for row in world.execute(sql)]


def keep(node: JobNode) -> None:
    """Let the pools be looked at, and what they end be gone; nothing is dispatched."""
    node.pools.tick()
    node.settle()


def test_a_pool_leaves_room_for_the_attempt_that_takes_a_member(world, node):
    tenant = world.tenant("small", max_running=3)
    assert len(filled(world, tenant, node, buffer_min=3, buffer_max=3)) == 2
    for _ in range(3):  # one after the other is given one at once
        claimed = node.submit(tenant)
        free = {member["sandbox_name"] for member in node.free()}
        node.run(claimed)
        assert given(world, claimed) in free
        node.turn()
    assert reasons(world) == ["POOL_GIVEN_TO_JOB"] * 3


def test_a_pool_says_that_quotas_leave_it_no_room(world, node):
    tenant = world.tenant("small", max_running=1)

    def problem() -> str | None:
        return pool_service(world, tenant, lambda pools: pools.get("p")).counts.problem

    assert filled(world, tenant, node) == []
    assert "no room now for another member" in (problem() or "")
    world.execute("UPDATE tenants SET max_running = 3 WHERE id = %(id)s", id=tenant)
    assert problem() is None
    node.turn()
    assert problem() is None


@pytest.mark.parametrize(
    ("quota", "members"),
    [
        ({"max_running": 1}, 0),
        ({"max_cpu_millicores": 1000}, 0),
        ({"max_cpu_millicores": 1250}, 2),  # an attempt holds 1000m, a member a tenth of it
        ({"max_memory_bytes": 580 << 20}, 1),
    ],
    ids=["running", "cpu", "cpu-of-two", "memory"],
)
def test_every_quota_counts_for_the_room_that_is_left(world, node, quota, members):
    tenant = world.tenant("small", **{"max_running": 100, **quota})
    assert len(filled(world, tenant, node, buffer_min=4, buffer_max=4)) == members


def test_members_give_way_to_what_their_quota_keeps_waiting(world, node):
    tenant = world.tenant("small", max_running=4)
    assert len(filled(world, tenant, node, buffer_min=3, buffer_max=3)) == 3
    other = make_spec(image="another")
    world.trials(tenant, 3, spec=other)
    keep(node)
    assert reasons(world) == ["POOL_GAVE_WAY"] * 2  # of three that wait, one has room
    world.dispatcher.tick()
    assert (len(node.rung()), len(node.free()), live(world, tenant)) == (3, 1, 4)
    # Where nothing waits any more, nothing more goes; where there is room, the pool is filled again.
    node.turn()
    assert len(node.free()) == 1
    world.execute("UPDATE tenants SET max_running = 100 WHERE id = %(id)s", id=tenant)
    node.turn()
    assert len(node.free()) == 3


def test_jobs_that_can_have_a_member_take_it_once_there_is_room_for_one(world, node):
    tenant = world.tenant("small", max_running=4)
    assert len(filled(world, tenant, node, buffer_min=3, buffer_max=3)) == 3
    node.gate.clear()
    world.execute("UPDATE tenants SET max_running = 3 WHERE id = %(id)s", id=tenant)
    world.trials(tenant, 3)
    keep(node)
    assert reasons(world) == ["POOL_GAVE_WAY"]  # for one of the three: the others follow as members are taken
    world.dispatcher.tick()
    (bell,) = node.rung()
    claimed = node.seat.claim(bell)
    free = {member["sandbox_name"] for member in node.free()}
    thread = threading.Thread(target=node.run, args=(claimed,))
    thread.start()
    eventually(lambda: node.commands)
    assert given(world, claimed) in free
    world.dispatcher.tick()
    assert len(node.rung()) == 1
    node.gate.set()
    thread.join()


def test_nothing_goes_while_an_attempt_is_about_to_take_a_member(world, node):
    tenant = world.tenant("small", max_running=3)
    assert len(filled(world, tenant, node)) == 2
    world.trials(tenant)
    world.dispatcher.tick()
    assert len(node.rung()) == 1  # placed, and nothing taken yet
    world.trials(tenant)
    keep(node)
    assert reasons(world) == []
    # One that has been placed for long takes none any more.
    world.execute("UPDATE attempts SET created_at = created_at - interval '6 seconds' WHERE slots > 0")
    keep(node)
    assert reasons(world) == ["POOL_GAVE_WAY"]


@pytest.mark.parametrize("why", ["paused", "queue", "never", "no-node"])
def test_nothing_goes_for_what_would_not_start_all_the_same(world, node, why):
    tenant = world.tenant("small", max_running=3, max_cpu_millicores=2000)
    assert len(filled(world, tenant, node)) == 2
    world.execute("UPDATE tenants SET max_running = 2 WHERE id = %(id)s", id=tenant)
    columns = {"never": {"cpu_millicores": 2001}, "no-node": {"runtime": "docker"}}.get(why, {})
    world.trials(tenant, spec=make_spec(image="another"), **columns)
    if why == "paused":
        world.execute("UPDATE tenants SET paused_at = now() WHERE id = %(id)s", id=tenant)
    if why == "queue":
        world.execute("UPDATE queues SET paused_at = now() WHERE name = 'default'")
    keep(node)
    assert (len(node.free()), reasons(world)) == (2, [])


def test_a_job_goes_where_a_member_is_that_it_can_have(world, tenant, node):
    (member,) = filled(world, tenant, node, buffer_min=1, buffer_max=1)
    # Fuller, so that it would be the place for anything else.
    small = world.session(cpu_millicores=4000)
    world.execute("UPDATE nodes SET images = '{}'")
    world.trials(tenant, 2, spec=make_spec(env={"A": "b"}))
    (other,) = world.trials(tenant, spec=make_spec(image="another"))
    world.dispatcher.tick()
    nodes = {bell.trial_id: bell.node_id for bell in node.rung()}
    assert nodes.pop(other) == small.node_id
    # One member is for one attempt: the second goes its way.
    assert sorted(nodes.values()) == sorted([member["node_id"], small.node_id])


def test_a_lost_attempt_takes_what_it_was_given_with_it(world, tenant, node):
    (member,) = filled(world, tenant, node, buffer_min=1, buffer_max=1)
    node.gate.clear()
    claimed = node.submit(tenant)
    thread = threading.Thread(target=node.run, args=(claimed,))
    thread.start()
    eventually(lambda: node.commands)
    world.execute(
        "UPDATE attempts SET overdue_at = clock_timestamp() - interval '1 s' WHERE trial_id = %(t)s",
        t=claimed.trial_id,
    )
    Reaper(world.engine, lease_grace_seconds=1.0).reap()
    assert world.attempt(claimed.trial_id, 1)["state"] == "lost"
    rows = world.execute("SELECT state FROM sandboxes WHERE name = %(n)s", n=member["sandbox_name"])
    assert rows == [{"state": "removed"}]
    node.control.request(StopReason.DISOWNED)
    node.gate.set()
    thread.join()
    assert node.names() == set()


def test_a_lost_lease_ends_what_was_held_and_not_given(world, tenant, node):
    (member,) = filled(world, tenant, node, buffer_min=1, buffer_max=1)
    one = held(node)
    row = node.keeper._kept._live[member["trial_id"]]
    row.control.request(StopReason.DISOWNED)
    assert node.names() == {member["sandbox_name"]}
    one.put_back()
    eventually(lambda: node.names() == set())
    eventually(lambda: node.keeper.members._spares == {})
    world.execute("UPDATE sandboxes SET state = 'removed'")  # for the reaper to write


def test_what_was_given_is_left_alone_by_whoever_kept_it(world, tenant, node):
    """A heartbeat that began before may find that the member is not ours any more: it is not its to remove."""
    (member,) = filled(world, tenant, node, buffer_min=1, buffer_max=1)
    row = node.keeper._kept._live[member["trial_id"]]
    node.gate.clear()
    claimed = node.submit(tenant)
    thread = threading.Thread(target=node.run, args=(claimed,))
    thread.start()
    eventually(lambda: node.commands)
    row.control.request(StopReason.DISOWNED)
    node.keeper.wake()
    assert node.names() == {member["sandbox_name"]}
    node.gate.set()
    thread.join()
    assert world.trial(claimed.trial_id)["outcome"] == "passed"


def test_a_start_that_is_gone_on_with_has_what_it_was_given(world, tenant, node):
    (member,) = filled(world, tenant, node, buffer_min=1, buffer_max=1)
    claimed = given_and_left(world, tenant, node)
    assert node.run(claimed, is_adopted=True)["outcome"] == "passed"
    assert given(world, claimed) == member["sandbox_name"]
    assert node.names() == set()


@pytest.mark.parametrize("is_gone", [True, False], ids=["gone", "silent"])
def test_a_start_whose_given_sandbox_is_of_no_use_has_its_own(world, tenant, node, is_gone):
    (member,) = filled(world, tenant, node, buffer_min=1, buffer_max=1)
    claimed = given_and_left(world, tenant, node)
    if is_gone:
        for handle in node.runtime.list():
            node.runtime.remove(handle)
    else:
        break_execd(node, member["sandbox_name"])
    assert node.run(claimed, is_adopted=True)["outcome"] == "passed"
    assert given(world, claimed) is None
    rows = world.execute("SELECT name, state FROM sandboxes ORDER BY name")
    own = f"sm-{claimed.trial_id}-1"
    assert rows == [{"name": name, "state": "removed"} for name in sorted((own, member["sandbox_name"]))]


def test_a_start_that_another_worker_began_is_given_nothing(world, tenant, node):
    """It may have made a sandbox of its own already."""
    filled(world, tenant, node, buffer_min=1, buffer_max=1)
    claimed = node.submit(tenant)
    assert node.run(claimed, is_adopted=True)["outcome"] == "passed"
    assert given(world, claimed) is None


def test_members_that_another_worker_took_over_are_given_too(world, tenant, node):
    (member,) = filled(world, tenant, node, buffer_min=1, buffer_max=1)
    row = node.keeper._kept._live.pop(member["trial_id"])
    node.keeper.members.drop(member["trial_id"])
    assert node.keeper.take(replace(row.claimed, state="running"), node.seat.session_id, AttemptControl())
    claimed = node.submit(tenant)
    assert node.run(claimed)["outcome"] == "passed"
    assert given(world, claimed) == member["sandbox_name"]


def test_images_of_members_for_jobs_are_told_for_the_placement_of_jobs(world, tenant, node):
    filled(world, tenant, node)
    alike = to_pool_template({**PLAIN, "image": {"uri": "live"}})
    make_pool(world, tenant, alike, name="live")
    node.turn()
    assert node.images == ["fake", "fake"]


def test_job_without_members_asks_the_database_nothing_more(world, tenant, node):
    claimed = node.submit(tenant)
    with noting_statements() as statements:
        node.run(claimed)
    assert statements
    assert not [sql for sql in statements if "sandbox_pools" in sql or "sandbox_sessions" in sql]


def given_and_left(world: QueueWorld, tenant: int, node: JobNode) -> ClaimedAttempt:
    """Let an attempt be given a member by a worker that is gone then; gives it as the next one adopts it."""
    claimed = node.submit(tenant)
    parts, session_id = node.runner._parts, node.seat.session_id
    control = AttemptControl()
    writer = AttemptWriter(parts.statements, control)
    sandbox = AttemptSandbox(
        node.runtime,
        claimed,
        JobSpec.from_json(claimed.spec),
        node_id=parts.node_id,
        session_id=session_id,
        writer=writer,
        taker=MemberTaker(node.keeper.members, writer, control, node_id=parts.node_id, session_id=session_id),
    )
    handle = sandbox.create(timeout_seconds=10)
    assert given(world, claimed) == control.given_sandbox == handle.name
    return replace(claimed, given_sandbox=handle.name)


def take(node: JobNode, claimed: ClaimedAttempt, one: Spare) -> str:
    return take_member(node, claimed, one.member)


def take_member(node: JobNode, claimed: ClaimedAttempt, member: Member) -> str:
    end = to_session_attempt_end(
        SessionEnd("POOL_GIVEN_TO_JOB"), SandboxStats(), wall_seconds=0, is_removed=False, retry_seconds=None
    )
    with node.world.engine.begin() as connection:
        taking = JobMemberRepository(connection).take(
            claimed, node.seat.session_id, member, node_id=node.seat.node_id, actor="worker:test"
        )
        if taking == "taken":
            AttemptRepository(connection).finish(member.claimed, member.session_id, end)
        return taking


def break_execd(node: JobNode, name: str) -> None:
    """Let it run on without an answer."""
    original = node.runtime.live

    def live_or_silent(handle: Any) -> Any:
        if handle.name == name:
            raise ExecdUnreachableError("silent")
        return original(handle)

    node.runtime.live = live_or_silent  # type: ignore[method-assign]


def until_ended(node: JobNode, trial: UUID) -> dict[str, Any]:
    eventually(lambda: node.rows("trial_id = %(id)s AND ended_at IS NOT NULL", id=trial))
    return node.rows("trial_id = %(id)s", id=trial)[0]


def live(world: QueueWorld, tenant: int) -> int:
    sql = (
        "SELECT count(*) AS n FROM attempts WHERE tenant_id = %(t)s"
        " AND state IN ('dispatched', 'starting', 'running', 'stopping', 'collecting')"
    )
    return world.execute(sql, t=tenant)[0]["n"]
