"""The published OpenSandbox SDK against execd, unchanged."""

import asyncio
import io
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
from opensandbox.models.filesystem import SearchEntry, WriteEntry
from opensandbox.models.sandboxes import SandboxEndpoint
from opensandbox.sync.adapters.factory import AdapterFactorySync
from opensandbox.sync.services import CommandsSync, FilesystemSync

from tests.support.execd import RunningExecd, running_execd


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
        await files.write_file(f"{tmp_path}/f", "hello\n")
        execution = await factory.create_command_service(endpoint).run(["cat", f"{tmp_path}/f"])
        await config.close_transport_if_owned()
        return execution.text

    assert asyncio.run(session()) == "hello"
