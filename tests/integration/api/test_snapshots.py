"""Snapshots on the wire, over a node with the fake runtime; on real sandboxes at the end."""

import threading
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest
from psycopg.types.json import Jsonb

from core.errors import DaemonError, NotSupportedError
from runtimes.base import Capabilities, FileUpload
from runtimes.fake import FakeRuntime
from runtimes.local.config import LocalConfig
from runtimes.local.runtime import LocalRuntime
from services.node_capabilities import labels_of_capabilities
from tests.support.invariants import SANDBOXES_BY_HAND
from tests.support.live_sandboxes import LiveNode, create_body, live_node, wait_for_state, wait_until
from tests.support.runtime_fixtures import real_kind, runtime_folder  # noqa: F401 -- fixtures are found by name
from tests.support.sandboxes import is_root
from tests.support.spellings import OTHER_SPELLINGS


class HeldRuntime(FakeRuntime):
    """Snapshots take until `go`, and fail as told."""

    outlives = True

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.go.set()
        self.begun = threading.Event()
        self.error: Exception | None = None

    def snapshot(self, handle, name):
        self.begun.set()
        assert self.go.wait(30)
        if self.error is not None:
            raise self.error
        super().snapshot(handle, name)


@pytest.fixture
def runtime() -> HeldRuntime:
    return HeldRuntime()


@pytest.fixture
def node(own_api, runtime) -> Iterator[LiveNode]:
    with live_node(own_api.settings, own_api.world, {"fake": runtime}) as made:
        yield made


@pytest.fixture
def client(own_api, node):
    return own_api.client


def create(client, **changes: Any) -> str:
    """Create a sandbox and wait until it runs; gives its id."""
    response = client.post("/v1/sandboxes", json=create_body(**changes))
    assert response.status_code == 202, response.text
    wait_for_state(client, f"/v1/sandboxes/{response.json()['id']}", "Running")
    return response.json()["id"]


def ask(client, sandbox: str, **body: Any) -> dict[str, Any]:
    response = client.post(f"/v1/sandboxes/{sandbox}/snapshots", json=body)
    assert response.status_code == 202, response.text
    return response.json()


def snapshot(client, sandbox: str, **body: Any) -> str:
    """Make a snapshot and wait until it is there; gives its id."""
    made = ask(client, sandbox, **body)
    wait_for_state(client, f"/v1/snapshots/{made['id']}", "Ready")
    return made["id"]


def restore(client, snapshot_id: str, **changes: Any):
    return client.post("/v1/sandboxes", json=create_body(image=None, snapshotId=snapshot_id, **changes))


def handle_of(runtime, api, sandbox: str):
    name = api.rows("SELECT sandbox_name FROM sandbox_sessions WHERE trial_id = %(id)s", id=sandbox)[0][
        "sandbox_name"
    ]
    return next(handle for handle in runtime.list() if handle.name == name)


def write(runtime, handle, text: bytes) -> None:
    runtime.executions(handle).upload([FileUpload("/tmp/text", text)])


def read(runtime, handle) -> bytes:
    return runtime.executions(handle).download("/tmp/text", max_bytes=100)


def code_of(response) -> tuple[int, str]:
    return response.status_code, response.json()["code"]


def test_node_that_can_make_none_is_told_at_once(client, own_api, node):
    sandbox = create(client)
    told = labels_of_capabilities("fake", Capabilities(makes_snapshots=False))
    own_api.world.execute("UPDATE nodes SET labels = %(told)s", told=Jsonb(told))
    response = client.post(f"/v1/sandboxes/{sandbox}/snapshots", json={})
    assert code_of(response) == (501, "SNAPSHOT::NOT_IMPLEMENTED")
    assert "run its worker as root" in response.json()["message"]
    assert own_api.rows("SELECT 1 FROM snapshots") == []
    told = labels_of_capabilities("fake", Capabilities())
    own_api.world.execute("UPDATE nodes SET labels = %(told)s", told=Jsonb(told))
    snapshot(client, sandbox)


def test_snapshot_is_accepted_at_once_and_becomes_ready(client, runtime):
    sandbox = create(client)
    runtime.go.clear()
    response = client.post(f"/v1/sandboxes/{sandbox}/snapshots", json={"name": "first"})
    made = response.json()
    assert (response.status_code, response.headers["location"]) == (202, f"/v1/snapshots/{made['id']}")
    assert (made["sandboxId"], made["name"]) == (sandbox, "first")
    assert (made["status"]["state"], made["status"]["reason"]) == ("Creating", "snapshot_accepted")
    assert "message" not in made["status"]
    runtime.go.set()
    ready = wait_for_state(client, f"/v1/snapshots/{made['id']}", "Ready")
    assert ready["status"]["reason"] == "snapshot_runtime_ready"
    assert ready["createdAt"] == made["createdAt"]


def test_body_may_be_left_out_and_has_no_null_names(client):
    sandbox = create(client)
    response = client.post(f"/v1/sandboxes/{sandbox}/snapshots")
    assert response.status_code == 202
    assert "name" not in response.json()
    assert code_of(client.post(f"/v1/sandboxes/{sandbox}/snapshots", json={"name": ""}))[0] == 422


def test_restored_sandbox_has_files_variables_and_node_of_its_source(client, own_api, runtime):
    sandbox = create(client, env={"A": "1", "B": "2"})
    write(runtime, handle_of(runtime, own_api, sandbox), b"kept")
    made = snapshot(client, sandbox)
    write(runtime, handle_of(runtime, own_api, sandbox), b"later")
    response = restore(client, made, env={"B": "3"}, entrypoint=None)
    assert response.status_code == 202, response.text
    restored = wait_for_state(client, f"/v1/sandboxes/{response.json()['id']}", "Running")
    assert (restored["snapshotId"], restored["entrypoint"]) == (made, ["tail", "-f", "/dev/null"])
    assert "image" not in restored
    assert read(runtime, handle_of(runtime, own_api, restored["id"])) == b"kept"
    row = own_api.rows(
        "SELECT j.spec -> 'env' AS env, t.node_labels FROM trials t JOIN jobs j ON j.id = t.job_id WHERE t.id = %(i)s",
        i=restored["id"],
    )[0]
    assert row["env"] == {"A": "1", "B": "3"}
    node_id = own_api.rows("SELECT node_id FROM snapshots WHERE id = %(i)s", i=made)[0]["node_id"]
    assert row["node_labels"] == {"sandmill/node": str(node_id)}


def test_list_filters_and_pages_newest_first(client):
    one, two = create(client), create(client)
    ids = [snapshot(client, one, name="a"), snapshot(client, one, name="b"), snapshot(client, two, name="a")]

    def listed(**query: Any) -> list[str]:
        response = client.get("/v1/snapshots", params=query)
        assert response.status_code == 200, response.text
        return [item["id"] for item in response.json()["items"]]

    assert listed() == ids[::-1]
    assert listed(sandboxId=one) == [ids[1], ids[0]]
    assert listed(name="a") == [ids[2], ids[0]]
    assert listed(name="a", sandboxId=two, state=["READY", "Failed"]) == [ids[2]]
    assert listed(state="Creating") == []
    assert listed(sandboxId="no id") == []
    page = client.get("/v1/snapshots", params={"page": 2, "pageSize": 2}).json()
    assert [item["id"] for item in page["items"]] == [ids[0]]
    assert page["pagination"] == {
        "page": 2, "pageSize": 2, "totalItems": 3, "totalPages": 2, "hasNextPage": False,
    }  # fmt: skip
    response = client.get("/v1/snapshots", params={"state": "Gone"})
    assert code_of(response) == (400, "SANDBOX::INVALID_PARAMETER")
    assert "state" in response.json()["message"]


def test_others_see_none_of_it(client, own_api):
    made = snapshot(client, create(client))
    with own_api.new_client(tenant="other") as other:
        for call in (other.get, other.delete):
            assert code_of(call(f"/v1/snapshots/{made}")) == (404, "SNAPSHOT::NOT_FOUND")
        assert other.get("/v1/snapshots").json()["items"] == []
        assert code_of(restore(other, made)) == (404, "SNAPSHOT::NOT_FOUND")
    assert client.get(f"/v1/snapshots/{made}").status_code == 200


def test_a_snapshot_has_one_name(client):
    source = create(client)
    made = snapshot(client, source)
    for spell in OTHER_SPELLINGS.values():
        other = spell(made)
        assert code_of(client.get(f"/v1/snapshots/{other}")) == (404, "SNAPSHOT::NOT_FOUND")
        assert code_of(client.delete(f"/v1/snapshots/{other}")) == (404, "SNAPSHOT::NOT_FOUND")
        assert code_of(restore(client, other)) == (404, "SNAPSHOT::NOT_FOUND")
        assert client.get("/v1/snapshots", params={"sandboxId": spell(source)}).json()["items"] == []
    assert [
        item["id"] for item in client.get("/v1/snapshots", params={"sandboxId": source}).json()["items"]
    ] == [made]


@pytest.mark.parametrize("key", ["no-id", "00000000-0000-4000-8000-000000000000"])
def test_unknown_ones_are_missing(client, key):
    assert code_of(client.get(f"/v1/snapshots/{key}")) == (404, "SNAPSHOT::NOT_FOUND")
    assert code_of(client.delete(f"/v1/snapshots/{key}")) == (404, "SNAPSHOT::NOT_FOUND")
    assert code_of(restore(client, key)) == (404, "SNAPSHOT::NOT_FOUND")
    assert code_of(client.post(f"/v1/sandboxes/{key}/snapshots", json={})) == (
        404,
        "DOCKER::SANDBOX_NOT_FOUND",
    )


def test_source_has_to_run_or_stand_still(client, own_api):
    sandbox = create(client)
    own_api.rows("UPDATE sandbox_sessions SET state = 'Resuming' WHERE trial_id = %(i)s", i=sandbox)
    refused = client.post(f"/v1/sandboxes/{sandbox}/snapshots", json={})
    assert code_of(refused) == (409, "SNAPSHOT::INVALID_SOURCE_STATE")
    assert "Resuming" in refused.json()["message"]


def test_paused_source_stays_paused(client, runtime, own_api):
    sandbox = create(client)
    client.post(f"/v1/sandboxes/{sandbox}/pause")
    wait_for_state(client, f"/v1/sandboxes/{sandbox}", "Paused")
    snapshot(client, sandbox)
    assert runtime.state(handle_of(runtime, own_api, sandbox)).phase == "paused"
    assert client.get(f"/v1/sandboxes/{sandbox}").json()["status"]["state"] == "Paused"


def test_one_that_is_being_made_can_neither_be_deleted_nor_restored(client, runtime):
    sandbox = create(client)
    runtime.go.clear()
    made = ask(client, sandbox)["id"]
    assert runtime.begun.wait(10)
    assert code_of(client.delete(f"/v1/snapshots/{made}")) == (409, "SNAPSHOT::INVALID_STATE")
    assert code_of(restore(client, made)) == (409, "SNAPSHOT::NOT_READY")
    runtime.go.set()
    wait_for_state(client, f"/v1/snapshots/{made}", "Ready")
    assert client.delete(f"/v1/snapshots/{made}").status_code == 204


def test_deleted_one_is_gone_on_the_node_and_who_runs_from_it_goes_on(client, runtime):
    made = snapshot(client, create(client))
    restored = restore(client, made).json()["id"]
    wait_for_state(client, f"/v1/sandboxes/{restored}", "Running")
    assert client.delete(f"/v1/snapshots/{made}").status_code == 204
    assert list(runtime.snapshots()) == []
    assert code_of(client.get(f"/v1/snapshots/{made}")) == (404, "SNAPSHOT::NOT_FOUND")
    assert client.get(f"/v1/sandboxes/{restored}").json()["status"]["state"] == "Running"


def test_snapshot_outlives_its_source(client):
    sandbox = create(client)
    made = snapshot(client, sandbox)
    assert client.delete(f"/v1/sandboxes/{sandbox}").status_code == 204
    assert client.get(f"/v1/snapshots/{made}").json()["status"]["state"] == "Ready"
    assert restore(client, made).status_code == 202


def test_what_was_accepted_before_a_delete_is_made(client, runtime, own_api):
    sandbox = create(client)
    write(runtime, handle_of(runtime, own_api, sandbox), b"kept")
    runtime.go.clear()
    first = ask(client, sandbox)["id"]
    assert runtime.begun.wait(10)
    second = ask(client, sandbox)["id"]
    ending = threading.Thread(target=client.delete, args=(f"/v1/sandboxes/{sandbox}",))
    ending.start()
    wait_until(
        lambda: own_api.rows("SELECT state FROM sandbox_sessions WHERE trial_id = %(i)s", i=sandbox)[0],
        lambda row: row["state"] == "Stopping",
    )
    runtime.go.set()
    ending.join(20)
    for made in (first, second):
        wait_for_state(client, f"/v1/snapshots/{made}", "Ready")
    assert client.get(f"/v1/sandboxes/{sandbox}").status_code == 404
    assert list(runtime.list()) == []


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (DaemonError("the engine is out of order"), "the engine is out of order"),
        (NotSupportedError("it cannot make snapshots"), "it cannot make snapshots"),
        (OSError("disk on fire"), "OSError: disk on fire"),
    ],
    ids=["daemon", "unsupported", "unexpected"],
)
def test_one_that_cannot_be_made_says_why_and_can_be_deleted(client, runtime, error, words):
    sandbox = create(client)
    runtime.error = error
    made = ask(client, sandbox)["id"]
    failed = wait_for_state(client, f"/v1/snapshots/{made}", "Failed")["status"]
    assert (failed["reason"], failed["message"]) == ("snapshot_runtime_failed", words)
    refused = restore(client, made)
    assert code_of(refused) == (409, "SNAPSHOT::NOT_READY")
    assert words in refused.json()["message"]
    assert client.get(f"/v1/sandboxes/{sandbox}").json()["status"]["state"] == "Running"
    assert client.delete(f"/v1/snapshots/{made}").status_code == 204
    assert client.get(f"/v1/snapshots/{made}").status_code == 404


def test_restore_must_fit_the_snapshot(client):
    made = snapshot(client, create(client, platform={"os": "linux", "arch": "amd64"}))
    other_runtime = restore(client, made, extensions={"sandmill.runtime": "docker"})
    assert code_of(other_runtime) == (409, "SNAPSHOT::INVALID_RESTORE_CONFIG")
    assert "fake" in other_runtime.json()["message"]
    other_machine = restore(client, made, platform={"os": "linux", "arch": "arm64"})
    assert code_of(other_machine) == (409, "SNAPSHOT::INVALID_RESTORE_CONFIG")
    assert "linux/arm64" in other_machine.json()["message"]
    same = restore(client, made, platform={"os": "linux", "arch": "amd64"})
    assert same.status_code == 202
    both = client.post("/v1/sandboxes", json=create_body(snapshotId=made))
    assert code_of(both) == (400, "SANDBOX::INVALID_PARAMETER")


def test_tenant_has_a_bounded_number_of_them(client, own_api):
    most = own_api.settings.max_snapshots
    sandbox = create(client)
    made = snapshot(client, sandbox)
    own_api.rows(
        "INSERT INTO snapshots (id, tenant_id, sandbox_id, state, state_reason, node_id, runtime, runtime_name,"
        " entrypoint, created_by) SELECT gen_random_uuid(), %(me)s, sandbox_id, 'Ready', 'x', gen_random_uuid(),"
        " runtime, 'x', '{}', 'x' FROM snapshots, generate_series(1, %(n)s) WHERE id = %(i)s",
        n=most - 1,
        i=made,
    )
    refused = client.post(f"/v1/sandboxes/{sandbox}/snapshots", json={})
    assert code_of(refused) == (429, "SNAPSHOT::QUOTA_EXCEEDED")
    assert "SANDMILL_MAX_SNAPSHOTS" in refused.json()["message"]
    client.delete(f"/v1/snapshots/{made}")
    assert client.post(f"/v1/sandboxes/{sandbox}/snapshots", json={}).status_code == 202


def test_same_request_sent_twice_makes_one(client):
    sandbox = create(client)
    headers = {"Idempotency-Key": "k"}
    first, again = (
        client.post(f"/v1/sandboxes/{sandbox}/snapshots", json={"name": "n"}, headers=headers)
        for _ in range(2)
    )
    assert first.json()["id"] == again.json()["id"]
    assert again.headers["idempotent-replayed"] == "true"
    assert client.get("/v1/snapshots").json()["pagination"]["totalItems"] == 1


def test_delete_while_the_node_is_away_is_done_when_it_is_back(client, node, runtime, own_api):
    object.__setattr__(own_api.settings, "sandbox_create_wait_seconds", 0.2)
    made = snapshot(client, create(client))
    node.lose()
    assert client.delete(f"/v1/snapshots/{made}").status_code == 204
    assert client.delete(f"/v1/snapshots/{made}").status_code == 204
    shown = client.get(f"/v1/snapshots/{made}").json()["status"]
    assert (shown["state"], shown["reason"]) == ("Deleting", "snapshot_delete_requested")
    assert code_of(restore(client, made)) == (409, "SNAPSHOT::NOT_READY")
    node.start()
    wait_until(lambda: client.get(f"/v1/snapshots/{made}"), lambda answer: answer.status_code == 404)
    assert list(runtime.snapshots()) == []


def test_removal_that_fails_is_tried_again(client, runtime, monkeypatch):
    made = snapshot(client, create(client))
    monkeypatch.setattr("workers.snapshots._RETRY_SECONDS", 0.1)
    calls = []

    def remove(name, remove=runtime.remove_snapshot):
        calls.append(name)
        if len(calls) == 1:
            raise DaemonError("not now")
        remove(name)

    runtime.remove_snapshot = remove
    assert client.delete(f"/v1/snapshots/{made}").status_code == 204
    wait_until(lambda: client.get(f"/v1/snapshots/{made}"), lambda answer: answer.status_code == 404)
    assert len(calls) == 2


def test_worker_lost_in_the_middle_makes_it_anew_and_lets_the_source_go_on(client, node, runtime, own_api):
    sandbox = create(client)
    runtime.go.clear()
    made = ask(client, sandbox)["id"]
    assert runtime.begun.wait(10)
    handle = handle_of(runtime, own_api, sandbox)
    runtime.pause(handle)  # as a copy that was cut short leaves it
    runtime.error, before = DaemonError("killed"), runtime.error
    lost = threading.Thread(target=node.lose)
    # The write of the first try never comes: its worker is dead.
    node.keeper._snapshots._write_failed = lambda *_: None
    runtime.go.set()
    lost.start()
    lost.join(20)
    assert client.get(f"/v1/snapshots/{made}").json()["status"]["state"] == "Creating"
    runtime.error = before
    node.start()
    wait_for_state(client, f"/v1/snapshots/{made}", "Ready")
    assert runtime.state(handle).phase == "running"


def test_one_that_was_whole_when_its_worker_was_lost_is_taken_as_it_is(client, node, runtime, own_api):
    sandbox = create(client)
    node.keeper._snapshots._write_ready = lambda *_: None
    made = ask(client, sandbox)["id"]
    wait_until(runtime.snapshots, bool)
    node.lose()
    runtime.error = DaemonError("it must not be made twice")
    node.start()
    wait_for_state(client, f"/v1/snapshots/{made}", "Ready")


def test_one_whose_sandbox_was_lost_fails_in_words(client, node, runtime, own_api):
    sandbox = create(client)
    runtime.go.clear()
    made = ask(client, sandbox)["id"]
    assert runtime.begun.wait(10)
    node.keeper._snapshots._write_failed = lambda *_: None
    runtime.error = DaemonError("killed")
    runtime.go.set()
    node.lose()
    node.remove_all()
    node.start()
    failed = wait_for_state(client, f"/v1/snapshots/{made}", "Failed")["status"]
    assert "ended before the snapshot was made" in failed["message"]


@SANDBOXES_BY_HAND
def test_one_whose_node_never_comes_back_is_given_up(client, node, own_api):
    sandbox = create(client)
    node.lose()
    made = ask(client, sandbox)["id"]
    assert node.sweeper.run() == 0
    own_api.rows(
        "UPDATE sandbox_sessions SET state = 'Failed', ended_at = now() - interval '29 s' WHERE trial_id = %(i)s",
        i=sandbox,
    )
    node.sweeper.run()
    assert client.get(f"/v1/snapshots/{made}").json()["status"]["state"] == "Creating"
    own_api.rows(
        "UPDATE sandbox_sessions SET ended_at = now() - interval '31 s' WHERE trial_id = %(i)s", i=sandbox
    )
    node.sweeper.run()
    failed = client.get(f"/v1/snapshots/{made}").json()["status"]
    assert (failed["state"], failed["reason"]) == ("Failed", "snapshot_runtime_timeout")
    node.start()


def test_reconcile_removes_what_no_row_knows_and_fails_what_is_gone(client, node, runtime, own_api):
    sandbox = create(client)
    lost, kept = snapshot(client, sandbox), snapshot(client, sandbox)
    handle = handle_of(runtime, own_api, sandbox)
    runtime.remove_snapshot(f"wire-{node.id.hex}-{lost}")
    runtime.snapshot(handle, f"wire-{node.id.hex}-{uuid4()}")
    others = [f"wire-{uuid4().hex}-{uuid4()}", "by-hand"]
    for name in others:
        runtime.snapshot(handle, name)
    node.keeper.reconcile_snapshots()
    failed = client.get(f"/v1/snapshots/{lost}").json()["status"]
    assert (failed["state"], failed["reason"]) == ("Failed", "snapshot_runtime_missing_image")
    assert client.get(f"/v1/snapshots/{kept}").json()["status"]["state"] == "Ready"
    assert sorted(runtime.snapshots()) == sorted([*others, f"wire-{node.id.hex}-{kept}"])


def test_reconcile_does_not_believe_an_engine_that_is_away(client, node, runtime, monkeypatch):
    made = snapshot(client, create(client))

    def fail():
        raise DaemonError("the engine does not answer")

    monkeypatch.setattr(runtime, "snapshots", fail)
    with pytest.raises(DaemonError):
        node.keeper.reconcile_snapshots()
    assert client.get(f"/v1/snapshots/{made}").json()["status"]["state"] == "Ready"


def test_history_of_the_source_tells_of_it(client):
    sandbox = create(client)
    made = snapshot(client, sandbox)
    client.delete(f"/v1/snapshots/{made}")
    events = client.get(f"/v1/sandboxes/{sandbox}/record").json()["events"]
    told = [(event["reason"], event["message"]) for event in events if event["reason"].startswith("SNAP")]
    assert told == [
        (reason, made) for reason in ("SNAPSHOT_ACCEPTED", "SNAPSHOT_READY", "SNAPSHOT_DELETE_REQUESTED")
    ]
    assert UUID(made)


@pytest.fixture
def local(own_api, tmp_path, runtime_folder):  # noqa: F811
    """A node with real sandboxes, and how to give it a new runtime object, as a new worker has."""
    config = LocalConfig(state_dir=tmp_path / "local", bundle_dir=runtime_folder / "bundles", outlives=True)
    made = [LocalRuntime(config)]
    runtimes: dict[str, Any] = {"local": made[0]}
    with live_node(own_api.settings, own_api.world, runtimes) as node:

        def restart() -> None:
            node.lose()
            made.append(LocalRuntime(config))
            runtimes["local"] = made[-1]
            node.start()

        yield node, runtimes, restart
    for runtime in reversed(made):
        runtime.close()


@pytest.mark.skipif(not is_root(), reason="snapshots of local sandboxes need root")
def test_real_sandboxes_are_copied_and_restored_also_by_a_worker_that_adopted_them(local, own_api):
    _node, runtimes, restart = local
    client = own_api.client
    on_local = {"extensions": {"sandmill.runtime": "local"}}
    sandbox = create(client, **on_local)
    write(runtimes["local"], handle_of(runtimes["local"], own_api, sandbox), b"one")
    first = snapshot(client, sandbox)
    restart()
    write(runtimes["local"], handle_of(runtimes["local"], own_api, sandbox), b"two")
    client.post(f"/v1/sandboxes/{sandbox}/pause")
    wait_for_state(client, f"/v1/sandboxes/{sandbox}", "Paused")
    second = snapshot(client, sandbox)
    assert client.delete(f"/v1/sandboxes/{sandbox}").status_code == 204
    for made, text in ((first, b"one"), (second, b"two")):
        restored = restore(client, made).json()["id"]
        wait_for_state(client, f"/v1/sandboxes/{restored}", "Running")
        assert read(runtimes["local"], handle_of(runtimes["local"], own_api, restored)) == text
        assert client.delete(f"/v1/snapshots/{made}").status_code == 204
        assert read(runtimes["local"], handle_of(runtimes["local"], own_api, restored)) == text
    assert list(runtimes["local"].snapshots()) == []
    sizes = own_api.rows("SELECT size_bytes FROM snapshots")
    assert sizes == []
