"""Live sandboxes on the wire, as containers of a real engine."""

import subprocess
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from runtimes.base import ENTRYPOINT_KEY, Command, FileUpload
from tests.support.images import BUSYBOX_IMAGE
from tests.support.live_sandboxes import LiveNode, create_body, live_node, wait_for_state, wait_until
from tests.support.runtime_fixtures import kind_named, runtime_folder  # noqa: F401 -- fixtures are found by name

pytestmark = pytest.mark.docker

ON_DOCKER = {"sandmill.runtime": "docker"}


@pytest.fixture
def kind(runtime_folder):  # noqa: F811
    yield from kind_named("docker", runtime_folder)


@pytest.fixture
def node(own_api, kind) -> Iterator[LiveNode]:
    with live_node(own_api.settings, own_api.world, {"docker": kind.runtime}) as made:
        # Of the engine's containers only this node's are its to remove.
        made.remove_all = lambda: None  # type: ignore[method-assign]
        yield made
        for handle in kind.runtime.list():
            if handle.labels.get("sandmill.node") == str(made.id):
                kind.runtime.remove(handle)


@pytest.fixture
def client(own_api, node):
    return own_api.client


def create(client, **changes: Any) -> str:
    body = create_body(image={"uri": BUSYBOX_IMAGE}, extensions=ON_DOCKER, **changes)
    response = client.post("/v1/sandboxes", json=body)
    assert response.status_code == 202, response.text
    return str(response.json()["id"])


def handle_of(kind, sandbox):
    return next(handle for handle in kind.runtime.list() if handle.labels.get("sandmill.trial") == sandbox)


def test_life_of_a_container_over_the_wire(client, kind):
    argv = ["sh", "-c", "echo begun; exec sleep 600"]
    claim = f"data-{uuid.uuid4().hex[:8]}"
    volume = {
        "name": "data",
        "mountPath": "/data",
        "pvc": {"claimName": claim, "deleteOnSandboxTermination": True},
    }
    sandbox = create(client, entrypoint=argv, env={"A": "1"}, volumes=[volume])
    path = f"/v1/sandboxes/{sandbox}"
    wait_for_state(client, path, "Running")
    handle = handle_of(kind, sandbox)
    execd = kind.runtime.executions(handle)
    wait_until(
        lambda: execd.background_output(Command(argv=argv), key=ENTRYPOINT_KEY),
        lambda said: said == b"begun\n",
    )
    execd.upload([FileUpload("/data/file", b"x")])
    assert client.post(f"{path}/pause").status_code == 202
    wait_for_state(client, path, "Paused")
    assert kind.runtime.state(handle).phase == "paused"
    assert client.post(f"{path}/resume").status_code == 202
    wait_for_state(client, path, "Running")
    assert execd.download("/data/file", max_bytes=10) == b"x"
    made = client.post(f"{path}/snapshots", json={})
    assert made.status_code == 202, made.text
    snapshot = made.json()["id"]
    wait_for_state(client, f"/v1/snapshots/{snapshot}", "Ready", seconds=60)
    assert client.delete(path).status_code == 204
    wait_until(lambda: [each.ref for each in kind.runtime.list()], lambda refs: handle.ref not in refs)
    volumes = subprocess.run(
        ["docker", "volume", "ls", "--quiet"], capture_output=True, text=True, check=True
    )
    assert claim not in volumes.stdout
    body = create_body(image=None, snapshotId=snapshot, extensions=ON_DOCKER)
    restored = client.post("/v1/sandboxes", json=body).json()["id"]
    wait_for_state(client, f"/v1/sandboxes/{restored}", "Running")
    assert client.delete(f"/v1/snapshots/{snapshot}").status_code == 204
    assert client.delete(f"/v1/sandboxes/{restored}").status_code == 204


def record(client, sandbox):
    return client.get(f"/v1/sandboxes/{sandbox}/record").json()


def test_container_that_is_killed_from_outside_is_told(client, kind):
    sandbox = create(client)
    wait_for_state(client, f"/v1/sandboxes/{sandbox}", "Running")
    subprocess.run(["docker", "kill", handle_of(kind, sandbox).ref], check=True, capture_output=True)
    found = wait_until(
        lambda: record(client, sandbox), lambda found: found["status"]["state"] in ("Failed", "Terminated")
    )
    assert "killed from outside" in found["status"]["message"]


def test_start_that_cannot_be_says_why(client):
    body = create_body(image={"uri": "no/such:image"}, extensions=ON_DOCKER)
    response = client.post("/v1/sandboxes", json=body)
    assert response.status_code == 202, response.text
    sandbox = response.json()["id"]
    found = wait_until(lambda: record(client, sandbox), lambda found: found["status"]["state"] == "Failed")
    assert "no/such:image" in found["status"]["message"]


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        (
            {"extensions": {**ON_DOCKER, "sandmill.oci-runtime": "kata"}},
            "SANDBOX::INVALID_PARAMETER",
            ("extensions.sandmill.oci-runtime: is kata", "runc"),
        ),
        (
            {"volumes": [{"name": "v", "mountPath": "/v", "host": {"path": "/etc"}}]},
            "VOLUME::HOST_PATH_NOT_ALLOWED",
            ("volumes[0].host.path: is /etc", "SANDMILL_DOCKER_ALLOWED_HOST_PATHS"),
        ),
    ],
    ids=["oci-runtime", "host-path"],
)
def test_what_the_engine_cannot_do_is_refused_at_once(own_api, client, changes, code, said):
    body = create_body(**{"image": {"uri": BUSYBOX_IMAGE}, "extensions": ON_DOCKER, **changes})
    response = client.post("/v1/sandboxes", json=body)
    assert (response.status_code, response.json()["code"]) == (400, code)
    for words in said:
        assert words in response.json()["message"]
    assert own_api.rows("SELECT 1 FROM sandbox_sessions") == []


def test_oci_runtime_that_the_engine_has_is_taken(client):
    extensions = {**ON_DOCKER, "sandmill.oci-runtime": "runc"}
    body = create_body(image={"uri": BUSYBOX_IMAGE}, extensions=extensions)
    response = client.post("/v1/sandboxes", json=body)
    assert response.status_code == 202, response.text
    wait_for_state(client, f"/v1/sandboxes/{response.json()['id']}", "Running")
