"""Ends a step that neither prints nor computes any more."""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from core.errors import RunFailure
from core.logging import get_logger

__all__ = ["IdleWatch"]

log = get_logger(__name__)

_LOOKS = 10
"""In the time that is allowed: the limit is kept to a tenth of it."""

_LONGEST_PAUSE_SECONDS = 5.0
_WORKING_SHARE = 0.01
"""Of one core, between two looks. A sandbox in which all sleep is not at zero: execd keeps its stream alive."""


class IdleWatch:
    """Watches one step, on a thread of its own, from `with` to the end of the block.

    Only durations of this machine count, so its clock may be set meanwhile.
    """

    def __init__(
        self,
        limit_seconds: float,
        *,
        cpu_seconds: Callable[[], float | None],
        on_idle: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """cpu_seconds: used by the sandbox so far; None where the host does not tell, and then only output counts.

        on_idle: called once, after limit_seconds without either. clock: seconds, never set back.
        """
        self.has_fired = False
        self._limit = limit_seconds
        self._pause = min(limit_seconds / _LOOKS, _LONGEST_PAUSE_SECONDS)
        self._cpu_seconds = cpu_seconds
        self._on_idle = on_idle
        self._clock = clock
        self._over = threading.Event()
        self._last_sign = self._looked = clock()
        self._used = self._read_cpu()
        self._thread = threading.Thread(target=self._run, name="idle-watch", daemon=True)

    def note_output(self) -> None:
        """Say that the step has printed something. Cheap, from any thread."""
        self._last_sign = self._clock()

    def look(self) -> None:
        """See whether anything has happened since the last look, and fire if that is too long ago."""
        now, used = self._clock(), self._read_cpu()
        if self._has_worked(used, now - self._looked):
            self._last_sign = now
        self._looked, self._used = now, used
        if now - self._last_sign >= self._limit and not self.has_fired:
            self.has_fired = True
            self._on_idle()

    def __enter__(self) -> Self:
        """Start to watch."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Watch no more."""
        self._over.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        while not self.has_fired and not self._over.wait(self._pause):
            self.look()

    def _has_worked(self, used: float | None, seconds: float) -> bool:
        if self._used is None or used is None:
            return False
        return used - self._used >= _WORKING_SHARE * seconds > 0

    def _read_cpu(self) -> float | None:
        try:
            return self._cpu_seconds()
        except RunFailure as error:
            # Whoever runs the step will find out by itself what is wrong with the sandbox.
            log.debug("cpu_not_read", error=error.message)
            return None
