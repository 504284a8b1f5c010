"""One point in time that a call and all it calls must not pass."""

import time

__all__ = ["Deadline"]


class Deadline:
    """A moment on the monotonic clock, passed down instead of a fresh timeout per step."""

    def __init__(self, seconds: float) -> None:
        """seconds: from now."""
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def within(self, seconds: float | None) -> "Deadline":
        """Give the one so many seconds from now, unless this one comes first; None: this one."""
        return self if seconds is None or seconds >= self.remaining() else Deadline(seconds)

    def remaining(self) -> float:
        """Seconds left; zero once it has passed."""
        return max(0.0, self._end - time.monotonic())

    @property
    def is_over(self) -> bool:
        """True once it has passed."""
        return time.monotonic() >= self._end
