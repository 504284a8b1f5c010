"""Every public method of the published client's Sandbox and SandboxManager, against a real server. mark.docker"""

import ast
import shutil
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from opensandbox.exceptions import SandboxApiException
from opensandbox.models.execd import RunCommandOpts
from opensandbox.models.filesystem import SearchEntry, WriteEntry
from opensandbox.models.sandboxes import SandboxFilter, SnapshotFilter
from opensandbox.models.templates import CreateTemplateRequest, TemplateFilter
from opensandbox.sync import SandboxManagerSync, SandboxSync

from tests.support.execd import wait_for
from tests.support.live import LiveClient

pytestmark = pytest.mark.one_a_day("client")

NOT_OFFERED = {
    "isolation": "sandboxes within the sandbox: execd answers 404",
    "create_from_template": "templates are of another kind of cluster: 501",
    "create_template": "501",
    "get_template": "501",
    "list_templates": "501",
    "delete_template": "501",
    "get_egress_policy": "sandboxes have no way out yet: 501",
    "patch_egress_rules": "501",
    "delete_egress_rules": "501",
    "credential_vault": "501",
    "get_signed_endpoint": "needs a gateway: 400",
}
"""Each of them is called by a test all the same, and has to be refused in words."""


def test_a_sandbox_from_create_to_kill(client: LiveClient) -> None:
    before = datetime.now(UTC)
    with client.opened(
        env={"GREETING": "hello"}, metadata={"team": "a"}, timeout=timedelta(minutes=5)
    ) as box:
        assert box.is_healthy()
        info = box.get_info()
        assert (info.id, info.status.state, info.metadata) == (box.id, "Running", {"team": "a"})
        assert info.image.image == client.server.image
        assert timedelta(minutes=4) < info.expires_at - before < timedelta(minutes=6)
        assert box.commands.run('echo "$GREETING"').text == "hello"
        assert box.get_metrics().cpu_count > 0
        box.kill()
        with pytest.raises(SandboxApiException) as error:
            box.get_info()
        assert error.value.status_code == 404
        assert error.value.error.code == "DOCKER::SANDBOX_NOT_FOUND"
        assert error.value.request_id


def test_without_a_timeout_it_never_expires(client: LiveClient) -> None:
    with client.opened(timeout=None) as box:
        assert box.get_info().expires_at is None
        with pytest.raises(SandboxApiException) as error:
            box.renew(timedelta(minutes=10))
        assert (error.value.status_code, error.value.error.code) == (409, "DOCKER::INVALID_EXPIRATION")


def test_renew_moves_the_expiry_both_ways(client: LiveClient) -> None:
    with client.opened() as box:
        for minutes in (30, 2):
            box.renew(timedelta(minutes=minutes))
            left = box.get_info().expires_at - datetime.now(UTC)
            assert timedelta(minutes=minutes - 1) < left <= timedelta(minutes=minutes)


def test_another_process_connects(client: LiveClient) -> None:
    with client.opened() as box:
        box.files.write_files([WriteEntry(path="/tmp/a", data="kept", mode=644)])
        again = client.sandbox.connect(box.id, connection_config=client.config())
        assert again.files.read_file("/tmp/a") == "kept"
        own = int(again.commands.run("id -u").text)
        theirs = again.files_with_identity(own, own)
        theirs.write_files([WriteEntry(path="/tmp/b", data="mine", mode=600)])
        assert theirs.read_file("/tmp/b") == "mine"
        again.check_ready(timedelta(seconds=10), timedelta(milliseconds=100))
        again.close()


def test_pause_keeps_processes_and_files(client: LiveClient) -> None:
    with client.opened() as box:
        box.commands.run("echo state > /tmp/state; nohup sleep 300 >/dev/null 2>&1 & echo $! > /tmp/pid")
        box.pause()
        assert box.get_info().status.state == "Paused"
        assert not box.is_healthy()
        again = client.sandbox.resume(box.id, connection_config=client.config())
        assert again.get_info().status.state == "Running"
        assert (
            again.commands.run("cat /tmp/state; kill -0 $(cat /tmp/pid) && echo alive").text == "state\nalive"
        )
        again.close()


def test_metadata_is_patched(client: LiveClient) -> None:
    with client.opened(metadata={"a": "1", "b": "2"}) as box:
        assert box.patch_metadata({"a": None, "c": "3"}).metadata == {"b": "2", "c": "3"}
        assert box.get_info().metadata == {"b": "2", "c": "3"}
        with pytest.raises(SandboxApiException) as error:
            box.patch_metadata({"opensandbox.io/id": "x"})
        assert (error.value.status_code, error.value.error.code) == (400, "INVALID_METADATA_LABEL")


def test_any_port_is_reached(client: LiveClient) -> None:
    with client.opened() as box:
        server = Path(shutil.which("busybox") or pytest.fail("busybox-static is not installed")).read_bytes()
        box.files.write_files(
            [
                WriteEntry(path="/tmp/busybox", data=server, mode=755),
                WriteEntry(path="/tmp/www/deep/a b", data="served from inside", mode=644),
            ]
        )
        box.commands.run(
            "/tmp/busybox httpd -f -p 127.0.0.1:8080 -h /tmp/www", opts=RunCommandOpts(background=True)
        )
        endpoint = box.get_endpoint(8080)

        def ask() -> str | None:
            answer = httpx.get(f"http://{endpoint.endpoint}/deep/a%20b", headers=endpoint.headers or {})
            return answer.text if answer.status_code == 200 else None

        wait_for(lambda: ask() == "served from inside")


def test_all_of_it_through_the_server_proxy(client: LiveClient) -> None:
    config = client.config(use_server_proxy=True)
    with client.opened(config=config) as box:
        assert f"/v1/sandboxes/{box.id}/proxy/44772" in box.get_endpoint(44772).endpoint
        assert box.commands.run("echo one; echo two >&2; exit 4").exit_code == 4
        data = bytes(range(256)) * 4000
        box.files.write_files([WriteEntry(path="/tmp/blob", data=data, mode=600)])
        assert box.files.read_bytes("/tmp/blob") == data
        assert [entry.path for entry in box.files.search(SearchEntry(path="/tmp", pattern="blob"))] == [
            "/tmp/blob"
        ]


def test_a_manager_finds_and_ends_sandboxes(client: LiveClient) -> None:
    mark = uuid.uuid4().hex
    with (
        client.opened(metadata={"mark": mark, "n": "1"}) as first,
        client.opened(metadata={"mark": mark}) as second,
        client.managed() as manager,
    ):
        found = manager.list_sandbox_infos(SandboxFilter(metadata={"mark": mark}))
        assert {info.id for info in found.sandbox_infos} == {first.id, second.id}
        page = manager.list_sandbox_infos(SandboxFilter(metadata={"mark": mark}, page=2, page_size=1))
        assert [info.id for info in page.sandbox_infos] == [first.id]
        assert (page.pagination.total_items, page.pagination.has_next_page) == (2, False)
        manager.pause_sandbox(first.id)
        paused = manager.list_sandbox_infos(SandboxFilter(states=["Paused"], metadata={"mark": mark}))
        assert [info.id for info in paused.sandbox_infos] == [first.id]
        manager.resume_sandbox(first.id)
        assert manager.get_sandbox_info(first.id).status.state == "Running"
        manager.patch_sandbox_metadata(first.id, {"n": "2"})
        assert manager.get_sandbox_info(first.id).metadata == {"mark": mark, "n": "2"}
        manager.renew_sandbox(first.id, timedelta(minutes=20))
        for box in (first, second):
            manager.kill_sandbox(box.id)
        assert manager.list_sandbox_infos(SandboxFilter(metadata={"mark": mark})).sandbox_infos == []


def test_snapshot_and_restore(client: LiveClient) -> None:
    with client.opened() as box:
        path = "/var/tmp/kept"
        box.files.write_files([WriteEntry(path=path, data="v1", mode=644)])
        snapshot = box.create_snapshot("first")
        with client.managed() as manager:
            wait_for(lambda: manager.get_snapshot(snapshot.id).status.state == "Ready", seconds=60)
            assert snapshot.id in {
                each.id for each in manager.list_snapshots(SnapshotFilter()).snapshot_infos
            }
            box.kill()
            with client.opened(snapshot_id=snapshot.id) as restored:
                assert restored.files.read_file(path) == "v1"
                second = manager.create_snapshot(restored.id, "second")
                assert second.sandbox_id == restored.id
                wait_for(lambda: manager.get_snapshot(second.id).status.state == "Ready", seconds=60)
            for made in (snapshot, second):
                manager.delete_snapshot(made.id)
            with pytest.raises(SandboxApiException) as error:
                manager.get_snapshot(snapshot.id)
            assert error.value.status_code == 404


def test_diagnostics(client: LiveClient) -> None:
    with client.opened(entrypoint=["sh", "-c", "echo from the entrypoint; exec sleep 3600"]) as box:
        wait_for(lambda: "from the entrypoint" in (box.get_diagnostic_logs("container").content or ""))
        assert "RUNNING" in (box.get_diagnostic_events("runtime").content or "").upper()
        with client.managed() as manager:
            assert "from the entrypoint" in (manager.get_diagnostic_logs(box.id, "container").content or "")
            assert manager.get_diagnostic_events(box.id, "runtime").content
        with pytest.raises(SandboxApiException) as error:
            box.get_diagnostic_logs("nonsense")
        assert error.value.error.code == "DIAGNOSTICS_SCOPE_UNSUPPORTED"


def test_an_image_that_is_not_there_is_said_in_words(client: LiveClient) -> None:
    with (
        pytest.raises(SandboxApiException, match="no-such-image"),
        client.opened(image="no-such-image:here", ready_timeout=timedelta(seconds=20)),
    ):
        pass


def test_what_is_not_offered_is_refused_in_words(client: LiveClient) -> None:
    with client.opened() as box:
        for refused, status in (
            (box.get_egress_policy, 501),
            (lambda: box.patch_egress_rules([]), 501),
            (lambda: box.delete_egress_rules(["a.com"]), 501),
            (box.credential_vault.get, 501),
            (lambda: box.get_signed_endpoint(8080, int(time.time()) + 60), 400),
            (box.isolation.capabilities, 404),
        ):
            with pytest.raises(SandboxApiException) as error:
                refused()
            assert error.value.status_code == status
    with pytest.raises(SandboxApiException) as error:
        client.sandbox.create_from_template(
            "tpl-1", timeout=timedelta(minutes=1), connection_config=client.config()
        )
    assert error.value.status_code == 501
    with client.managed() as manager:
        asked = CreateTemplateRequest(image="a", publish="s3://b/c")
        for refused in (
            lambda: manager.create_template(asked),
            lambda: manager.get_template("t"),
            lambda: manager.list_templates(TemplateFilter()),
            lambda: manager.delete_template("t"),
        ):
            with pytest.raises(SandboxApiException) as error:
                refused()
            assert error.value.status_code == 501


def test_a_wrong_key_is_told(client: LiveClient) -> None:
    with pytest.raises(SandboxApiException) as error:
        client.sandbox.create(
            image=client.server.image,
            entrypoint=["sleep", "60"],
            connection_config=client.config(api_key="wrong"),
        )
    assert (error.value.status_code, error.value.error.code) == (401, "INVALID_API_KEY")


def test_many_at_once_are_all_there(client: LiveClient) -> None:
    """Twenty creates in threads: none lost, none doubled, all killed."""
    mark = uuid.uuid4().hex
    with ThreadPoolExecutor(20) as pool:
        made = list(
            pool.map(
                lambda _: client.sandbox.create(
                    image=client.server.image,
                    entrypoint=["tail", "-f", "/dev/null"],
                    metadata={"mark": mark},
                    resource={"cpu": "0.2", "memory": "64Mi"},
                    ready_timeout=timedelta(seconds=90),
                    connection_config=client.config(request_timeout=timedelta(seconds=90)),
                ),
                range(20),
            )
        )
    try:
        assert len({box.id for box in made}) == 20
        assert all(box.commands.run("echo here").text == "here" for box in made)
    finally:
        for box in made:
            box.kill()
            box.close()
    with client.managed() as manager:
        assert manager.list_sandbox_infos(SandboxFilter(metadata={"mark": mark})).sandbox_infos == []


@pytest.mark.parametrize(
    ("tested", "owners"),
    [
        (SandboxSync, {"box", "again", "restored", "sandbox", "first", "second"}),
        (SandboxManagerSync, {"manager", "_manager"}),
    ],
)
def test_every_method_has_a_test(tested: type, owners: set[str]) -> None:
    called = set()
    for file in [*Path(__file__).parent.glob("test_*.py"), Path(__file__).parents[2] / "support" / "live.py"]:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
                owner = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
                if owner in owners:
                    called.add(node.attr)
    methods = {name for name in vars(tested) if not name.startswith("_")}
    left = methods - called - {"origin", "connection_config", "id", "diagnostics", "metrics", "destroy"}
    assert left - set(NOT_OFFERED) == set()
