"""Starts ended services again, each with its own growing delay."""

from collections.abc import Callable, Sequence

from launcher.errors import StartupError
from launcher.service import Service

__all__ = ["Supervisor"]

FIRST_DELAY_SECONDS = 0.2
"""Long enough for the sessions of a killed PostgreSQL to see that it is gone."""

MAX_DELAY_SECONDS = 30.0

STEADY_SECONDS = 60.0
"""Who ran this long has not failed in a row: the delay starts small again."""


class Supervisor:
    """Watches services that were started once. Not thread-safe; `step` runs in the thread that started them."""

    def __init__(self, services: Sequence[Service], *, report: Callable[[str], None]) -> None:
        """report: gets one line per end and failed start."""
        self._watches = [_Watch(service, report) for service in services]

    def step(self, now: float) -> None:
        """Look at each service once and start again what is due. now: monotonic seconds. Does not wait."""
        for watch in self._watches:
            watch.step(now)


class _Watch:
    def __init__(self, service: Service, report: Callable[[str], None]) -> None:
        self._service = service
        self._report = report
        self._failures = 0
        self._started_at: float | None = None
        self._due_at: float | None = None

    def step(self, now: float) -> None:
        if self._started_at is None:
            self._started_at = now
        if self._due_at is not None:
            if now >= self._due_at:
                self._start_again(now)
        elif self._service.child is not None and self._service.has_ended():
            if now - self._started_at >= STEADY_SECONDS:
                self._failures = 0
            how = self._service.child.describe_end()
            # What the ended program left in its process group would share its port or data with the next one.
            self._service.child.kill()
            self._plan(now, f"{self._service.name} ended ({how})")

    def _start_again(self, now: float) -> None:
        self._due_at = None
        self._started_at = now
        try:
            self._service.start()
        except StartupError as error:
            self._plan(now, error.message)

    def _plan(self, now: float, what: str) -> None:
        delay = min(MAX_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2**self._failures)
        self._failures += 1
        self._due_at = now + delay
        self._report(f"{what}; starting it again in {delay:g} s")
