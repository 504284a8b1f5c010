import threading

import pytest

from core.errors import ExecdUnreachableError
from services.idle_watch import IdleWatch


class World:
    """A clock and a sandbox that the test moves on. cpu None: the host does not tell."""

    def __init__(self, limit: float, cpu: float | None = 7.0) -> None:
        self.now = 100.0
        self.cpu = cpu
        self.fired = 0
        self.watch = IdleWatch(limit, cpu_seconds=self.read_cpu, on_idle=self.fire, clock=lambda: self.now)

    def read_cpu(self) -> float | None:
        return self.cpu

    def fire(self) -> None:
        self.fired += 1

    def pass_time(self, seconds: int, *, share: float = 0.0) -> None:
        """Let time go by, with a look after each second. share: of a core, used meanwhile."""
        for _ in range(seconds):
            self.now += 1.0
            if self.cpu is not None:
                self.cpu += share
            self.watch.look()


@pytest.mark.parametrize("cpu", [7.0, None], ids=["asleep", "uncounted"])
def test_silence_without_work_fires_once(cpu: float | None) -> None:
    world = World(10.0, cpu)
    world.pass_time(9)
    assert (world.fired, world.watch.has_fired) == (0, False)
    world.pass_time(20)
    assert (world.fired, world.watch.has_fired) == (1, True)


def test_what_execd_itself_uses_is_no_work() -> None:
    world = World(10.0)
    world.pass_time(10, share=0.005)
    assert world.fired == 1


def test_work_without_output_is_not_idle_until_it_ends() -> None:
    world = World(10.0)
    world.pass_time(100, share=0.02)
    assert world.fired == 0
    world.pass_time(10)
    assert world.fired == 1


def test_output_without_work_is_not_idle_until_it_ends() -> None:
    world = World(10.0)
    for _ in range(20):
        world.pass_time(9)
        world.watch.note_output()
    assert world.fired == 0
    world.pass_time(10)
    assert world.fired == 1


def test_sandbox_that_cannot_be_asked_counts_as_silent() -> None:
    def unreadable() -> float:
        message = "gone"
        raise ExecdUnreachableError(message)

    fired = threading.Event()
    with IdleWatch(0.1, cpu_seconds=unreadable, on_idle=fired.set):
        assert fired.wait(30)


def test_thread_fires_by_itself_and_ends_with_the_block() -> None:
    fired = threading.Event()
    with IdleWatch(0.1, cpu_seconds=lambda: 0.0, on_idle=fired.set) as watch:
        assert fired.wait(30)
    assert watch.has_fired
    assert not watch._thread.is_alive()
    with IdleWatch(3600.0, cpu_seconds=lambda: 0.0, on_idle=fired.set) as watch:
        assert watch._thread.is_alive()
    assert not watch._thread.is_alive()
