"""Workers of live sandboxes killed at every step of a create and of a delete: the next one of the node goes on.

As containers: `test_session_crashes_docker.py`; with every other way to break, too: `./run chaos --only session`.
"""

import os
import signal
from collections.abc import Iterator

import pytest

from tests.support.sandboxes import is_root
from tests.support.session_home import Home, check_creates_go_on, check_deletes_go_on, session_home, spec_of

pytestmark = [pytest.mark.timeout(600), pytest.mark.skipif(not is_root(), reason="the zygote needs root")]


@pytest.fixture
def home(world, database_url, redis_url, tmp_path, runtime_folder) -> Iterator[Home]:
    with session_home(
        world, tmp_path, runtime_folder / "bundles", runtime="local", image="host",
        database_url=database_url, redis_url=redis_url,
    ) as made:  # fmt: skip
        yield made


def test_create_goes_on_wherever_its_worker_is_killed(home: Home):
    check_creates_go_on(home)


def test_delete_goes_on_wherever_its_worker_is_killed(home: Home):
    check_deletes_go_on(home)


def test_delete_while_nobody_is_there_is_obeyed_by_the_next(home: Home):
    """In a start, and when it ran."""
    for point in ("session.before_create", "session.after_create", None):
        worker = home.start("" if point is None else f"{point}:kill9")
        sandbox_id = home.create()
        if point is None:
            home.until_state(sandbox_id, "Running")
            home.nursery.end(worker)
        else:
            home.until_gone(worker)
        home.delete(sandbox_id)
        successor = home.start()
        row = home.until_state(sandbox_id, "Terminated")
        assert row["end_reason"] == "SANDBOX_DELETED"
        assert (row["running_at"] is None) == (point is not None)
        home.until(home.holds_nothing)
        assert home.sandboxes() == []
        home.nursery.end(successor)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "replaced"])
def test_sandbox_outlives_its_worker(home: Home, number):
    worker = home.start()
    sandbox_id = home.create()
    before = home.until_state(sandbox_id, "Running")
    (handle,) = home.sandboxes()
    for _ in range(2):
        home.nursery.end(worker, number)
        worker = home.start()
        home.until(lambda: home.world.attempt(sandbox_id, 1)["adoptions"] > 0)
    after = home.row(sandbox_id)
    assert {key: after[key] for key in ("state", "state_at", "sandbox_name")} == {
        key: before[key] for key in ("state", "state_at", "sandbox_name")
    }
    assert [(each.name, each.ref) for each in home.sandboxes()] == [(handle.name, handle.ref)]
    home.delete(sandbox_id)
    home.until_state(sandbox_id, "Terminated")


def test_what_is_wished_while_nobody_is_there_is_obeyed_by_the_next(home: Home):
    worker = home.start()
    sandbox_id = home.create()
    home.until_state(sandbox_id, "Running")
    for verb, state in (("pause", "Paused"), ("resume", "Running")):
        home.nursery.end(worker)
        with home.world.engine.begin() as connection:
            getattr(home.service(connection), verb)(sandbox_id)
        worker = home.start()
        home.until_state(sandbox_id, state)
    # A paused one is adopted as it is, and can be deleted.
    with home.world.engine.begin() as connection:
        home.service(connection).pause(sandbox_id)
    home.until_state(sandbox_id, "Paused")
    home.nursery.end(worker)
    home.start()
    home.until(lambda: home.world.attempt(sandbox_id, 1)["adoptions"] >= 3)
    assert home.row(sandbox_id)["state"] == "Paused"
    home.delete(sandbox_id)
    home.until_state(sandbox_id, "Terminated")


def test_death_from_outside_is_told(home: Home):
    home.start()
    sandbox_id = home.create()
    home.until_state(sandbox_id, "Running")
    (handle,) = home.sandboxes()
    os.kill(int(handle.ref.partition(".")[0]), signal.SIGKILL)
    row = home.until_state(sandbox_id, "Failed")
    assert row["state_reason"] == "CONTAINER_EXITED_ERROR"
    assert row["state_message"]
    home.until(home.holds_nothing)


def test_death_while_nobody_is_there_is_told_by_the_next(home: Home):
    worker = home.start()
    sandbox_id = home.create()
    home.until_state(sandbox_id, "Running")
    home.nursery.end(worker)
    for handle in home.sandboxes():
        home.runtime().remove(handle)
    home.start()
    row = home.until_state(sandbox_id, "Failed")
    assert row["state_reason"] == "SANDBOX_LOST"
    assert home.world.trial(sandbox_id)["outcome"] == "error"


def test_expiry_while_nobody_is_there_is_obeyed_by_the_next(home: Home):
    worker = home.start()
    sandbox_id = home.create()
    home.until_state(sandbox_id, "Running")
    home.nursery.end(worker)
    home.world.execute("UPDATE sandbox_sessions SET expires_at = clock_timestamp()")
    home.until_state(sandbox_id, "Stopping")
    home.start()
    row = home.until_state(sandbox_id, "Terminated")
    assert (row["end_reason"], row["ended_by"]) == ("SANDBOX_EXPIRED", "scheduler")
    assert home.sandboxes() == []


def test_missing_image_is_told(home: Home):
    home.start()
    sandbox_id = home.create(spec=spec_of("nobody/made-this:1"))
    row = home.until_state(sandbox_id, "Failed")
    assert row["state_reason"] == "DOCKER::SANDBOX_IMAGE_PULL_FAILED"
    assert "nobody/made-this" in row["state_message"]
    home.until(home.holds_nothing)
