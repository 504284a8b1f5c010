"""The form of output events before line ends were kept, which older clients expect."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from opensandbox.models.execd_sync import ExecutionHandlersSync
from opensandbox.models.sandboxes import SandboxEndpoint
from opensandbox.sync.services import CommandsSync

from tests.support.execd import running_execd
from tests.support.sdk import FLAVOURS, connected


@pytest.fixture(scope="module")
def older(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxEndpoint]:
    """A daemon that strips line ends."""
    env = {"PATH": os.environ["PATH"], "EXECD_STRIP_NEWLINES": "1"}
    with running_execd(bundle, tmp_path_factory.mktemp("older"), env=env) as running:
        yield SandboxEndpoint(endpoint=f"127.0.0.1:{running.port}")


@pytest.fixture(params=FLAVOURS)
def commands(request: pytest.FixtureRequest, older: SandboxEndpoint) -> Iterator[CommandsSync]:
    with connected(request.param, older) as services:
        yield services.commands


def test_each_event_is_a_line_without_its_end(commands: CommandsSync) -> None:
    seen: list[str] = []
    handlers = ExecutionHandlersSync(on_stdout=lambda message: seen.append(message.text))
    execution = commands.run(r"printf 'one\ntwo\r\nthree\rfour'; echo err >&2", handlers=handlers)
    assert seen == ["one", "two", "three", "four"]
    assert [message.text for message in execution.logs.stderr] == ["err"]
    assert execution.text == "one\ntwo\nthree\nfour"


def test_sessions_speak_the_same_form(commands: CommandsSync) -> None:
    session_id = commands.create_session()
    execution = commands.run_in_session(session_id, "echo one; echo two")
    assert [message.text for message in execution.logs.stdout] == ["one", "two"]
    commands.delete_session(session_id)


def test_an_empty_line_is_a_line_end(commands: CommandsSync) -> None:
    execution = commands.run(r"printf 'a\n\nb\n'")
    assert [message.text for message in execution.logs.stdout] == ["a", "\n", "b"]
