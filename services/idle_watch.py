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
        self, limit_seconds: float, *, cpu_seconds: Callable[[], float | None], on_idle: Callable[[], None]
    ) -> None:
        """cpu_seconds: used by the sandbox so far; None where the host does not tell, and then only output counts.

        on_idle: called once, after limit_seconds without either.
        """
        self.has_fired = False
        self._limit = limit_seconds
        self._pause = min(limit_seconds / _LOOKS, _LONGEST_PAUSE_SECONDS)
        self._cpu_seconds = cpu_seconds
        self._on_idle = on_idle
        self._over = threading.Event()
        self._last_sign = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="idle-watch", daemon=True)

    def note_output(self) -> None:
        """Say that the step has printed something. Cheap, from any thread."""
        self._last_sign = time.monotonic()

    def __enter__(self) -> Self:
        """Start to watch."""
        self._last_sign = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Watch no more."""
        self._over.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        looked, used = time.monotonic(), self._read_cpu()
        while not self._over.wait(self._pause):
            now, used_now = time.monotonic(), self._read_cpu()
            if (
                used is not None
                and used_now is not None
                and used_now - used >= _WORKING_SHARE * (now - looked)
            ):
                self._last_sign = now
            looked, used = now, used_now
            if now - self._last_sign >= self._limit:
                self.has_fired = True
                self._on_idle()
                return

    def _read_cpu(self) -> float | None:
        try:
            return self._cpu_seconds()
        except RunFailure as error:
            # Whoever runs the step will find out by itself what is wrong with the sandbox.
            log.debug("cpu_not_read", error=error.message)
            return None
