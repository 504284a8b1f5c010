"""Periodic work, each on its own thread and clock, so that a slow one delays no other."""

import threading
from collections.abc import Callable, Sequence

from core.logging import get_logger
from core.metrics import LOOP_FAILURES, LOOP_SUCCESS

__all__ = ["Loop", "has_given_up"]

log = get_logger(__name__)

_FAILURES_TO_GIVE_UP = 3


def has_given_up(loops: Sequence["Loop"]) -> bool:
    """Whether one of them failed three times in a row, so that another scheduler had better lead.

    If so, all of them forget: else this process, once it leads again, would give up before any of them has run.
    """
    if all(loop.failures < _FAILURES_TO_GIVE_UP for loop in loops):
        return False
    for loop in loops:
        loop.forget_failures()
    return True


class Loop:
    """Calls an action every interval while `enabled`, or sooner when woken.

    The action returns True to be called again at once. An action that raises is logged and tried again after a
    growing pause of at most five seconds; `failures` counts those in a row.
    """

    def __init__(
        self,
        name: str,
        action: Callable[[], bool],
        *,
        interval_seconds: float,
        enabled: Callable[[], bool],
        gap_seconds: float = 0.0,
    ) -> None:
        """gap_seconds: after a call that had work to do, so that what comes together is done together."""
        self.name = name
        self.failures = 0
        self._action = action
        self._interval = interval_seconds
        self._gap = gap_seconds
        self._enabled = enabled
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Ask for a call now. Cheap, from any thread."""
        self._wake.set()

    def stop(self) -> None:
        """End after the call under way, and wait for that."""
        self._stopping.set()
        self._wake.set()
        self._thread.join(timeout=10)

    def forget_failures(self) -> None:
        """Start anew, as the loop of a process that has just begun to lead."""
        self.failures = 0

    def _run(self) -> None:
        again = False
        while not self._stopping.is_set():
            if not again:
                self._wake.wait(self._pause())
            self._wake.clear()
            if self._stopping.is_set():
                return
            again = self._enabled() and self._call()
            if again and self._gap:
                self._stopping.wait(self._gap)

    def _pause(self) -> float:
        return min(5.0, self._interval * 2**self.failures) if self.failures else self._interval

    def _call(self) -> bool:
        try:
            again = self._action()
        except Exception as error:
            # A loop that ends by an error would stop the service without anybody noticing.
            self.failures += 1
            LOOP_FAILURES.labels(self.name).inc()
            log.exception("loop_failed", loop=self.name, failures=self.failures, error=str(error))
            self._stopping.wait(self._pause())
            return False
        self.failures = 0
        LOOP_SUCCESS.labels(self.name).set_to_current_time()
        return again
