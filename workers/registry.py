import threading
from uuid import UUID

from services.attempt_control import AttemptControl, StopReason

__all__ = ["AttemptRegistry"]


class AttemptRegistry:
    """What this worker really runs, by (trial, fence).

    An attempt is put in before it is claimed, so that two copies of one bell cannot both go on, and the heartbeat
    compares this with what the database believes.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._lock = threading.Lock()
        self._running: dict[tuple[UUID, int], AttemptControl] = {}
        self._claimed: set[tuple[UUID, int]] = set()

    def enter(self, trial_id: UUID, fence: int) -> AttemptControl | None:
        """Register before the claim; None if another thread is at it."""
        with self._lock:
            if (trial_id, fence) in self._running:
                return None
            control = self._running[trial_id, fence] = AttemptControl()
            return control

    def mark_claimed(self, trial_id: UUID, fence: int) -> None:
        """From here on the database must list the attempt as ours."""
        with self._lock:
            self._claimed.add((trial_id, fence))

    def leave(self, trial_id: UUID, fence: int) -> None:
        """Take out after the end."""
        with self._lock:
            self._running.pop((trial_id, fence), None)
            self._claimed.discard((trial_id, fence))

    def claimed(self) -> dict[tuple[UUID, int], AttemptControl]:
        """All claimed attempts and their controls."""
        with self._lock:
            return {key: self._running[key] for key in self._claimed}

    def contains(self, trial_id: UUID, fence: int) -> bool:
        """Whether this worker is at that attempt, claimed or about to be."""
        with self._lock:
            return (trial_id, fence) in self._running

    def has_sandbox(self, name: str) -> bool:
        """Whether an attempt here was given the sandbox of this name."""
        with self._lock:
            return any(control.given_sandbox == name for control in self._running.values())

    def stop_all(self, reason: StopReason) -> int:
        """Stop everything for one reason; gives how many."""
        with self._lock:
            controls = list(self._running.values())
        for control in controls:
            control.request(reason)
        return len(controls)

    def controls(self) -> list[AttemptControl]:
        """Of all attempts this worker is at."""
        with self._lock:
            return list(self._running.values())

    def check_deadlines(self) -> None:
        """Kill the sandboxes whose wall time is over."""
        with self._lock:
            controls = list(self._running.values())
        for control in controls:
            control.check_deadline()

    def __len__(self) -> int:
        with self._lock:
            return len(self._running)
