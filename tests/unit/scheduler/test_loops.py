import itertools
import threading
import time

from scheduler.loops import Loop, has_given_up


def run_for(loop: Loop, seconds: float) -> None:
    loop.start()
    threading.Event().wait(seconds)
    loop.stop()


def test_wake_calls_at_once_and_not_by_the_clock():
    called = threading.Event()

    def action() -> bool:
        called.set()
        return False

    loop = Loop("t", action, interval_seconds=60, enabled=lambda: True)
    loop.start()
    loop.wake()
    assert called.wait(5)
    loop.stop()


def test_disabled_loop_does_nothing():
    calls = []
    loop = Loop("t", lambda: bool(calls.append(1)), interval_seconds=0.01, enabled=lambda: False)
    run_for(loop, 0.1)
    assert calls == []


def test_action_with_more_to_do_is_called_again_after_the_gap():
    times = []

    def action() -> bool:
        times.append(time.monotonic())
        return len(times) < 3

    loop = Loop("t", action, interval_seconds=60, enabled=lambda: True, gap_seconds=0.05)
    loop.start()
    loop.wake()
    threading.Event().wait(0.4)
    loop.stop()
    assert len(times) == 3
    assert all(later - earlier >= 0.05 for earlier, later in itertools.pairwise(times))


def test_failing_action_is_counted_and_tried_again():
    recovered = threading.Event()
    calls = []

    def action() -> bool:
        calls.append(1)
        if len(calls) < 3:
            raise RuntimeError("away")
        recovered.set()
        return False

    loop = Loop("t", action, interval_seconds=0.01, enabled=lambda: True)
    loop.start()
    assert recovered.wait(5)
    loop.stop()
    assert loop.failures == 0


def test_who_gave_up_starts_anew_when_it_leads_again():
    """A lone scheduler whose database was away for some seconds must not stand still for ever."""
    leads, is_broken, done = True, True, threading.Event()

    def action() -> bool:
        if is_broken:
            raise RuntimeError
        done.set()
        return False

    loop = Loop("t", action, interval_seconds=0.001, enabled=lambda: leads)
    loop.start()
    deadline = time.monotonic() + 10
    while not has_given_up([loop]):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    leads = False
    assert not has_given_up([loop])
    is_broken, leads = False, True
    loop.wake()
    assert done.wait(10)
    assert not has_given_up([loop])
    loop.stop()
