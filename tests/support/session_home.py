"""A node of live sandboxes whose workers are processes that a test kills; the test is API and scheduler."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from core.ids import new_id
from core.sealing import SecretBox
from runtimes.base import Runtime, SandboxHandle
from runtimes.registry import build_runtime
from services.jobspec import Resources
from services.live_sandboxes import LiveSandboxService, NewSandbox, SandboxPolicy
from services.reaping import Reaper
from services.session_spec import SessionSpec
from services.session_sweeping import SessionSweeper
from tests.support.nursery import Nursery, running_nursery
from tests.support.queue import QueueWorld

__all__ = [
    "POINTS_OF_AN_END",
    "POINTS_OF_A_CREATE",
    "Home",
    "check_creates_go_on",
    "check_deletes_go_on",
    "session_home",
    "spec_of",
]

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


def spec_of(image: str) -> SessionSpec:
    """A small sandbox."""
    resources = Resources(cpu_millicores=500, memory_bytes=128 << 20, disk_bytes=16 << 20, pids=64, gpu=0)
    return SessionSpec(image=image, resources=resources)


class Home:
    """One node, and whoever works in it; this process is API and scheduler."""

    def __init__(self, world: QueueWorld, nursery: Nursery, home: Path, *, runtime: str, image: str) -> None:
        self.world, self.nursery, self.home = world, nursery, home
        self.runtime_name, self.image = runtime, image
        self.tenant = world.tenant()
        self.reaper = Reaper(world.engine, lease_grace_seconds=5.0)
        self.sweeper = SessionSweeper(world.engine, tell_nodes=lambda _: None, tell=lambda _: None)

    def start(self, failpoints: str = "") -> int:
        return self.nursery.worker(self.home, failpoints=failpoints)

    def service(self, connection: Any) -> LiveSandboxService:
        policy = SandboxPolicy(default_runtime=self.runtime_name, start_seconds=120.0)
        box = SecretBox("a secret of at least thirty-two characters")
        return LiveSandboxService(connection, self.tenant, policy=policy, box=box, actor="key:test")

    def create(self, **changes: Any) -> UUID:
        values: dict[str, Any] = {
            "spec": spec_of(self.image),
            "image": self.image,
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

    def runtime(self) -> Runtime:
        return build_runtime(self.runtime_name, self.home / "runtimes")

    def sandboxes(self) -> list[SandboxHandle]:
        """Those of this node, by the runtime's own list."""
        node = (self.home / "node" / "node.id").read_text().strip()
        return [each for each in self.runtime().list() if each.labels.get("sandmill.node") == node]

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

    def until_gone(self, pid: int) -> None:
        self.until(lambda: not Path(f"/proc/{pid}").exists())

    def until_state(self, sandbox_id: UUID, state: str) -> dict[str, Any]:
        self.until(lambda: self.row(sandbox_id)["state"] == state)
        return self.row(sandbox_id)

    def holds_nothing(self) -> bool:
        live = "state IN ('dispatched', 'starting', 'running', 'stopping', 'collecting')"
        return not self.world.execute(f"SELECT 1 FROM attempts WHERE {live}") and not self.world.execute(
            "SELECT 1 FROM sandboxes WHERE state <> 'removed'"
        )


@contextlib.contextmanager
def session_home(
    world: QueueWorld,
    place: Path,
    bundles: Path,
    *,
    runtime: str,
    image: str,
    database_url: str,
    redis_url: str,
) -> Iterator[Home]:
    """Run a node without a worker yet. place: a folder for it. bundles: where those of all tests are built.

    When the block ends nothing of its sandboxes is left.
    """
    (place / "home" / "runtimes").mkdir(parents=True)
    bundles.mkdir(exist_ok=True)
    (place / "home" / "runtimes" / "bundles").symlink_to(bundles)
    settings = {
        "database_url": database_url,
        "redis_url": redis_url,
        "runtimes": f'["{runtime}"]',
        "lease_seconds": "60",
        "lease_margin_seconds": "10",
        "heartbeat_seconds": "0.1",
        "rering_seconds": "0.05",
    }
    with running_nursery(place / "workers.log", **settings) as nursery:
        home = Home(world, nursery, place / "home", runtime=runtime, image=image)
        try:
            yield home
        finally:
            nursery.end(home.start(), signal.SIGINT)
    assert home.sandboxes() == []


def check_creates_go_on(home: Home) -> None:
    """Kill the worker at every step of a create: one attempt, one sandbox, and it runs; nobody waits for the lease."""
    for point in POINTS_OF_A_CREATE:
        dying = home.start(f"{point}:kill9")
        sandbox_id = home.create()
        home.until_gone(dying)
        successor = home.start()
        row = home.until_state(sandbox_id, "Running")
        assert home.world.trial(sandbox_id)["attempts_used"] == 1, point
        assert [each.name for each in home.sandboxes()] == [row["sandbox_name"]], point
        home.delete(sandbox_id)
        home.until_state(sandbox_id, "Terminated")
        home.until(home.holds_nothing)
        assert home.sandboxes() == []
        home.nursery.end(successor)


def check_deletes_go_on(home: Home) -> None:
    """Kill the worker at every step of a delete: it is over as its tenant wished, and nothing is left."""
    for point in POINTS_OF_AN_END:
        dying = home.start(f"{point}:kill9")
        sandbox_id = home.create()
        home.until_state(sandbox_id, "Running")
        home.delete(sandbox_id)
        home.until_gone(dying)
        successor = home.start()
        row = home.until_state(sandbox_id, "Terminated")
        assert (row["end_reason"], row["ended_by"]) == ("SANDBOX_DELETED", "key:test"), point
        assert home.world.trial(sandbox_id)["outcome"] == "cancelled", point
        home.until(home.holds_nothing)
        assert home.sandboxes() == []
        home.nursery.end(successor)
