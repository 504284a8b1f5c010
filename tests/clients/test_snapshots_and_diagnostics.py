"""The published client's snapshot and diagnostics calls against a whole stack, whose worker is killed on the way."""

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from opensandbox import SandboxManagerSync, SandboxSync
from opensandbox.config import ConnectionConfigSync
from opensandbox.exceptions import SandboxApiException
from opensandbox.models.sandboxes import SnapshotFilter

from runtimes.bundle import ensure_bundle
from tests.support.running_stack import RunningStack, running_stack
from tests.support.sandboxes import is_root

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not is_root(), reason="snapshots of local sandboxes need root"),
]

MADE_SECONDS = 8
"""A snapshot that is made waits so long before it is written down: there the worker is killed."""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, runtime_folder: Path) -> Iterator[RunningStack]:
    home = tmp_path_factory.mktemp("stack") / "home"
    (home / "runtimes").mkdir(parents=True, mode=0o700)
    # A bundle that is there already: to build one takes longer on a busy machine than `up` waits for a worker.
    ensure_bundle(runtime_folder / "bundles")
    (home / "runtimes" / "bundles").symlink_to(runtime_folder / "bundles")
    env = {
        "SANDMILL_RUNTIMES": '["local"]',
        "SANDMILL_INGRESS_PORT": "0",
        "SANDMILL_FAILPOINTS": f"snapshot.made:sleep:{MADE_SECONDS}",
        "SANDMILL_ALLOW_FAILPOINTS": "1",
    }
    with running_stack(home, env) as running:
        yield running


@pytest.fixture
def config(stack: RunningStack) -> Iterator[ConnectionConfigSync]:
    # A transport of our own: the client leaves its own open where a create fails.
    with httpx.HTTPTransport() as transport:
        yield ConnectionConfigSync(
            domain=urlsplit(stack.api_url).netloc,
            api_key=stack.api_key,
            request_timeout=timedelta(seconds=60),
            disable_metrics=True,
            transport=transport,
        )


@pytest.fixture
def manager(config: ConnectionConfigSync) -> Iterator[SandboxManagerSync]:
    made = SandboxManagerSync.create(config)
    yield made
    made.close()


def create(config: ConnectionConfigSync, **changes) -> SandboxSync:
    image = None if "snapshot_id" in changes else "host"
    return SandboxSync.create(
        image,
        connection_config=config,
        resource={"cpu": "1", "memory": "256Mi", "disk": "64Mi"},
        ready_timeout=timedelta(seconds=60),
        **changes,
    )


def await_state(manager: SandboxManagerSync, snapshot_id: str, state: str) -> None:
    deadline = time.monotonic() + 90
    while manager.get_snapshot(snapshot_id).status.state != state:
        assert time.monotonic() < deadline, manager.get_snapshot(snapshot_id)
        time.sleep(0.1)


def test_snapshot_of_a_worker_that_is_killed_is_made_and_restored(stack, config, manager):
    sandbox = create(config)
    sandbox.files.write_file("/tmp/text", "kept")
    made = sandbox.create_snapshot("mine")
    assert (made.status.state, made.name, made.sandbox_id) == ("Creating", "mine", sandbox.id)
    snapshots = stack.home / "runtimes" / "local" / "snapshots"
    await_folder(snapshots, made.id)
    assert manager.get_snapshot(made.id).status.state == "Creating"
    stack.kill("-m", "workers")
    with pytest.raises(SandboxApiException) as refused:
        manager.delete_snapshot(made.id)
    assert (refused.value.status_code, refused.value.error.code) == (409, "SNAPSHOT::INVALID_STATE")
    await_state(manager, made.id, "Ready")
    assert sandbox.files.read_file("/tmp/text") == "kept"
    sandbox.kill()
    restored = create(config, snapshot_id=made.id)
    assert restored.files.read_file("/tmp/text") == "kept"
    assert restored.get_info().snapshot_id == made.id
    found = manager.list_snapshots(SnapshotFilter(sandbox_id=sandbox.id, states=["Ready"]))
    assert [(item.id, item.name) for item in found.snapshot_infos] == [(made.id, "mine")]
    manager.delete_snapshot(made.id)
    with pytest.raises(SandboxApiException) as missing:
        manager.get_snapshot(made.id)
    assert (missing.value.status_code, missing.value.error.code) == (404, "SNAPSHOT::NOT_FOUND")
    assert restored.files.read_file("/tmp/text") == "kept"
    restored.kill()
    assert list(snapshots.glob("[!.]*")) == []


def await_folder(snapshots: Path, snapshot_id: str) -> None:
    deadline = time.monotonic() + 60
    while not list(snapshots.glob(f"[!.]*{snapshot_id}")):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_diagnostics_tell_of_output_and_events_also_after_the_end(config, manager):
    sandbox = create(config, entrypoint=["sh", "-c", "echo begun; exec sleep 1000"])
    logs = sandbox.get_diagnostic_logs("container")
    assert (logs.content, logs.truncated, logs.delivery) == ("begun\n", False, "inline")
    assert "CONTAINER_RUNNING" in (sandbox.get_diagnostic_events("runtime").content or "")
    with pytest.raises(SandboxApiException) as refused:
        sandbox.get_diagnostic_logs("weather")
    assert (refused.value.status_code, refused.value.error.code) == (400, "DIAGNOSTICS_SCOPE_UNSUPPORTED")
    sandbox.kill()
    after = manager.get_diagnostic_logs(sandbox.id, "all")
    assert "SANDBOX_DELETED" in after.content
    assert after.content.endswith("begun\n")
    assert after.warnings


def test_failed_entrypoint_is_told_by_the_create(config):
    with pytest.raises(SandboxApiException) as failed:
        create(config, entrypoint=["sh", "-c", "echo no such module >&2; exit 1"])
    assert "no such module" in str(failed.value)
