"""Calls of many threads made as one: whoever comes while a call is under way goes along with the next.

For statements that cost more by their commit and round trip than by their rows. A call that comes alone is made at
once, by its own thread; nobody waits for company.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

__all__ = ["GroupFailedError", "GroupedCalls"]

Item = TypeVar("Item")
Result = TypeVar("Result")


class GroupFailedError(Exception):
    """The call made for several failed, for whosever fault; some of it may have been done. Its cause is chained."""


class GroupedCalls(Generic[Item, Result]):
    """One action over many items. Thread-safe."""

    def __init__(self, action: Callable[[Sequence[Item]], Sequence[Result]], *, most: int) -> None:
        """action: gives a result per item, in their order; called by one thread at a time, with at most `most`."""
        self._action = action
        self._most = most
        self._lock = threading.Lock()
        self._waiting: deque[_Call[Item, Result]] = deque()
        self._is_led = False

    def call(self, item: Item) -> Result:
        """Give the action's result for the item. Raises what the action does if it was called for this item alone.

        Raises GroupFailedError if it was called for others, too.
        """
        call: _Call[Item, Result] = _Call(item)
        with self._lock:
            self._waiting.append(call)
            is_leader = not self._is_led
            self._is_led = True
        if not is_leader:
            call.wait()
        if not call.is_done:
            self._lead()
        if call.error is not None:
            raise call.error
        return call.result

    def _lead(self) -> None:
        """Make the call for those that wait, the leading thread's own first, and hand the lead over."""
        with self._lock:
            group = [self._waiting.popleft() for _ in range(min(self._most, len(self._waiting)))]
        try:
            self._run(group)
        finally:
            with self._lock:
                following = self._waiting[0] if self._waiting else None
                self._is_led = following is not None
            if following is not None:
                following.wake()
            for call in group[1:]:
                call.wake()

    def _run(self, group: "Sequence[_Call[Item, Result]]") -> None:
        try:
            results = list(zip(group, self._action([call.item for call in group]), strict=True))
        except BaseException as error:  # noqa: BLE001 -- whatever it is, nobody may wait for ever; `call` raises it
            for call in group:
                call.fail(error if len(group) == 1 else _group_failed(error))
            return
        for call, result in results:
            call.finish(result)


def _group_failed(error: BaseException) -> GroupFailedError:
    failed = GroupFailedError(f"{type(error).__name__}: {error}")
    failed.__cause__ = error
    return failed


class _Call(Generic[Item, Result]):
    """One item on its way. Its thread sleeps in `wait` until it is done, or has to lead."""

    __slots__ = ("_gate", "error", "is_done", "item", "result")

    def __init__(self, item: Item) -> None:
        self.item = item
        self.is_done = False
        self.error: BaseException | None = None
        self.result: Result
        # Used as a gate that opens once: an Event costs ten times as much.
        self._gate = threading.Lock()
        self._gate.acquire()

    def wait(self) -> None:
        self._gate.acquire()

    def wake(self) -> None:
        self._gate.release()

    def finish(self, result: Result) -> None:
        self.result = result
        self.is_done = True

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.is_done = True
