"""The published OpenSandbox SDK against execd, unchanged."""

import asyncio
import io
import os
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from opensandbox.adapters.factory import AdapterFactory
from opensandbox.config import ConnectionConfig
from opensandbox.config.connection_sync import ConnectionConfigSync
from opensandbox.exceptions import SandboxApiException
from opensandbox.models.execd import RunCommandOpts
from opensandbox.models.execd_sync import ExecutionHandlersSync
from opensandbox.models.filesystem import (
    ContentReplaceEntry,
    DirectoryListEntry,
    MoveEntry,
    SearchEntry,
    SetPermissionEntry,
    WriteEntry,
)
from opensandbox.models.sandboxes import SandboxEndpoint
from opensandbox.sync.adapters.factory import AdapterFactorySync
from opensandbox.sync.services import CommandsSync, FilesystemSync

from tests.support.execd import RunningExecd, running_execd, wait_for


@pytest.fixture(params=[False, True], ids=["direct", "through the server proxy"])
def factory(request: pytest.FixtureRequest) -> Iterator[AdapterFactorySync]:
    """The proxied form differs: Content-Length bodies and full paths as file names."""
    config = ConnectionConfigSync(
        protocol="http", disable_metrics=True, use_server_proxy=request.param
    ).with_transport_if_missing()
    yield AdapterFactorySync(config)
    config.close_transport_if_owned()


@pytest.fixture
def endpoint(shared_execd: RunningExecd) -> SandboxEndpoint:
    return SandboxEndpoint(endpoint=f"127.0.0.1:{shared_execd.port}")


@pytest.fixture
def commands(factory: AdapterFactorySync, endpoint: SandboxEndpoint) -> CommandsSync:
    return factory.create_command_service(endpoint)


@pytest.fixture
def files(factory: AdapterFactorySync, endpoint: SandboxEndpoint) -> FilesystemSync:
    return factory.create_filesystem_service(endpoint)


def test_health(factory: AdapterFactorySync, endpoint: SandboxEndpoint) -> None:
    assert factory.create_health_service(endpoint).ping("any") is True


def test_a_command_with_options(commands: CommandsSync, tmp_path: Path) -> None:
    seen: list[str] = []
    execution = commands.run(
        'echo one; echo "$X"; pwd; echo err >&2',
        opts=RunCommandOpts(
            working_directory=str(tmp_path), envs={"X": "two"}, timeout=timedelta(seconds=10)
        ),
        handlers=ExecutionHandlersSync(on_stdout=lambda message: seen.append(message.text)),
    )
    assert execution.id is not None
    assert execution.exit_code == 0
    assert execution.text == f"one\ntwo\n{tmp_path}"
    assert seen == ["one\n", "two\n", f"{tmp_path}\n"]
    assert [message.text for message in execution.logs.stderr] == ["err\n"]
    assert execution.complete is not None


def test_argv_failures_and_timeouts(commands: CommandsSync) -> None:
    assert commands.run(["sh", "-c", "exit 3"]).exit_code == 3
    missing = commands.run(["/no/such"])
    assert missing.error is not None
    assert "No such file" in missing.error.value
    late = commands.run("sleep 30", opts=RunCommandOpts(timeout=timedelta(milliseconds=200)))
    assert late.error is not None
    assert late.error.name == "CommandExecError"
    assert late.exit_code == -1


def test_interrupt(commands: CommandsSync) -> None:
    started = threading.Event()
    ids: list[str] = []

    def on_init(init: object) -> None:
        ids.append(init.id)  # type: ignore[attr-defined]
        started.set()

    results: list[object] = []
    runner = threading.Thread(
        target=lambda: results.append(
            commands.run("sleep 30", handlers=ExecutionHandlersSync(on_init=on_init))
        )
    )
    runner.start()
    assert started.wait(5)
    commands.interrupt(ids[0])
    runner.join(5)
    assert results[0].error is not None  # type: ignore[attr-defined]
    with pytest.raises(SandboxApiException):
        commands.interrupt(ids[0])


def test_background_commands(commands: CommandsSync) -> None:
    execution = commands.run("echo one; sleep 0.3; echo two; exit 5", opts=RunCommandOpts(background=True))
    assert execution.id is not None
    assert (execution.exit_code, execution.error) == (None, None)
    running = commands.get_command_status(execution.id)
    assert (running.running, running.exit_code, running.finished_at) == (True, None, None)
    ended = wait_for(lambda: not (found := commands.get_command_status(execution.id or "")).running and found)
    assert (ended.id, ended.exit_code, ended.error) == (execution.id, 5, "exit status 5")
    assert ended.finished_at > ended.started_at
    logs = commands.get_background_command_logs(execution.id)
    assert (logs.content, logs.cursor) == ("one\ntwo\n", 8)
    assert commands.get_background_command_logs(execution.id, cursor=4).content == "two\n"
    with pytest.raises(SandboxApiException) as missing:
        commands.get_command_status("0" * 32)
    assert missing.value.status_code == 404


def test_sessions(commands: CommandsSync, tmp_path: Path) -> None:
    session_id = commands.create_session(working_directory=str(tmp_path))
    first = commands.run_in_session(session_id, "export A=1; B=2; pwd; echo err >&2; cd /")
    assert (first.id, first.exit_code) == (session_id, 0)
    assert first.text == f"{tmp_path}\nerr"
    assert commands.run_in_session(session_id, "echo $A $B; pwd").text == "1 2\n/"
    assert commands.run_in_session(session_id, "pwd", working_directory="/usr").text == "/usr"
    failed = commands.run_in_session(session_id, "exit 3")
    assert (failed.exit_code, failed.error and failed.error.name) == (3, "CommandExecError")
    late = commands.run_in_session(session_id, "sleep 9", timeout=timedelta(milliseconds=200))
    assert late.error is not None
    assert commands.run_in_session(session_id, "echo $A").text == "1"
    commands.delete_session(session_id)
    with pytest.raises(SandboxApiException):
        commands.run_in_session(session_id, "true")
    with pytest.raises(SandboxApiException) as missing:
        commands.delete_session(session_id)
    assert missing.value.status_code == 404


@pytest.mark.parametrize("value", ["plain", "two\nlines", 'it\'s "quoted" \\ back\tslash', "$HOME", ""])
def test_set_env_persists(factory: AdapterFactorySync, bundle: Path, tmp_path: Path, value: str) -> None:
    env = {"PATH": "/usr/bin:/bin", "EXECD_ENVS": str(tmp_path / "new" / ".env")}
    with running_execd(bundle, tmp_path, env=env) as execd:
        commands = factory.create_command_service(SandboxEndpoint(endpoint=f"127.0.0.1:{execd.port}"))
        commands.set_env("SAVED", value)
        assert execd.run('printf %s "$SAVED"').output().decode() == value


def test_files(files: FilesystemSync, tmp_path: Path) -> None:
    entries = [
        WriteEntry(path=f"{tmp_path}/text é.txt", data="grüße\n", mode=644),
        WriteEntry(path=f"{tmp_path}/sub/bytes", data=bytes(range(256)) * 1000),
        WriteEntry(path=f"{tmp_path}/stream", data=io.BytesIO(b"s" * 300_000)),
    ]
    files.write_files(entries)
    assert files.read_file(f"{tmp_path}/text é.txt") == "grüße\n"
    assert files.read_bytes(f"{tmp_path}/sub/bytes", range_header="bytes=1-3") == b"\x01\x02\x03"
    assert b"".join(files.read_bytes_stream(f"{tmp_path}/stream")) == b"s" * 300_000
    info = files.get_file_info([f"{tmp_path}/text é.txt", f"{tmp_path}/sub"])
    assert info[f"{tmp_path}/text é.txt"].mode == 644
    assert info[f"{tmp_path}/sub"].entry_type == "directory"
    found = files.search(SearchEntry(path=str(tmp_path), pattern="*"))
    assert sorted(entry.path for entry in found) == sorted(entry.path for entry in entries)
    with pytest.raises(SandboxApiException) as missing:
        files.get_file_info([f"{tmp_path}/no"])
    assert missing.value.status_code == 404


def test_the_asynchronous_sdk(endpoint: SandboxEndpoint, tmp_path: Path) -> None:
    async def session() -> str:
        config = ConnectionConfig(protocol="http", disable_metrics=True).with_transport_if_missing()
        factory = AdapterFactory(config)
        files = factory.create_filesystem_service(endpoint)
        await files.write_file(f"{tmp_path}/g", "hallo\n")
        await files.replace_contents(
            [ContentReplaceEntry(path=f"{tmp_path}/g", old_content="a", new_content="e")]
        )
        await files.move_files([MoveEntry(src=f"{tmp_path}/g", dest=f"{tmp_path}/f")])
        await files.set_permissions([SetPermissionEntry(path=f"{tmp_path}/f", mode=600)])
        await files.create_directories([WriteEntry(path=f"{tmp_path}/d")])
        (listed, _) = await files.list_directory(DirectoryListEntry(path=str(tmp_path)))
        assert listed.path == f"{tmp_path}/d"
        await files.delete_directories([f"{tmp_path}/d"])
        execution = await factory.create_command_service(endpoint).run(["cat", f"{tmp_path}/f"])
        await config.close_transport_if_owned()
        return execution.text

    assert asyncio.run(session()) == "hello"


def test_files_are_changed(files: FilesystemSync, tmp_path: Path) -> None:
    path = f"{tmp_path}/a b.txt"
    files.write_file(path, "one\ntwo\nthree\n", mode=600)
    assert files.read_file(path, offset=2, limit=1) == "two"
    files.replace_contents([ContentReplaceEntry(path=path, old_content="two", new_content="2")])
    (result,) = files.replace_contents_detailed(
        [ContentReplaceEntry(path=path, old_content="e", new_content="E")]
    )
    assert (result.path, result.replaced_count) == (path, 3)
    files.set_permissions([SetPermissionEntry(path=path, mode=640)])
    files.move_files([MoveEntry(src=path, dest=f"{tmp_path}/sub/b")])
    assert files.read_file(f"{tmp_path}/sub/b") == "onE\n2\nthrEE\n"
    assert files.get_file_info([f"{tmp_path}/sub/b"])[f"{tmp_path}/sub/b"].mode == 640
    files.delete_files([f"{tmp_path}/sub/b", f"{tmp_path}/missing"])
    with pytest.raises(SandboxApiException):
        files.move_files([MoveEntry(src=path, dest=f"{tmp_path}/x")])


def test_directories(files: FilesystemSync, tmp_path: Path) -> None:
    files.create_directories([WriteEntry(path=f"{tmp_path}/d/e", mode=750)])
    files.write_file(f"{tmp_path}/d/f", "x")
    listed = files.list_directory(DirectoryListEntry(path=f"{tmp_path}/d", depth=2))
    assert [(entry.path, entry.entry_type, entry.mode) for entry in listed] == [
        (f"{tmp_path}/d/e", "directory", 750),
        (f"{tmp_path}/d/f", "file", 755),
    ]
    files.delete_directories([f"{tmp_path}/d", f"{tmp_path}/missing"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_files_of_another_user(files: FilesystemSync, open_folder: Path) -> None:
    (open_folder / "home").mkdir()
    os.chown(open_folder / "home", 1234, 4321)
    theirs = files.with_identity(1234, 4321)
    theirs.write_file(f"{open_folder}/home/f", "x")
    status = (open_folder / "home" / "f").stat()
    assert (status.st_uid, status.st_gid) == (1234, 4321)
    with pytest.raises(SandboxApiException) as refused:
        theirs.write_file(f"{open_folder}/f", "x")
    assert refused.value.status_code == 403
