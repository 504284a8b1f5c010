"""Moments that calls must not pass."""

import pytest

from runtimes.deadline import Deadline


@pytest.mark.parametrize(
    ("seconds", "least", "most"), [(5.0, 4.0, 5.0), (500.0, 90.0, 100.0), (None, 90.0, 100.0)]
)
def test_a_part_ends_with_the_whole_at_the_latest(seconds, least, most):
    whole = Deadline(100.0)
    part = whole.within(seconds)
    assert least <= part.remaining() <= most
    assert part.seconds == most
    assert whole.seconds == 100.0
