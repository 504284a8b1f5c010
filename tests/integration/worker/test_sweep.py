"""What a worker's sweep removes, and what it tells of the rest."""

import pytest

from core.errors import DaemonError
from core.metrics import REGISTRY
from runtimes.fake import FakeRuntime
from tests.support.sandboxes import make_spec
from workers.node import NodeWorker


class Shaky(FakeRuntime):
    """Refuses to remove, and has volumes that stay."""

    is_broken = True
    rest = (0, 3)

    def remove(self, handle):
        if self.is_broken:
            raise DaemonError("the engine is out of order")
        super().remove(handle)

    def collect(self, node, keep):
        del keep
        assert node == "the node"
        return self.rest


class Swept(NodeWorker):
    """A worker of which only the sweep is there."""

    node_id = "the node"
    ended: frozenset[str] = frozenset()

    def __init__(self, runtime, removed):
        self._runtimes = {"fake": runtime}
        self._removed = removed

    def _runs(self, handle):
        return handle.labels["sandmill.trial"] == "runs"

    def _to_be_gone(self, runtime):
        return self.ended

    def _mark_swept(self, name):
        self._removed.append(name)


def leaked(kind):
    return REGISTRY.get_sample_value("sandmill_leaked", {"runtime": "fake", "kind": kind})


@pytest.fixture
def runtime():
    made = Shaky()
    for name, node in (("runs", "the node"), ("lost", "the node"), ("others", "another node")):
        labels = {"sandmill.trial": name, "sandmill.node": node}
        made.create(make_spec(name=f"sm-{name}", labels=labels), timeout_seconds=1)
    return made


def test_what_cannot_be_removed_has_leaked_until_it_is(runtime):
    removed = []
    worker = Swept(runtime, removed)
    worker._remove_leftovers()
    assert (leaked("sandbox"), leaked("rest"), removed) == (1, 3, [])
    runtime.is_broken, runtime.rest = False, (3, 0)
    worker._remove_leftovers()
    assert (leaked("sandbox"), leaked("rest"), removed) == (0, 0, ["sm-lost"])
    assert {handle.name for handle in runtime.list()} == {"sm-runs", "sm-others"}


def test_what_is_over_and_nowhere_to_be_found_is_gone(runtime):
    removed = []
    worker = Swept(runtime, removed)
    worker.ended = frozenset({"sm-never-made", "sm-lost"})
    worker._remove_leftovers()
    assert removed == ["sm-never-made"]  # the other is there, and would not go


def test_engine_that_cannot_be_asked_about_the_rest_keeps_no_worker_from_its_work(runtime):
    def collect(node, keep):
        del node, keep
        raise DaemonError("away")

    runtime.collect = collect
    Swept(runtime, [])._remove_leftovers()
    assert leaked("sandbox") == 1
