"""What the stack knows of each of its parts: start it, ask whether it answers, stop it."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from launcher.children import Child, ChildSpec, undisturbed
from launcher.errors import StartupError

__all__ = ["Service", "start_services", "stop_services", "wait_until_ready"]

_POLL_SECONDS = 0.03


class Service(ABC):
    """A part of the stack that is one child process."""

    name: str
    start_timeout_seconds: float = 60.0

    def __init__(self) -> None:
        """Nothing runs yet."""
        self.child: Child | None = None

    @abstractmethod
    def spec(self) -> ChildSpec:
        """Describe the child; asked anew for each start."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Ask the running program itself, once, and answer within two seconds. Does not raise when it is away."""

    def start(self) -> None:
        """Start the program and return at once. Raises StartupError."""
        spec = self.spec()
        with undisturbed():
            self.child = Child.start(spec)

    def has_ended(self) -> bool:
        """Whether it was started and has ended since."""
        return self.child is not None and self.child.exit_code() is not None


def start_services(services: Sequence[Service]) -> None:
    """Start all at once, then wait until each answers. Raises StartupError, leaving what runs to the caller."""
    for service in services:
        service.start()
    wait_until_ready(services)


def wait_until_ready(services: Sequence[Service]) -> None:
    """Return once all answer. Raises StartupError when one ends before or takes too long."""
    began = time.monotonic()
    waiting = list(services)
    while waiting:
        for service in list(waiting):
            # Asked in this order: one that ended must not be taken for ready because another program answers.
            if service.child is not None and service.has_ended():
                raise StartupError(f"{service.name} ended while starting: {service.child.describe_end()}")
            if service.is_ready():
                waiting.remove(service)
            elif time.monotonic() - began > service.start_timeout_seconds:
                log = service.child.spec.log if service.child else "none"
                message = (
                    f"{service.name} did not answer within {service.start_timeout_seconds:.0f} s; log: {log}"
                )
                raise StartupError(message)
        if waiting:
            time.sleep(_POLL_SECONDS)


def stop_services(services: Sequence[Service], *, is_hurried: Callable[[], bool] = lambda: False) -> None:
    """Ask all to end at once, wait for each as long as its spec says, kill what is left. Does not raise.

    is_hurried: asked while waiting; True kills the rest without more waiting.
    """
    children = [service.child for service in services if service.child is not None]
    began = time.monotonic()
    for child in children:
        child.request_stop()
    for child in children:
        while not child.wait(_POLL_SECONDS):
            if is_hurried() or time.monotonic() - began > child.spec.stop_timeout_seconds:
                break
        # Also when it ended by itself: what it has left in its process group goes with it.
        child.kill()
    for service in services:
        service.child = None
