"""The published client in sandboxes of every real runtime: each group of calls once, in both flavours."""

import uuid
from collections.abc import Iterator
from datetime import timedelta

import pytest
from opensandbox.exceptions import SandboxApiException
from opensandbox.models.execd import RunCommandOpts
from opensandbox.models.filesystem import (
    ContentReplaceEntry,
    DirectoryListEntry,
    MoveEntry,
    SearchEntry,
    SetPermissionEntry,
    WriteEntry,
)
from opensandbox.models.sandboxes import SandboxEndpoint

from runtimes.base import EXECD_PORT
from tests.support.execd import wait_for
from tests.support.sandboxes import Kind
from tests.support.sdk import FLAVOURS, Services, connected
from tests.support.tcp_relay import tcp_relay

MEMORY_MIB = 200


@pytest.fixture(scope="module")
def sandbox(real_kind: Kind) -> Iterator[SandboxEndpoint]:
    """One sandbox of each runtime, whose code may steer its execd."""
    limits = {"memory_bytes": MEMORY_MIB << 20, "cpu_millicores": 500}
    with real_kind.box(workdir="/work", is_sealed=False, limits=limits) as box:

        def connect():
            return box.runtime.connect(box.handle, EXECD_PORT, timeout_seconds=10)

        with tcp_relay(connect) as port:
            headers = dict(box.client._headers)
            yield SandboxEndpoint(endpoint=f"127.0.0.1:{port}", headers=headers)


@pytest.fixture(params=FLAVOURS)
def services(request: pytest.FixtureRequest, sandbox: SandboxEndpoint) -> Iterator[Services]:
    with connected(request.param, sandbox) as made:
        yield made


def test_commands(services: Services) -> None:
    commands = services.commands
    execution = commands.run("echo one; pwd; echo err >&2; exit 3")
    assert (execution.text, execution.exit_code) == ("one\n/work", 3)
    assert [message.text for message in execution.logs.stderr] == ["err\n"]
    late = commands.run(
        "echo on; sleep 60 & sleep 60", opts=RunCommandOpts(timeout=timedelta(milliseconds=500))
    )
    assert (late.exit_code, late.text) == (-1, "on")
    background = commands.run("echo one; sleep 60", opts=RunCommandOpts(background=True)).id or ""
    wait_for(lambda: commands.get_background_command_logs(background).content == "one\n")
    assert commands.get_command_status(background).running
    commands.interrupt(background)
    assert commands.get_command_status(background).running is False


def test_variables_and_sessions(services: Services) -> None:
    commands, value = services.commands, f"it's {uuid.uuid4()}"
    commands.set_env("SAVED", value)
    assert commands.run('echo "$SAVED"').text == value
    session_id = commands.create_session(working_directory="/tmp")
    assert commands.run_in_session(session_id, "export A=1; pwd; cd /").text == "/tmp"
    assert commands.run_in_session(session_id, 'echo "$A $SAVED"; pwd').text == f"1 {value}\n/"
    assert commands.run_in_session(session_id, "exit 3").exit_code == 3
    commands.delete_session(session_id)
    with pytest.raises(SandboxApiException):
        commands.delete_session(session_id)


def test_files(services: Services) -> None:
    files, folder, data = services.files, f"/work/{uuid.uuid4()}", bytes(range(256)) * 1000
    files.create_directories([WriteEntry(path=f"{folder}/d", mode=750)])
    files.write_files(
        [WriteEntry(path=f"{folder}/ü", data="one\ntwo\n"), WriteEntry(path=f"{folder}/d/b", data=data)]
    )
    files.write_file(f"{folder}/f", "x", mode=600)
    assert services.commands.run(["cat", f"{folder}/ü"]).text == "one\ntwo"
    files.replace_contents([ContentReplaceEntry(path=f"{folder}/ü", old_content="two", new_content="2")])
    (result,) = files.replace_contents_detailed(
        [ContentReplaceEntry(path=f"{folder}/ü", old_content="o", new_content="O")]
    )
    assert result.replaced_count == 1
    files.move_files([MoveEntry(src=f"{folder}/ü", dest=f"{folder}/d/moved")])
    assert files.read_file(f"{folder}/d/moved", offset=1, limit=1) == "One"
    assert files.read_bytes(f"{folder}/d/b", range_header="bytes=-3") == b"\xfd\xfe\xff"
    assert b"".join(files.read_bytes_stream(f"{folder}/d/b")) == data
    files.set_permissions([SetPermissionEntry(path=f"{folder}/f", mode=640)])
    assert files.get_file_info([f"{folder}/f"])[f"{folder}/f"].mode == 640
    assert len(files.search(SearchEntry(path=folder, pattern="*"))) == 3
    assert len(files.list_directory(DirectoryListEntry(path=folder, depth=2))) == 4
    files.delete_files([f"{folder}/f"])
    files.delete_directories([folder])
    with pytest.raises(SandboxApiException) as missing:
        files.get_file_info([folder])
    assert missing.value.status_code == 404


def test_health_and_metrics_are_the_sandboxs_own(services: Services) -> None:
    assert services.health.ping("any") is True
    metrics = services.metrics.get_metrics("any")
    assert (metrics.cpu_count, metrics.memory_total_in_mib) == (0.5, MEMORY_MIB)
    assert 0 < metrics.memory_used_in_mib < MEMORY_MIB
