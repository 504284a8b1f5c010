"""A bounded number at a time, in the order they came."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from core.errors import CreateTimeoutError
from runtimes.deadline import Deadline

__all__ = ["Turns"]


class Turns:
    """Lets so many in at a time; the others wait in line, each no longer than its own deadline."""

    def __init__(self, count: int) -> None:
        """count: at a time."""
        self._free = count
        self._lock = threading.Lock()
        self._line: deque[threading.Event] = deque()

    @property
    def waiting(self) -> int:
        """How many are in line."""
        return len(self._line)

    @contextmanager
    def taken(self, what: str, deadline: Deadline, on_wait: Callable[[int], None]) -> Iterator[None]:
        """Wait for the turn, and give it back. on_wait: told once how many are before it, if it has to wait.

        Raises CreateTimeoutError if the turn does not come in time. what: waits, for the message.
        """
        self._take(what, deadline, on_wait)
        try:
            yield
        finally:
            self._give_back()

    def _take(self, what: str, deadline: Deadline, on_wait: Callable[[int], None]) -> None:
        turn = threading.Event()
        with self._lock:
            if self._free and not self._line:
                self._free -= 1
                return
            before = len(self._line)
            self._line.append(turn)
        try:
            on_wait(before)
            turn.wait(deadline.remaining())
        except BaseException:
            if not self._leave_line(turn):
                self._give_back()
            raise
        if self._leave_line(turn):
            message = (
                f"{what} did not get its turn within {deadline.seconds:g} s: {before} were before it; "
                "more are started at once than this node can"
            )
            raise CreateTimeoutError(message)

    def _leave_line(self, turn: threading.Event) -> bool:
        """Give up a place; False if its turn has come."""
        with self._lock:
            if turn.is_set():
                return False
            self._line.remove(turn)
            return True

    def _give_back(self) -> None:
        with self._lock:
            if self._line:
                self._line.popleft().set()
            else:
                self._free += 1
