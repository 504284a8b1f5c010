"""Workers of live sandboxes killed at every step of a create and of a delete, with containers of a real engine."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.images import BUSYBOX_IMAGE
from tests.support.runtime_fixtures import kind_named
from tests.support.session_home import Home, check_creates_go_on, check_deletes_go_on, session_home

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def bundles(runtime_folder) -> Iterator[Path]:
    """Where those of all tests are built; an engine is there, with images for tests."""
    for _ in kind_named("docker", runtime_folder):
        yield runtime_folder / "bundles"


@pytest.fixture
def home(bundles, world, database_url, redis_url, tmp_path) -> Iterator[Home]:
    with session_home(
        world, tmp_path, bundles, runtime="docker", image=BUSYBOX_IMAGE,
        database_url=database_url, redis_url=redis_url,
    ) as made:  # fmt: skip
        yield made


def test_containers_go_on_wherever_their_worker_is_killed(home: Home):
    """One installation for all points: what one of them left would be in the way of the next."""
    check_creates_go_on(home)
    check_deletes_go_on(home)


def test_container_killed_while_no_worker_is_there_is_told_by_the_next(home: Home):
    worker = home.start()
    sandbox_id = home.create()
    home.until_state(sandbox_id, "Running")
    home.nursery.end(worker)
    (handle,) = home.sandboxes()
    subprocess.run(["docker", "kill", handle.ref], check=True, capture_output=True, timeout=60)
    home.start()
    row = home.until_state(sandbox_id, "Failed")
    assert row["state_reason"] in {"CONTAINER_EXITED_ERROR", "SANDBOX_LOST"}
    assert row["state_message"]
    home.until(home.holds_nothing)
    assert home.sandboxes() == []
