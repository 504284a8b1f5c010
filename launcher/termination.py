"""Turns the first request to end into KeyboardInterrupt, and lets a second one hurry."""

import signal
import time
from types import FrameType, TracebackType
from typing import Any, Self

from launcher.children import ENDINGS

__all__ = ["Termination"]

_ECHO_SECONDS = 1.0
"""A Ctrl-C may come twice at once: from the terminal, and again from a wrapper that passes it on."""


class Termination:
    """Context manager for the main thread of a program that must stop its children in order.

    Inside, SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt once. Later ones do not interrupt the clean-up; one
    that comes more than a second after the first makes `is_hurried` true.
    """

    def __init__(self) -> None:
        """Nothing is installed yet."""
        self._first_at: float | None = None
        self._hurried = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        """Install the handlers."""
        self._previous = {number: signal.signal(number, self._handle) for number in ENDINGS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put the former handlers back."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def is_hurried(self) -> bool:
        """Whether somebody asked a second time: give up waiting."""
        return self._hurried

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if self._first_at is None:
            self._first_at = time.monotonic()
            raise KeyboardInterrupt
        if time.monotonic() - self._first_at > _ECHO_SECONDS:
            self._hurried = True
