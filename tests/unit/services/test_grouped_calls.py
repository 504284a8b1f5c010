import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from services.grouped_calls import GroupedCalls, GroupFailedError

WAIT = 20


class Action:
    """Doubles each item; the first call waits until `release`, so that others gather behind it."""

    def __init__(self, *, refused: frozenset[int] = frozenset()) -> None:
        self.groups: list[list[int]] = []
        self.refused = refused
        self.entered = threading.Event()
        self.release = threading.Event()

    def __call__(self, items: Sequence[int]) -> list[int]:
        self.groups.append(list(items))
        if len(self.groups) == 1:
            self.entered.set()
            assert self.release.wait(WAIT)
        if self.refused & set(items):
            raise ValueError("refused")
        return [2 * item for item in items]


def gather(
    calls: GroupedCalls[int, int], action: Action, pool: ThreadPoolExecutor, items: Sequence[int]
) -> list:
    """Call for the first item, then for the others while it is under way; gives the futures."""
    futures = [pool.submit(calls.call, items[0])]
    assert action.entered.wait(WAIT)
    for number, item in enumerate(items[1:], 1):
        futures.append(pool.submit(calls.call, item))
        deadline = threading.Event()
        while len(calls._waiting) < number and not deadline.wait(0.001):
            pass
    action.release.set()
    return futures


def test_a_call_that_comes_alone_is_made_at_once_by_its_own_thread():
    threads = []

    def action(items: Sequence[int]) -> Sequence[int]:
        threads.append(threading.current_thread())
        return items

    assert GroupedCalls(action, most=8).call(7) == 7
    assert threads == [threading.current_thread()]


def test_what_comes_during_a_call_goes_with_the_next_one():
    action = Action()
    calls = GroupedCalls(action, most=8)
    with ThreadPoolExecutor(8) as pool:
        results = [future.result(WAIT) for future in gather(calls, action, pool, [1, 2, 3, 4])]
    assert results == [2, 4, 6, 8]
    assert action.groups == [[1], [2, 3, 4]]


def test_no_group_is_larger_than_allowed_and_nobody_is_left_behind():
    action = Action()
    calls = GroupedCalls(action, most=2)
    with ThreadPoolExecutor(8) as pool:
        results = [future.result(WAIT) for future in gather(calls, action, pool, [1, 2, 3, 4, 5, 6])]
    assert results == [2, 4, 6, 8, 10, 12]
    assert action.groups == [[1], [2, 3], [4, 5], [6]]


def test_the_error_of_a_call_made_alone_is_its_own():
    calls = GroupedCalls(Action(refused=frozenset({1})), most=8)
    calls._action.release.set()
    with pytest.raises(ValueError, match="refused"):
        calls.call(1)
    assert calls.call(2) == 4


def test_the_error_of_a_group_reaches_all_of_it_as_such_and_no_other():
    action = Action(refused=frozenset({3}))
    calls = GroupedCalls(action, most=2)
    with ThreadPoolExecutor(8) as pool:
        one, *group, later = gather(calls, action, pool, [1, 2, 3, 4])
        assert one.result(WAIT) == 2
        for future in group:
            with pytest.raises(GroupFailedError, match="refused") as caught:
                future.result(WAIT)
            assert isinstance(caught.value.__cause__, ValueError)
        assert later.result(WAIT) == 8


def test_an_action_that_gives_too_few_results_leaves_nobody_waiting():
    calls: GroupedCalls[int, int] = GroupedCalls(lambda _: [], most=8)
    with pytest.raises(ValueError, match="shorter"):
        calls.call(1)


def test_each_of_many_threads_gets_its_own_result():
    calls: GroupedCalls[int, int] = GroupedCalls(lambda items: [2 * item for item in items], most=5)
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(calls.call, range(5000), timeout=WAIT)) == [2 * item for item in range(5000)]
    assert not calls._waiting
    assert not calls._is_led
