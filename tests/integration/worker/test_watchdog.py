"""A worker that stands still cannot end its sandboxes: they are dead before its trials may run anywhere else."""

import os
import signal
from pathlib import Path

import pytest

from runtimes.local.records import Records
from runtimes.processes import ProcessRef
from runtimes.raw_engine import RawEngine, engine_socket
from runtimes.registry import local_state
from services.jobspec import Step
from services.reaping import Reaper
from tests.integration.worker.test_adoption import Node, holders_of, make_node  # noqa: F401 -- a fixture
from tests.support.images import ensure_images, require_docker

pytestmark = pytest.mark.timeout(120)

STEPS = (Step(name="run", run="echo begun; sleep 120"),)


@pytest.fixture
def node(make_node):  # noqa: F811
    # As short as a busy machine lets a heartbeat be in time.
    with make_node(lease_seconds="8", lease_margin_seconds="4", heartbeat_seconds="0.3") as made:
        made.reaper = Reaper(made.world.engine, lease_grace_seconds=1.0)
        yield made


def running_init(node: Node) -> ProcessRef:
    """Process 1 of the one sandbox there is."""
    (record,) = Records(local_state(node.home / "runtimes") / "sandboxes").all()
    assert record.init is not None
    assert record.is_alive
    return record.init


def watchdog_of(node: Node) -> list[int]:
    return holders_of(node.home / "node" / "watchdog.lock")


def stop_with_a_trial(node: Node) -> tuple[int, ProcessRef]:
    worker = node.start()
    trial = node.submit(steps=STEPS, inputs=())
    node.until(lambda: node.log(trial, "run") == b"begun\n")
    init = running_init(node)
    os.kill(worker, signal.SIGSTOP)
    return worker, init


def clean_up(node: Node, worker: int) -> None:
    node.world.execute("UPDATE trials SET desired = 'cancel', cancel_mode = 'force'")
    os.kill(worker, signal.SIGCONT)
    node.nursery.end(worker)


def test_sandboxes_of_a_stopped_worker_are_dead_before_its_trials_go_elsewhere(node: Node):
    worker, init = stop_with_a_trial(node)
    try:
        node.until(lambda: node.reaper.reap() == 1)
        assert not init.is_alive
        assert Records(local_state(node.home / "runtimes") / "sandboxes").all() == []
    finally:
        clean_up(node, worker)


def test_without_the_watchdog_they_would_run_on(node: Node):
    """What the test above is worth: the same without the one who sees to it."""
    worker, init = stop_with_a_trial(node)
    try:
        for pid in watchdog_of(node):
            os.kill(pid, signal.SIGKILL)
        node.until(lambda: node.reaper.reap() == 1)
        assert init.is_alive
    finally:
        clean_up(node, worker)


def test_killed_worker_without_a_next_one_leaves_nothing_for_long(node: Node):
    worker, init = stop_with_a_trial(node)
    node.nursery.end(worker)
    node.until(lambda: not init.is_alive)
    node.until(lambda: watchdog_of(node) == [])
    assert node.reaper.reap() <= 1
    node.world.execute("UPDATE trials SET desired = 'cancel', cancel_mode = 'force'")


def test_watchdog_that_was_killed_is_started_again(node: Node):
    worker = node.start()
    node.until(lambda: len(watchdog_of(node)) == 1)
    (first,) = watchdog_of(node)
    os.kill(first, signal.SIGKILL)
    node.until(lambda: watchdog_of(node) not in ([], [first]))
    assert b"PASS" not in Path(f"/proc/{watchdog_of(node)[0]}/environ").read_bytes()
    node.nursery.end(worker, signal.SIGINT)
    assert watchdog_of(node) == []


@pytest.mark.docker
def test_containers_of_a_stopped_worker_are_gone_before_its_trials_go_elsewhere(make_node):  # noqa: F811
    require_docker()
    ensure_images()
    times = {"lease_seconds": "8", "lease_margin_seconds": "4", "heartbeat_seconds": "0.3"}
    with make_node(runtime="docker", **times) as node:
        node.reaper = Reaper(node.world.engine, lease_grace_seconds=1.0)
        worker = node.start()
        trial = node.submit(steps=STEPS, inputs=())
        node.until(lambda: node.log(trial, "run") == b"begun\n")
        (row,) = node.world.execute("SELECT id FROM nodes")

        def containers() -> list[str]:
            return RawEngine(engine_socket()).labelled("sandmill.node", str(row["id"]))

        assert len(containers()) == 1
        os.kill(worker, signal.SIGSTOP)
        try:
            node.until(lambda: node.reaper.reap() == 1)
            assert containers() == []
        finally:
            clean_up(node, worker)
