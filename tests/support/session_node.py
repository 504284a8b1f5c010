"""A node of live sandboxes in this process: the real worker around the fake runtime, and a scheduler that beats."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import UUID

from core.config import Settings
from repositories.dispatch import Bell
from runtimes.base import OnProgress, Runtime, SandboxHandle, SandboxSpec
from runtimes.fake import FakeRuntime
from services.dispatch import Dispatcher, DispatchPolicy
from services.reaping import Reaper
from services.session_sweeping import SessionSweeper
from services.wake import Wake
from tests.support.queue import QueueWorld
from workers.identity import NodeIdentity
from workers.node import NodeWorker

__all__ = ["GatedRuntime", "LiveNode", "LiveScheduler", "live_node", "until"]


class GatedRuntime(FakeRuntime):
    """A fake whose starts from the image `slow` take until `gate` is set, and which counts what it is asked to do."""

    outlives = False

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.begun = threading.Event()
        self.calls: list[str] = []
        self.fails: dict[str, Exception] = {}

    def create(
        self, spec: SandboxSpec, *, timeout_seconds: float, on_progress: OnProgress | None = None
    ) -> SandboxHandle:
        self._note("create")
        if spec.image == "slow":
            self.begun.set()
            assert self.gate.wait(60)
        return super().create(spec, timeout_seconds=timeout_seconds, on_progress=on_progress)

    def pause(self, handle: SandboxHandle) -> None:
        self._note("pause")
        super().pause(handle)

    def resume(self, handle: SandboxHandle) -> None:
        self._note("resume")
        super().resume(handle)

    def remove(self, handle: SandboxHandle) -> None:
        self._note("remove")
        super().remove(handle)

    def kill(self) -> None:
        """Let the first process of all sandboxes end, as by another's hand."""
        for sandbox in self._sandboxes.values():
            sandbox.is_alive = False

    def _note(self, call: str) -> None:
        self.calls.append(call)
        if call in self.fails:
            raise self.fails[call]


class LiveScheduler:
    """Dispatches, reaps and sweeps, a few times a second, until it is stopped."""

    def __init__(self, world: QueueWorld, redis_url: str, ring: Callable[[Bell], None]) -> None:
        self._redis = Wake.connect(redis_url)
        wake = Wake(self._redis)
        self._dispatcher = Dispatcher(
            world.engine,
            _Ringer(ring),
            DispatchPolicy(slots_per_tick=100, rering_seconds=1.0, claim_timeout_seconds=5.0),
        )
        self._reaper = Reaper(world.engine, lease_grace_seconds=0.3)
        self._sweeper = SessionSweeper(world.engine, tell_nodes=wake.cancelled, tell=wake.sandbox)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(30)
        self._redis.close()

    def tick(self) -> None:
        self._reaper.reap()
        self._reaper.sweep()
        self._dispatcher.tick()
        self._sweeper.run()

    def _run(self) -> None:
        while not self._stopping.wait(0.05):
            # The database may be away: that is what some tests are about.
            with contextlib.suppress(Exception):
                self.tick()


class _Ringer:
    def __init__(self, ring: Callable[[Bell], None]) -> None:
        self._ring = ring

    def ring(self, bells: list[Bell], *, again: bool = False) -> None:
        for bell in bells:
            self._ring(bell)


class LiveNode:
    """One worker, a thread a bell. scheduler: rings it, unless it was stopped."""

    def __init__(
        self,
        world: QueueWorld,
        settings: Settings,
        runtime: Runtime,
        *,
        name: str = "fake",
    ) -> None:
        self.world = world
        self.runtime = runtime
        self.settings = settings
        self._identity = NodeIdentity(settings.home_path / "node")
        self.worker = NodeWorker(settings, self._identity, {name: runtime})
        self._pool = ThreadPoolExecutor(8)
        self.scheduler = LiveScheduler(world, settings.redis_url.get_secret_value(), self.ring)

    def ring(self, bell: Bell) -> None:
        with contextlib.suppress(RuntimeError):
            self._pool.submit(self.worker.run_attempt, bell.trial_id, bell.fence)

    def start(self) -> None:
        self.worker.start()
        self.scheduler.start()

    def stop(self) -> None:
        self.scheduler.stop()
        self.worker.drain()
        until(lambda: len(self.worker._registry) == 0, what="nothing is left to run")
        self._pool.shutdown(wait=True)
        self.worker.stop()
        for thread in self.worker._threads:
            thread.join(10)
        self.worker._redis.close()
        self.worker._wake._client.close()

    def row(self, sandbox_id: UUID | str) -> dict[str, Any]:
        return self.world.execute("SELECT * FROM sandbox_sessions WHERE trial_id = %(id)s", id=sandbox_id)[0]

    def events(self, sandbox_id: UUID | str) -> list[str]:
        sql = "SELECT reason FROM sandbox_events WHERE trial_id = %(id)s ORDER BY n"
        return [row["reason"] for row in self.world.execute(sql, id=sandbox_id)]


def until(condition: Callable[[], Any], seconds: float = 30.0, *, what: str = "it") -> Any:
    """Wait for a condition; gives what it gave."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} has not come about within {seconds:g} s")
        time.sleep(0.02)


@contextlib.contextmanager
def live_node(
    world: QueueWorld, make_settings: Callable[..., Settings], home: Path, runtime: Runtime, **changes: Any
) -> Iterator[LiveNode]:
    """Run a node on this database; its sandboxes are gone afterwards."""
    settings = make_settings(
        home=home, heartbeat_seconds=0.3, lease_seconds=30.0, lease_margin_seconds=5.0, **changes
    )
    with (
        # A node looks every few seconds at what nobody tells it.
        mock.patch("workers.sessions._POLL_SECONDS", 0.1),
        mock.patch("workers.sessions._LOOK_SECONDS", 0.3),
        mock.patch("workers.regrading._PAUSE_SECONDS", 0.1),
    ):
        node = LiveNode(world, settings, runtime)
        node.start()
        try:
            yield node
        finally:
            if isinstance(runtime, GatedRuntime):
                runtime.gate.set()
            node.stop()
    assert runtime.list() == []
