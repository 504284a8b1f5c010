"""A bell that a worker rings for itself: whether it still takes what comes over the broker.

A worker can hold its lease and beat its heart while it takes nothing: a consumer that hangs after a reconnect, a pool
whose threads are all stuck. The canary goes the way of every bell, so it stops coming back when they do.
"""

import threading
from collections.abc import Callable
from uuid import uuid4

from core.logging import get_logger
from core.metrics import CANARIES

__all__ = ["Canary"]

log = get_logger(__name__)

MISSES = 3
"""So many in a row that were sent and did not come back, and the worker is not believed to be alive."""


class Canary:
    """Rings every interval and looks whether the one before came back. Thread-safe."""

    def __init__(
        self,
        *,
        ring: Callable[[str], None],
        on_answer: Callable[[], None],
        on_dead: Callable[[], None],
        interval_seconds: float,
    ) -> None:
        """Set up; nothing is rung yet.

        ring: sends one, and raises whatever when the broker does not take it. on_answer: called for each that comes
        back, on the thread that took it. on_dead: called once, when too many have not.
        """
        self._ring = ring
        self._on_answer = on_answer
        self._on_dead = on_dead
        self._interval = interval_seconds
        self._lock = threading.Lock()
        self._outstanding: str | None = None
        self._misses = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="canary", daemon=True)

    def start(self) -> None:
        """Start ringing."""
        self._thread.start()

    def stop(self) -> None:
        """Ring no more."""
        self._stopping.set()

    def answer(self, nonce: str) -> None:
        """Note that one came back. An older one, or one that somebody else rang, tells nothing."""
        with self._lock:
            if nonce != self._outstanding:
                return
            self._outstanding = None
            self._misses = 0
        CANARIES.labels("answered").inc()
        try:
            self._on_answer()
        except Exception as error:  # noqa: BLE001 -- a database that is away says nothing about the broker
            log.debug("canary_not_noted", error=str(error))

    def step(self) -> bool:
        """Judge the last one and ring the next; False when the worker is not alive any more."""
        with self._lock:
            if self._outstanding is not None:
                self._misses += 1
                CANARIES.labels("missed").inc()
            if self._misses >= MISSES:
                return False
            nonce = self._outstanding = uuid4().hex
        try:
            self._ring(nonce)
        except Exception as error:  # noqa: BLE001 -- whatever keeps it from being sent, it is not this worker's consumer
            CANARIES.labels("unsent").inc()
            log.debug("canary_not_rung", error=str(error))
            with self._lock:
                # Without a broker nobody is worth restarting; attempts come by the table meanwhile.
                self._outstanding = None
                self._misses = 0
        return True

    def _run(self) -> None:
        while not self._stopping.wait(self._interval):
            if not self.step():
                log.error("canary_dead", misses=MISSES, interval_seconds=self._interval)
                self._on_dead()
                return
