"""What a client sees of a live sandbox while its image comes from a slow registry."""

import threading
from collections.abc import Iterator

import pytest

from tests.integration.api.conftest import ApiWorld, make_settings, open_api
from tests.support.registry import FakeRegistry, serve_registry
from tests.support.sandboxes import docker_kind
from tests.support.session_node import LiveNode, until

pytestmark = [pytest.mark.docker, pytest.mark.timeout(120)]


@pytest.fixture
def api(database_url, redis_url, tmp_path) -> Iterator[ApiWorld]:
    changes = {"runtime": "docker", "sandbox_create_wait_seconds": 0.5, "runtimes": ("docker",)}
    settings = make_settings(database_url, redis_url, tmp_path / "home", **changes)
    with open_api(settings) as running, running.new_tenant() as opened:
        yield opened


@pytest.fixture
def node(api, runtime_folder) -> Iterator[LiveNode]:
    with docker_kind(runtime_folder, pull=True) as kind:
        kind.runtime.check()
        made = LiveNode(api.world, api.settings, kind.runtime, name="docker")
        made.start()
        try:
            yield made
        finally:
            made.stop()


@pytest.fixture
def go_on() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def registry(tmp_path, go_on) -> Iterator[FakeRegistry]:
    """It says nothing of any image until it may go on; then that there is none."""
    with serve_registry(tmp_path) as serving:
        serving.faults = [
            lambda handler: (
                handler.path != "/v2/" and go_on.wait(60) and handler.refuse(404, "MANIFEST_UNKNOWN")
            )
        ]
        yield serving


def test_pull_that_takes_long_is_told_while_it_lasts(api, node, registry, go_on):
    image = f"{registry.address}/team/app:1"
    body = {
        "image": {"uri": image},
        "timeout": 600,
        "resourceLimits": {"cpu": "500m", "memory": "128Mi"},
        "entrypoint": ["tail", "-f", "/dev/null"],
    }
    response = api.client.post("/v1/sandboxes", json=body)
    assert response.status_code == 202, response.text

    def status() -> dict[str, str]:
        return dict(api.client.get(f"/v1/sandboxes/{response.json()['id']}").json()["status"])

    until(lambda: status().get("message") == f"pulling {image}", what="the news of the pull")
    assert (status()["state"], status()["reason"]) == ("Pending", "CONTAINER_STARTING")
    go_on.set()
    until(lambda: status()["state"] == "Failed", what="the end of the pull")
    assert status()["reason"] == "DOCKER::SANDBOX_IMAGE_PULL_FAILED"
