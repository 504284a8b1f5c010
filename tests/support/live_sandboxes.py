"""A node for live sandboxes beside a served API: dispatches, claims and keeps, without Celery."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import redis

from core.ids import new_id
from core.sealing import make_box
from repositories.attempts import AttemptRepository
from runtimes.base import Runtime
from services.attempt_control import AttemptControl
from services.attempt_writes import AttemptStatements
from services.live_sandboxes import NODE_LABEL
from services.node_capabilities import labels_of_capabilities
from services.session_sweeping import SessionSweeper
from services.wake import CANCEL_CHANNEL, Wake
from tests.support.queue import QueueWorld
from workers.identity import boot_id
from workers.sessions import SessionKeeper

__all__ = ["LiveNode", "create_body", "live_node", "wait_for_state", "wait_until"]


class LiveNode:
    """One node and the scheduler's part for it. `lose` is what a kill of the worker leaves; `start` the next worker."""

    def __init__(self, settings: Any, world: QueueWorld, runtimes: dict[str, Runtime]) -> None:
        self.id = new_id()
        self.runtimes = runtimes
        self._settings = settings
        self._world = world
        self._url = settings.redis_url.get_secret_value()
        self._wake = Wake(Wake.connect(self._url))
        self.sweeper = SessionSweeper(world.engine, tell_nodes=self._wake.cancelled, tell=self._wake.sandbox)

    def _labels(self) -> dict[str, str]:
        told = {NODE_LABEL: str(self.id)}
        for name, runtime in self.runtimes.items():
            told |= labels_of_capabilities(name, runtime.capabilities())
        return told

    def start(self) -> None:
        """Open a session, adopt what is there, and begin to work."""
        self._stopping = threading.Event()
        self.seat = self._world.session(
            node=self.id,
            labels=self._labels(),
            runtimes=sorted(self.runtimes),
            boot_id=boot_id(),
        )
        self.keeper = SessionKeeper(
            self._world.engine,
            AttemptStatements(self._world.engine, self._world.engine, node_id=self.id),
            self.runtimes,
            node_id=self.id,
            box=make_box(self._settings),
            tell=self._wake.sandbox,
            on_end=lambda _: None,
        )
        with self._world.engine.begin() as connection:
            adopted = AttemptRepository(connection).adopt(
                session_id=self.seat.session_id,
                node_id=self.id,
                boot_id=boot_id(),
                runtimes=list(self.runtimes),
            )
        self.keeper.start()
        for claimed in adopted:
            self.keeper.take(claimed, self.seat.session_id, AttemptControl())
        self._threads = [
            threading.Thread(target=target, daemon=True) for target in (self._dispatch, self._listen)
        ]
        for thread in self._threads:
            thread.start()

    def lose(self) -> None:
        """End the worker's threads as a kill does: sandboxes and rows stay as they are."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(10)
        self.keeper._stopping.set()
        self.keeper.wake()
        self.keeper._thread.join(10)
        self.keeper._actions.shutdown(wait=True)

    def remove_all(self) -> None:
        for runtime in self.runtimes.values():
            for handle in runtime.list():
                runtime.remove(handle)

    def _dispatch(self) -> None:
        bells = self._world.bells
        while not self._stopping.is_set():
            self._world.dispatcher.tick()
            rung, bells.rung = bells.rung, []
            for bell in rung:
                threading.Thread(target=self._answer, args=(bell,), daemon=True).start()
            self.sweeper.run()
            self._stopping.wait(0.02)

    def _answer(self, bell: Any) -> None:
        claimed = self.seat.claim(bell)
        if claimed is not None:
            self.keeper.take(claimed, self.seat.session_id, AttemptControl())

    def _listen(self) -> None:
        client = redis.Redis.from_url(self._url)
        with client, client.pubsub(ignore_subscribe_messages=True) as channel:
            channel.subscribe(CANCEL_CHANNEL.format(node_id=self.id))
            while not self._stopping.is_set():
                if channel.get_message(timeout=0.2) is not None:
                    self.keeper.wake()


@contextmanager
def live_node(settings: Any, world: QueueWorld, runtimes: dict[str, Runtime]) -> Iterator[LiveNode]:
    """A node that works until the block ends; nothing of its sandboxes is left then."""
    node = LiveNode(settings, world, runtimes)
    node.start()
    try:
        yield node
    finally:
        node.lose()
        node.remove_all()


def create_body(**changes: Any) -> dict[str, Any]:
    """What the published client sends for a plain create."""
    body = {
        "image": {"uri": "host"},
        "timeout": 600,
        "resourceLimits": {"cpu": "1", "memory": "256Mi", "disk": "64Mi"},
        "entrypoint": ["tail", "-f", "/dev/null"],
        "secureAccess": False,
    }
    return {name: value for name, value in {**body, **changes}.items() if value is not None}


def wait_for_state(client: httpx.Client, path: str, *states: str, seconds: float = 30.0) -> dict[str, Any]:
    """Ask until a sandbox or snapshot is in one of these states; gives it then."""
    return wait_until(
        lambda: client.get(path).json(), lambda found: found["status"]["state"] in states, seconds=seconds
    )


def wait_until(read: Callable[[], Any], is_so: Callable[[Any], bool], *, seconds: float = 30.0) -> Any:
    deadline = time.monotonic() + seconds
    while True:
        with suppress(KeyError):
            found = read()
            if is_so(found):
                return found
        assert time.monotonic() < deadline, f"still {found}"
        time.sleep(0.02)
