import threading

import pytest

from core.errors import CreateTimeoutError
from runtimes.deadline import Deadline
from runtimes.turns import Turns


def test_turns_come_in_the_order_of_the_line():
    turns, order, in_line = Turns(1), [], threading.Semaphore(0)

    def work(number):
        with turns.taken(f"number {number}", Deadline(10), lambda _: in_line.release()):
            order.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(5)]
    with turns.taken("first", Deadline(10), lambda _: None):
        for thread in threads:
            thread.start()
            assert in_line.acquire(timeout=10)
    for thread in threads:
        thread.join(10)
    assert order == [0, 1, 2, 3, 4]


def test_never_more_at_a_time_than_allowed():
    turns, lock, now, most = Turns(3), threading.Lock(), 0, 0

    def work():
        nonlocal now, most
        for _ in range(50):
            with turns.taken("work", Deadline(30), lambda _: None):
                with lock:
                    now += 1
                    most = max(most, now)
                with lock:
                    now -= 1

    threads = [threading.Thread(target=work) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert 1 <= most <= 3
    assert (now, turns.waiting) == (0, 0)


def test_who_waited_in_vain_leaves_the_line_and_takes_no_turn_along():
    turns, told = Turns(1), []
    with (
        turns.taken("first", Deadline(10), lambda _: None),
        pytest.raises(
            CreateTimeoutError, match=r"late did not get its turn within 0\.01 s: 0 were before it"
        ),
        turns.taken("late", Deadline(0.01), told.append),
    ):
        pytest.fail("it has no turn")
    assert told == [0]
    assert turns.waiting == 0
    with turns.taken("next", Deadline(0.01), told.append):
        assert told == [0]


def test_who_fails_to_tell_of_the_wait_holds_nobody_up():
    turns = Turns(1)

    def fail(_):
        raise KeyboardInterrupt

    with (
        turns.taken("first", Deadline(10), lambda _: None),
        pytest.raises(KeyboardInterrupt),
        turns.taken("second", Deadline(10), fail),
    ):
        pytest.fail("it has no turn")
    assert turns.waiting == 0
    with turns.taken("third", Deadline(0.01), fail):
        pass
