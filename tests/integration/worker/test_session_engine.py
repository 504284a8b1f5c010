"""The container engine stops in the middle of what is done about live sandboxes: it converges, and nothing is left."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.integration.api.conftest import ApiWorld, make_settings, open_api
from tests.support.images import BUSYBOX_IMAGE
from tests.support.sandboxes import docker_kind
from tests.support.session_node import LiveNode, until

pytestmark = [pytest.mark.docker, pytest.mark.timeout(240)]

CONVERGE_SECONDS = 60.0


@pytest.fixture
def api(healthy, database_url, redis_url, tmp_path) -> Iterator[ApiWorld]:
    del healthy
    changes = {"runtime": "docker", "sandbox_create_wait_seconds": 1.0, "runtimes": ("docker",)}
    leases = {"heartbeat_seconds": 0.3, "lease_seconds": 30.0, "lease_margin_seconds": 5.0}
    settings = make_settings(database_url, redis_url, tmp_path / "home", **changes, **leases)
    with open_api(settings) as running, running.new_tenant() as opened:
        yield opened


@pytest.fixture
def node(api, proxy, runtime_folder, monkeypatch) -> Iterator[LiveNode]:
    """A node whose engine can be made to fail."""
    monkeypatch.setattr("workers.node._SWEEP_SECONDS", 1.0)
    with docker_kind(runtime_folder, base_url=proxy.url) as shaky:
        shaky.runtime.check()
        made = LiveNode(api.world, api.settings, shaky.runtime, name="docker")
        made.start()
        try:
            yield made
        finally:
            proxy.heal()
            made.stop()


def create(api: ApiWorld) -> str:
    body = {
        "image": {"uri": BUSYBOX_IMAGE},
        "timeout": 600,
        "resourceLimits": {"cpu": "500m", "memory": "128Mi"},
        "entrypoint": ["tail", "-f", "/dev/null"],
    }
    response = api.client.post("/v1/sandboxes", json=body)
    assert response.status_code == 202, response.text
    return str(response.json()["id"])


def status(api: ApiWorld, sandbox: str) -> dict[str, str]:
    return dict(api.client.get(f"/v1/sandboxes/{sandbox}/record").json()["status"])


def containers(healthy, sandbox: str) -> list[str]:
    """Those of the sandbox, by the engine's own list."""
    return [each.ref for each in healthy.runtime.list() if each.labels.get("sandmill.trial") == sandbox]


def leaves_nothing(api: ApiWorld, healthy, sandbox: str) -> None:
    until(lambda: not containers(healthy, sandbox), CONVERGE_SECONDS, what="the end of its container")
    sql = "SELECT state FROM sandboxes WHERE trial_id = %(id)s AND state <> 'removed'"
    until(lambda: not api.world.execute(sql, id=sandbox), CONVERGE_SECONDS, what="the end by its row")
    sql = "SELECT state FROM attempts WHERE trial_id = %(id)s AND finished_at IS NULL"
    assert api.world.execute(sql, id=sandbox) == []


@contextmanager
def engine_away(proxy) -> Iterator[None]:
    proxy.fail(".", "cut")
    yield
    proxy.heal()


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize(
    "fault",
    [(step, how) for step in ("/containers/create", "/start") for how in ("cut", "lose_answer")],
    ids=str,
)
def test_create_that_the_engine_breaks_off_is_failed_with_a_reason(api, healthy, proxy, fault):
    proxy.fail(*fault)
    sandbox = create(api)
    until(lambda: status(api, sandbox)["state"] == "Failed", CONVERGE_SECONDS)
    said = status(api, sandbox)
    assert said["reason"] == "DOCKER::SANDBOX_START_FAILED"
    assert "does not answer" in said["message"]
    proxy.heal()
    leaves_nothing(api, healthy, sandbox)
    assert api.client.delete(f"/v1/sandboxes/{sandbox}").status_code == 204


def test_running_one_is_not_said_to_be_dead_while_its_engine_is_away(api, healthy, proxy, node):
    sandbox = create(api)
    until(lambda: status(api, sandbox)["state"] == "Running", CONVERGE_SECONDS)
    with engine_away(proxy):
        over = time.monotonic() + 8.0  # two looks at it, and some sweeps
        while time.monotonic() < over:
            assert status(api, sandbox)["state"] == "Running"
            threading.Event().wait(0.5)
    assert len(containers(healthy, sandbox)) == 1
    assert api.client.delete(f"/v1/sandboxes/{sandbox}").status_code == 204
    until(lambda: status(api, sandbox)["state"] == "Terminated", CONVERGE_SECONDS)
    leaves_nothing(api, healthy, sandbox)
    assert "SANDBOX_LOST" not in node.events(sandbox)


@pytest.mark.usefixtures("node")
def test_delete_while_the_engine_is_away_is_done_when_it_is_back(api, healthy, proxy):
    sandbox = create(api)
    until(lambda: status(api, sandbox)["state"] == "Running", CONVERGE_SECONDS)
    with engine_away(proxy):
        assert api.client.delete(f"/v1/sandboxes/{sandbox}").status_code == 204
        until(lambda: "does not remove it now" in status(api, sandbox).get("message", ""), CONVERGE_SECONDS)
        # It is there, and said to be.
        assert status(api, sandbox)["state"] == "Stopping"
        assert len(containers(healthy, sandbox)) == 1
    until(lambda: status(api, sandbox)["state"] == "Terminated", CONVERGE_SECONDS)
    assert containers(healthy, sandbox) == []
    leaves_nothing(api, healthy, sandbox)
