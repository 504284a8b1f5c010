"""Workers of live sandboxes killed at every step of a create and of a delete: the next one of the node goes on."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from core.ids import new_id
from core.sealing import SecretBox
from runtimes.base import SandboxHandle
from runtimes.registry import build_runtime
from services.jobspec import Resources
from services.live_sandboxes import LiveSandboxService, NewSandbox, SandboxPolicy
from services.reaping import Reaper
from services.session_spec import SessionSpec
from services.session_sweeping import SessionSweeper
from tests.support.nursery import Nursery, running_nursery
from tests.support.queue import QueueWorld
from tests.support.sandboxes import is_root

pytestmark = [pytest.mark.timeout(600), pytest.mark.skipif(not is_root(), reason="the zygote needs root")]

POINTS_OF_A_CREATE = (
    "worker.after_claim",
    "session.before_create",
    "session.after_create",
    "session.after_running",
)
POINTS_OF_AN_END = (
    "session.before_remove",
    "session.after_remove",
    "session.before_end",
    "session.after_end",
)
SPEC = SessionSpec(
    image="host",
    resources=Resources(cpu_millicores=500, memory_bytes=128 << 20, disk_bytes=16 << 20, pids=64, gpu=0),
)


class Home:
    """One node, and whoever works in it; this process is API and scheduler."""

    def __init__(self, world: QueueWorld, nursery: Nursery, home: Path) -> None:
        self.world, self.nursery, self.home = world, nursery, home
        self.tenant = world.tenant()
        self.reaper = Reaper(world.engine, lease_grace_seconds=5.0)
        self.sweeper = SessionSweeper(world.engine, tell_nodes=lambda _: None, tell=lambda _: None)

    def start(self, failpoints: str = "") -> int:
        return self.nursery.worker(self.home, failpoints=failpoints)

    def service(self, connection: Any) -> LiveSandboxService:
        policy = SandboxPolicy(default_runtime="local", start_seconds=120.0)
        box = SecretBox("a secret of at least thirty-two characters")
        return LiveSandboxService(connection, self.tenant, policy=policy, box=box, actor="key:test")

    def create(self, **changes: Any) -> UUID:
        values: dict[str, Any] = {
            "spec": SPEC,
            "image": "host",
            "entrypoint": ("true",),
            "timeout_seconds": 600,
        }
        sandbox_id = new_id()
        with self.world.engine.begin() as connection:
            self.service(connection).create(NewSandbox(**{**values, **changes}), sandbox_id)
        return sandbox_id

    def delete(self, sandbox_id: UUID) -> None:
        with self.world.engine.begin() as connection:
            self.service(connection).delete(sandbox_id)

    def row(self, sandbox_id: UUID) -> dict[str, Any]:
        return self.world.execute("SELECT * FROM sandbox_sessions WHERE trial_id = %(id)s", id=sandbox_id)[0]

    def sandboxes(self) -> list[SandboxHandle]:
        runtime = build_runtime("local", self.home / "runtimes")
        return [each for each in runtime.list() if "sandmill.trial" in each.labels]

    def until(self, condition: Callable[[], Any], seconds: float = 60.0) -> None:
        pause = threading.Event()
        for _ in range(int(seconds / 0.05)):
            self.reaper.reap()
            self.reaper.sweep()
            self.world.dispatcher.tick()
            self.sweeper.run()
            if condition():
                return
            pause.wait(0.05)
        pytest.fail("not in time")

    def until_state(self, sandbox_id: UUID, state: str) -> dict[str, Any]:
        self.until(lambda: self.row(sandbox_id)["state"] == state)
        return self.row(sandbox_id)

    def holds_nothing(self) -> bool:
        live = "state IN ('dispatched', 'starting', 'running', 'stopping', 'collecting')"
        return not self.world.execute(f"SELECT 1 FROM attempts WHERE {live}") and not self.world.execute(
            "SELECT 1 FROM sandboxes WHERE state <> 'removed'"
        )


@pytest.fixture
def home(world: QueueWorld, database_url, redis_url, tmp_path, runtime_folder) -> Iterator[Home]:
    place = tmp_path / "home"
    (place / "runtimes").mkdir(parents=True)
    bundles = runtime_folder / "bundles"
    bundles.mkdir(exist_ok=True)
    (place / "runtimes" / "bundles").symlink_to(bundles)
    settings = {
        "database_url": database_url,
        "redis_url": redis_url,
        "runtimes": '["local"]',
        "lease_seconds": "60",
        "lease_margin_seconds": "10",
        "heartbeat_seconds": "0.1",
        "rering_seconds": "0.05",
    }
    with running_nursery(tmp_path / "workers.log", **settings) as nursery:
        try:
            yield Home(world, nursery, place)
        finally:
            nursery.end(nursery.worker(place), signal.SIGINT)
    assert build_runtime("local", place / "runtimes").list() == []


def test_create_goes_on_wherever_its_worker_is_killed(home: Home):
    """One attempt, one sandbox, and it runs; nobody waits for the lease."""
    for point in POINTS_OF_A_CREATE:
        dying = home.start(f"{point}:kill9")
        sandbox_id = home.create()
        home.until(lambda dying=dying: not Path(f"/proc/{dying}").exists())
        successor = home.start()
        row = home.until_state(sandbox_id, "Running")
        assert home.world.trial(sandbox_id)["attempts_used"] == 1, point
        assert [each.name for each in home.sandboxes()] == [row["sandbox_name"]], point
        home.delete(sandbox_id)
        home.until_state(sandbox_id, "Terminated")
        home.until(home.holds_nothing)
        assert home.sandboxes() == []
        home.nursery.end(successor)


def test_delete_goes_on_wherever_its_worker_is_killed(home: Home):
    for point in POINTS_OF_AN_END:
        dying = home.start(f"{point}:kill9")
        sandbox_id = home.create()
        home.until_state(sandbox_id, "Running")
        home.delete(sandbox_id)
        home.until(lambda dying=dying: not Path(f"/proc/{dying}").exists())
        successor = home.start()
        row = home.until_state(sandbox_id, "Terminated")
        assert (row["end_reason"], row["ended_by"]) == ("SANDBOX_DELETED", "key:test"), point
        assert home.world.trial(sandbox_id)["outcome"] == "cancelled", point
        home.until(home.holds_nothing)
        assert home.sandboxes() == []
        home.nursery.end(successor)


def test_delete_while_nobody_is_there_is_obeyed_by_the_next(home: Home):
    """In a start, and when it ran."""
    for point in ("session.before_create", "session.after_create", None):
        worker = home.start("" if point is None else f"{point}:kill9")
        sandbox_id = home.create()
        if point is None:
            home.until_state(sandbox_id, "Running")
            home.nursery.end(worker)
        else:
            home.until(lambda worker=worker: not Path(f"/proc/{worker}").exists())
        home.delete(sandbox_id)
        successor = home.start()
        row = home.until_state(sandbox_id, "Terminated")
        assert row["end_reason"] == "SANDBOX_DELETED"
        assert (row["running_at"] is None) == (point is not None)
        home.until(home.holds_nothing)
        assert home.sandboxes() == []
        home.nursery.end(successor)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "replaced"])
def test_sandbox_outlives_its_worker(home: Home, number):
    worker = home.start()
    sandbox_id = home.create()
    before = home.until_state(sandbox_id, "Running")
    (handle,) = home.sandboxes()
    for _ in range(2):
        home.nursery.end(worker, number)
        worker = home.start()
        home.until(lambda: home.world.attempt(sandbox_id, 1)["adoptions"] > 0)
    after = home.row(sandbox_id)
    assert {key: after[key] for key in ("state", "state_at", "sandbox_name")} == {
        key: before[key] for key in ("state", "state_at", "sandbox_name")
    }
    assert [(each.name, each.ref) for each in home.sandboxes()] == [(handle.name, handle.ref)]
    home.delete(sandbox_id)
    home.until_state(sandbox_id, "Terminated")


def test_what_is_wished_while_nobody_is_there_is_obeyed_by_the_next(home: Home):
    worker = home.start()
    sandbox_id = home.create()
    home.until_state(sandbox_id, "Running")
    for verb, state in (("pause", "Paused"), ("resume", "Running")):
        home.nursery.end(worker)
        with home.world.engine.begin() as connection:
            getattr(home.service(connection), verb)(sandbox_id)
        worker = home.start()
        home.until_state(sandbox_id, state)
    # A paused one is adopted as it is, and can be deleted.
    with home.world.engine.begin() as connection:
        home.service(connection).pause(sandbox_id)
    home.until_state(sandbox_id, "Paused")
    home.nursery.end(worker)
    home.start()
    home.until(lambda: home.world.attempt(sandbox_id, 1)["adoptions"] >= 3)
    assert home.row(sandbox_id)["state"] == "Paused"
    home.delete(sandbox_id)
    home.until_state(sandbox_id, "Terminated")


def test_death_from_outside_is_told(home: Home):
    home.start()
    sandbox_id = home.create()
    home.until_state(sandbox_id, "Running")
    (handle,) = home.sandboxes()
    os.kill(int(handle.ref.partition(".")[0]), signal.SIGKILL)
    row = home.until_state(sandbox_id, "Failed")
    assert row["state_reason"] == "CONTAINER_EXITED_ERROR"
    assert row["state_message"]
    home.until(home.holds_nothing)


def test_death_while_nobody_is_there_is_told_by_the_next(home: Home):
    worker = home.start()
    sandbox_id = home.create()
    home.until_state(sandbox_id, "Running")
    home.nursery.end(worker)
    runtime = build_runtime("local", home.home / "runtimes")
    for handle in home.sandboxes():
        runtime.remove(handle)
    home.start()
    row = home.until_state(sandbox_id, "Failed")
    assert row["state_reason"] == "SANDBOX_LOST"
    assert home.world.trial(sandbox_id)["outcome"] == "error"


def test_expiry_while_nobody_is_there_is_obeyed_by_the_next(home: Home):
    worker = home.start()
    sandbox_id = home.create()
    home.until_state(sandbox_id, "Running")
    home.nursery.end(worker)
    home.world.execute("UPDATE sandbox_sessions SET expires_at = clock_timestamp()")
    home.until_state(sandbox_id, "Stopping")
    home.start()
    row = home.until_state(sandbox_id, "Terminated")
    assert (row["end_reason"], row["ended_by"]) == ("SANDBOX_EXPIRED", "scheduler")
    assert home.sandboxes() == []


def test_missing_image_is_told(home: Home):
    home.start()
    sandbox_id = home.create(spec=SessionSpec(image="nobody/made-this:1", resources=SPEC.resources))
    row = home.until_state(sandbox_id, "Failed")
    assert row["state_reason"] == "DOCKER::SANDBOX_IMAGE_PULL_FAILED"
    assert "nobody/made-this" in row["state_message"]
    home.until(home.holds_nothing)
