"""Gives new grades to finished trials, on a thread of its own beside the attempts."""

import threading

from sqlalchemy.exc import SQLAlchemyError

from core.logging import get_logger
from services.regrades import Regrader

__all__ = ["RegradeLoop"]

log = get_logger(__name__)

_PAUSE_SECONDS = 1.0
"""Between two looks when there was nothing to do: how long a wish waits at most."""


class RegradeLoop:
    """Looks for wishes until it is stopped. One trial at a time: attempts come first."""

    def __init__(self, regrader: Regrader) -> None:
        """Starts nothing yet."""
        self._regrader = regrader
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="regrades", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End after the trial under way."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    def _run(self) -> None:
        while not self._stopping.is_set():
            if not self._step():
                self._stopping.wait(_PAUSE_SECONDS)

    def _step(self) -> bool:
        try:
            return self._regrader.regrade_one()
        except SQLAlchemyError as error:
            log.warning("regrade_delayed", error=str(error).splitlines()[0])
        except Exception:
            log.exception("regrade_loop_failed")
        return False
