"""How the outside reaches an attempt under way: cancel, deadline, lost lease."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Literal

from core.errors import RunFailure
from core.logging import get_logger

__all__ = ["AttemptControl", "StopReason"]


log = get_logger(__name__)


class StopReason(StrEnum):
    """Why an attempt is to end before its steps are done."""

    CANCEL = "cancel"
    FORCE_CANCEL = "force_cancel"
    SHUTDOWN = "shutdown"
    PREEMPT = "preempt"
    DEADLINE = "deadline"
    DISOWNED = "disowned"


# Neither a stopping worker nor a preemption turns a cancel into a retry, and a graceful cancel does not soften a
# forced one.
_STRENGTH = {
    StopReason.SHUTDOWN: 0,
    StopReason.PREEMPT: 1,
    StopReason.CANCEL: 2,
    StopReason.DEADLINE: 3,
    StopReason.FORCE_CANCEL: 4,
    StopReason.DISOWNED: 5,
}
_KILLING = frozenset({StopReason.FORCE_CANCEL, StopReason.DEADLINE, StopReason.DISOWNED})


class AttemptControl:
    """One per attempt, shared by the thread that runs it and those that watch it.

    `stop` is set for a graceful end: the command gets TERM, then KILL after the grace. A kill removes the sandbox
    from outside, which also works when execd does not listen any more. is_kept: its sandbox outlives this process.
    given_sandbox: the name of the one it has, or is about to have, out of a warm pool.
    """

    def __init__(self) -> None:
        """Start with nothing to stop."""
        self.stop = threading.Event()
        self.reason: StopReason | None = None
        self._step_stop = threading.Event()
        self.is_kept = False
        self.given_sandbox: str | None = None
        self._lock = threading.Lock()
        self._whole = threading.Lock()
        self._kill: Callable[[], None] | None = None
        self._killed = False
        self._deadlines: dict[str, float] = {}

    @property
    def disowned(self) -> bool:
        """Whether the attempt belongs to somebody else now, so that nothing may be written about it."""
        return self.reason is StopReason.DISOWNED

    @property
    def killed(self) -> bool:
        """Whether the sandbox was removed from outside."""
        return self._killed

    @contextmanager
    def undivided(self) -> Iterator[None]:
        """Let this process not be left within the block, see `hold`: what it does cannot be gone on with."""
        with self._whole:
            yield

    def hold(self, timeout_seconds: float) -> bool:
        """Wait until another process could go on with the attempt, and keep it so; False if that takes longer."""
        return self._whole.acquire(timeout=timeout_seconds)

    def arm(self, kill: Callable[[], None]) -> None:
        """Say how to remove the sandbox; does so at once if a kill came before."""
        with self._lock:
            self._kill = kill
            late = self._killed
        if late:
            kill()

    def begin_step(self) -> threading.Event:
        """Give what ends the step about to run: any stop of the attempt, or `end_step`."""
        with self._lock:
            self._step_stop = threading.Event()
            if self.stop.is_set():
                self._step_stop.set()
            return self._step_stop

    def end_step(self) -> None:
        """End the step under way, and nothing else: its command gets TERM, then KILL after the grace."""
        with self._lock:
            self._step_stop.set()

    def set_deadline(self, seconds: float | None, of: Literal["attempt", "step"] = "step") -> None:
        """Let `check_deadline` kill so many seconds from now; None: no more. Attempt and step have one each."""
        with self._lock:
            if seconds is None:
                self._deadlines.pop(of, None)
            else:
                self._deadlines[of] = time.monotonic() + seconds

    def request(self, reason: StopReason) -> None:
        """Stop the attempt. A forced cancel, a deadline and a lost lease kill at once; the strongest reason stays."""
        with self._lock:
            if self.reason is None or _STRENGTH[reason] > _STRENGTH[self.reason]:
                self.reason = reason
            self.stop.set()
            self._step_stop.set()
        if reason in _KILLING:
            self._kill_now()

    def check_deadline(self) -> None:
        """Kill the sandbox if its wall time is over."""
        with self._lock:
            now = time.monotonic()
            over = any(now > deadline for deadline in self._deadlines.values())
            if over:
                self._deadlines.clear()
        if over:
            self.request(StopReason.DEADLINE)

    def _kill_now(self) -> None:
        with self._lock:
            kill = None if self._killed else self._kill
            self._killed = True
        if kill is None:
            return
        try:
            kill()
        except RunFailure as error:
            # Whoever asks next tries again; the caller has other attempts to look after.
            log.exception("sandbox_not_killed", error=error.message)
            with self._lock:
                self._killed = False
