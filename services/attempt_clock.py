"""The times of one attempt: what is left of each, and when the sandbox is killed from outside."""

import time
from enum import Enum

from models.states import AttemptState
from repositories.attempts import COLLECT_SECONDS, ClaimedAttempt
from services.attempt_control import AttemptControl
from services.jobspec import Timeouts

__all__ = ["AttemptClock", "Phase"]

_KILL_MARGIN_SECONDS = 10.0
"""Steps end by execd's hand, then at a deadline of their own; so long after that the attempt's own one comes."""


class Phase(Enum):
    """What a deadline of the attempt is about."""

    START = "start"
    STEPS = "steps"
    COLLECT = "collect"


class AttemptClock:
    """Monotonic deadlines, from what the database said was left at the claim. All values are seconds."""

    def __init__(self, claimed: ClaimedAttempt, timeouts: Timeouts, control: AttemptControl) -> None:
        """control: gets the deadline of the phase under way."""
        self._timeouts = timeouts
        self._control = control
        self._claimed = claimed
        now = time.monotonic()
        self._started = now - claimed.elapsed_seconds
        left = claimed.total_left_seconds
        self._total_until = now + (timeouts.total if left is None else left)
        self._start_until = now + claimed.start_left_seconds
        run_left = claimed.run_left_seconds
        self._run_until = None if run_left is None else now + run_left
        self.phase = Phase.START if claimed.state == AttemptState.STARTING else Phase.STEPS

    def elapsed(self) -> float:
        """Since the claim, by whichever worker."""
        return time.monotonic() - self._started

    def left(self) -> float:
        """What the steps may still take, by the trial's total and the attempt's run time."""
        until = self._total_until if self._run_until is None else min(self._total_until, self._run_until)
        return until - time.monotonic()

    def total_left(self) -> float:
        """What is left of the trial's total."""
        return self._total_until - time.monotonic()

    def start_left(self) -> float:
        """What is left of the time to start."""
        return self._start_until - time.monotonic()

    def left_for_steps(self, *, first: bool) -> float:
        """What the steps may take from now on; the times of the first begin with it."""
        if not first:
            return max(0.0, self.left())
        total = self._timeouts.total if self._claimed.total_left_seconds is None else self.total_left()
        run = self._timeouts.run
        return max(0.0, total if run is None else min(total, run))

    def begin_steps(self) -> None:
        """The first step begins now; with it, at the trial's first start, the total."""
        now = time.monotonic()
        if self._claimed.total_left_seconds is None:
            self._total_until = now + self._timeouts.total
        if self._timeouts.run is not None:
            self._run_until = now + self._timeouts.run
        self.enter(Phase.STEPS)

    def enter(self, phase: Phase) -> None:
        """Go on, with the time after which the sandbox is killed from outside, whatever stands still."""
        self.phase = phase
        margin = self._timeouts.grace + _KILL_MARGIN_SECONDS
        seconds = {
            Phase.START: self.start_left() + margin,
            Phase.STEPS: self.left() + margin,
            # What was cut at the total deadline is collected and judged, too.
            Phase.COLLECT: max(self.total_left(), COLLECT_SECONDS),
        }[phase]
        self._control.set_deadline(max(0.0, seconds), of="attempt")

    def leave(self) -> None:
        """No deadline of the attempt any more."""
        self._control.set_deadline(None, of="attempt")
