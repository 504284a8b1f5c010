"""What a worker's sweep removes, and what it tells of the rest."""

from uuid import UUID

import pytest

from core.config import Settings
from core.database import create_database_engine
from core.errors import DaemonError
from core.metrics import REGISTRY
from runtimes.base import Capabilities
from runtimes.fake import FakeRuntime
from tests.support.sandboxes import make_spec
from workers.lease import LeaseKeeper, LeaseTimes
from workers.node import NodeWorker, _describe
from workers.registry import AttemptRegistry


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


class Able(FakeRuntime):
    """Can do what it is told it can."""

    can = Capabilities(oci_runtimes=["runc"])

    def capabilities(self):
        if self.can is None:
            raise DaemonError("the engine is away")
        return self.can


class Telling(NodeWorker):
    """A worker of which only what it tells of its node is there."""

    node_id = UUID(int=7)

    def __init__(self, runtime, engine, lease):
        self._settings = Settings(database_url="postgresql://u:p@h/d", redis_url="redis://:p@h/0")
        self._runtimes = {"fake": runtime}
        self._statements = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._lease = lease


def test_what_the_engine_can_do_from_now_on_is_told(world, database_url):
    runtime = Able()
    settings = Settings(database_url="postgresql://u:p@h/d", redis_url="redis://:p@h/0")
    node = _describe(settings, Telling.node_id, {"fake": runtime})
    engine = create_database_engine(database_url, actor="lease", pool_size=1)
    lease = LeaseKeeper(engine, node, AttemptRegistry(), LeaseTimes(9.0, 1.0, 3.0), on_beat=lambda: None)
    lease.open()
    worker = Telling(runtime, world.engine, lease)

    def told() -> set[str]:
        worker._tell_capabilities()
        (row,) = world.execute("SELECT labels FROM nodes")
        assert row["labels"] == lease.labels
        return {name for name in row["labels"] if "/can/" in name}

    before = told()
    assert before == {f"sandmill/can/fake{tail}" for tail in ("", "/snapshots", "/oci-runtime/runc")}
    runtime.can = Capabilities(oci_runtimes=["runc", "runsc"], makes_snapshots=False)
    after = {f"sandmill/can/fake{tail}" for tail in ("", "/oci-runtime/runc", "/oci-runtime/runsc")}
    assert told() == after
    runtime.can = None  # an engine that is away has lost nothing
    assert told() == after
    # The next session opens with them, too.
    lease.open()
    assert told() == after
    engine.dispose()
