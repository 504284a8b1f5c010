"""When those who wait for a sandbox look at its row."""

import asyncio

import pytest

from api.wire.waiting import ChangeWaiter


class Listener:
    """Hears nothing, and notes for how long it was asked to."""

    def __init__(self):
        self.steps = []

    async def next(self, timeout_seconds):
        self.steps.append(round(timeout_seconds, 2))


@pytest.mark.parametrize(
    ("first_wait_seconds", "steps"),
    [(None, [1.0, "look"]), (0.0, ["look"]), (0.05, [0.05, "look"])],
    ids=str,
)
def test_first_look_comes_after_the_first_wait(first_wait_seconds, steps):
    listener = Listener()

    def read():
        listener.steps.append("look")
        return "row"

    row = asyncio.run(
        ChangeWaiter(listener).until(read, lambda _: True, seconds=5.0, first_wait_seconds=first_wait_seconds)
    )
    assert (row, listener.steps) == ("row", steps)


def test_what_is_not_heard_of_is_looked_at_every_few_seconds():
    listener = Listener()
    looks = iter(["no", "no", "no", "no", "yes"])
    row = asyncio.run(
        ChangeWaiter(listener).until(
            lambda: next(looks), lambda row: row == "yes", seconds=60.0, first_wait_seconds=0.0
        )
    )
    assert (row, listener.steps) == ("yes", [1.0, 2.0, 4.0, 4.0])
