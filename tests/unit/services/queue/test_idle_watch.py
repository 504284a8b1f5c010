import threading
import time
from collections.abc import Callable

import pytest

from core.errors import ExecdUnreachableError
from services.idle_watch import IdleWatch


class Sandbox:
    """Uses the CPU at a rate (share of a core), by the real clock."""

    def __init__(self, share: float) -> None:
        self.share = share
        self.since = time.monotonic()

    def cpu_seconds(self) -> float:
        return self.share * (time.monotonic() - self.since)


def unreadable() -> float:
    message = "gone"
    raise ExecdUnreachableError(message)


@pytest.mark.parametrize(
    "cpu_seconds",
    [Sandbox(0.001).cpu_seconds, lambda: None, unreadable],
    ids=["asleep", "uncounted", "unreadable"],
)
def test_silence_without_work_fires_once(cpu_seconds: Callable[[], float | None]) -> None:
    fired = threading.Event()
    with IdleWatch(0.1, cpu_seconds=cpu_seconds, on_idle=fired.set) as watch:
        assert fired.wait(10)
        assert watch.has_fired


def test_work_without_output_is_not_idle() -> None:
    fired = threading.Event()
    with IdleWatch(0.1, cpu_seconds=Sandbox(0.5).cpu_seconds, on_idle=fired.set) as watch:
        assert not fired.wait(0.5)
        assert not watch.has_fired


def test_output_without_work_is_not_idle_and_its_end_is() -> None:
    fired = threading.Event()
    with IdleWatch(1.0, cpu_seconds=lambda: 0.0, on_idle=fired.set) as watch:
        for _ in range(15):
            watch.note_output()
            assert not fired.wait(0.1)
        assert fired.wait(10)


def test_nothing_fires_after_the_block() -> None:
    fired = threading.Event()
    with IdleWatch(0.05, cpu_seconds=Sandbox(1.0).cpu_seconds, on_idle=fired.set):
        pass
    assert not fired.wait(0.2)
