import itertools
import threading

import pytest
import requests.exceptions

from runtimes.deadline import Deadline
from runtimes.engine import Engine, PullRefusedError


class Progress(Engine):
    """An engine that says these lines about a pull."""

    def __init__(self, lines):
        # Not of the parent: that asks a real engine for its version.
        self._deadlines = threading.local()
        self.lines = lines

    def pull(self, name, **_):
        return self.lines()


def test_pull_that_comes_in_drop_by_drop_ends_with_the_deadline():
    def drops():
        for number in itertools.count():
            assert number < 1_000_000, "nobody looks at the deadline"
            yield {"status": "Downloading"}

    engine = Progress(drops)
    with engine.until(Deadline(0.05)), pytest.raises(requests.exceptions.Timeout):
        engine.fetch_image("app")


def test_error_that_comes_after_the_progress_is_seen():
    engine = Progress(lambda: (line for line in [{"status": "Pulling"}, {"error": "toomanyrequests: no"}]))
    with pytest.raises(PullRefusedError, match="toomanyrequests"):
        engine.fetch_image("app")
