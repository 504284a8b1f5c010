"""A node that keeps live sandboxes of the fake runtime, and a scheduler that keeps pools: both move when told to."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from core.sealing import SecretBox
from repositories.dispatch import Bell
from repositories.pool_keeping import KeptPool
from runtimes.fake import FakeRuntime, Script
from services.attempt_control import AttemptControl
from services.attempt_writes import AttemptStatements
from services.live_sandboxes import SandboxPolicy
from services.pool_keeping import PoolKeeper
from services.pool_plan import Capacity
from services.pools import PoolService, PoolTemplate
from services.session_sweeping import SessionSweeper
from tests.support.queue import QueueWorld
from workers.sessions import SessionKeeper

__all__ = ["BOX", "PLAIN", "PoolNode", "eventually", "make_pool", "pool_service"]

BOX = SecretBox("a secret of at least thirty-two characters")

PLAIN = {"image": {"uri": "ubuntu"}}
"""The shortest template there is."""


def eventually(is_so: Callable[[], Any], *, seconds: float = 10.0) -> Any:
    """Wait for what another thread does; gives what is_so gave."""
    deadline = time.monotonic() + seconds
    while not (found := is_so()):
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.01)
    return found


class PoolNode:
    """One node with the fake runtime. max_age_seconds: of free members. script: see FakeRuntime."""

    def __init__(
        self,
        world: QueueWorld,
        *,
        max_age_seconds: float = 3600.0,
        script: Script | None = None,
        **session: Any,
    ) -> None:
        self.world = world
        self.told: list[UUID] = []
        self.images: list[str] = []
        self.runtime = FakeRuntime(script)
        self.seat = world.session(slots=100, **session)
        self.keeper = SessionKeeper(
            world.engine,
            AttemptStatements(world.engine, world.engine, node_id=self.seat.node_id),
            {"fake": self.runtime},
            node_id=self.seat.node_id,
            box=BOX,
            tell=self.told.append,
            on_end=lambda _: None,
            note_image=self.images.append,
        )
        self.pools = PoolKeeper(
            world.engine,
            box=BOX,
            policy=SandboxPolicy(default_runtime="fake"),
            max_age_seconds=max_age_seconds,
            tell_nodes=self._wake,
            on_submitted=lambda: None,
        )
        self.sweeper = SessionSweeper(world.engine, tell_nodes=self._wake, tell=self.told.append)
        self.keeper.start()

    def close(self) -> None:
        self.world.execute("UPDATE sandbox_sessions SET state = 'Stopping' WHERE ended_at IS NULL")
        self.keeper.stop(timeout_seconds=5)

    def _wake(self, _nodes: Mapping[UUID, Sequence[UUID]]) -> None:
        self.keeper.wake()

    def start_queued(self) -> int:
        """Dispatch and start what waits; gives how many came to run."""
        self.world.dispatcher.tick()
        started = 0
        for bell in self.rung():
            claimed = self.seat.claim(bell)
            if claimed is not None:
                started += self.keeper.take(claimed, self.seat.session_id, AttemptControl())
        return started

    def rung(self) -> list[Bell]:
        """Take the bells that nobody has answered."""
        bells, self.world.bells.rung[:] = list(self.world.bells.rung), []
        return bells

    def turn(self) -> int:
        """One look at the pools, and all that comes of it; gives how many sandboxes came to run."""
        while self.pools.tick():
            pass
        started = self.start_queued()
        self.settle()
        return started

    def settle(self) -> None:
        """Wait until what was told to end has ended."""
        self.keeper.wake()
        eventually(lambda: not self.rows("ended_at IS NULL AND state = 'Stopping' AND node_id IS NOT NULL"))
        self.sweeper.run()

    def rows(self, where: str = "true", **parameters: Any) -> list[dict[str, Any]]:
        """Live sandboxes, oldest first."""
        return self.world.execute(
            f"SELECT * FROM sandbox_sessions WHERE {where} ORDER BY created_at, trial_id", **parameters
        )

    def free(self) -> list[dict[str, Any]]:
        return self.rows("is_warm AND state = 'Running'")

    def kill(self, trial_id: UUID) -> None:
        """Remove a sandbox behind everybody's back; returns when the node has noticed."""
        name = self.rows("trial_id = %(id)s", id=trial_id)[0]["sandbox_name"]
        for handle in self.runtime.list():
            if handle.name == name:
                self.runtime.remove(handle)
        eventually(lambda: self.rows("trial_id = %(id)s AND ended_at IS NOT NULL", id=trial_id))


def pool_service(world: QueueWorld, tenant: int, act: Callable[[PoolService], Any]) -> Any:
    """Do something with a tenant's pools, in a transaction of its own."""
    with world.engine.begin() as connection:
        return act(
            PoolService(
                connection,
                tenant,
                box=BOX,
                default_runtime="fake",
                max_age_seconds=3600.0,
                actor="key:test",
            )
        )


def make_pool(
    world: QueueWorld, tenant: int, template: PoolTemplate, name: str = "p", **numbers: int
) -> KeptPool:
    capacity = Capacity(**{"buffer_min": 2, "buffer_max": 2, "pool_min": 0, "pool_max": 10, **numbers})
    kept: KeptPool = pool_service(world, tenant, lambda pools: pools.create(name, template, capacity))
    return kept
