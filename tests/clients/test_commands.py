"""Commands by the published client."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import pytest
from opensandbox.exceptions import InvalidArgumentException, SandboxApiException
from opensandbox.models.execd import Execution, RunCommandOpts
from opensandbox.models.execd_sync import ExecutionHandlersSync
from opensandbox.sync.services import CommandsSync

from tests.support.execd import RunningExecd, wait_for

NOBODY = "0" * 32


def test_output_and_exit_code_of_shell_text(commands: CommandsSync) -> None:
    execution = commands.run("echo one; echo err >&2; printf 'no line end'; exit 3")
    assert execution.id is not None
    assert [message.text for message in execution.logs.stdout] == ["one\n", "no line end"]
    assert [(message.text, message.is_error) for message in execution.logs.stderr] == [("err\n", True)]
    assert (execution.text, execution.exit_code, execution.complete) == ("one\nno line end", 3, None)
    assert execution.error is not None
    assert (execution.error.name, execution.error.value) == ("CommandExecError", "3")


def test_a_list_of_arguments_meets_no_shell(commands: CommandsSync) -> None:
    arguments = ["$HOME", "two words", "*", "", "ü\n"]
    execution = commands.run(["printf", "%s|", *arguments])
    assert "".join(message.text for message in execution.logs.stdout) == "|".join([*arguments, ""])
    assert (execution.exit_code, execution.error) == (0, None)
    assert execution.complete is not None
    assert execution.complete.execution_time_in_millis >= 0


def test_blank_lines_and_line_ends_are_kept(commands: CommandsSync) -> None:
    execution = commands.run(r"printf 'a\n\nb\r\n\n\nc'")
    assert "".join(message.text for message in execution.logs.stdout) == "a\n\nb\r\n\n\nc"
    assert execution.text == "a\n\nb\n\n\nc"


def test_options(commands: CommandsSync, tmp_path: Path) -> None:
    options = RunCommandOpts(
        working_directory=str(tmp_path), envs={"X": "a b\n$HOME"}, timeout=timedelta(seconds=30)
    )
    execution = commands.run('pwd; printf %s "$X"', opts=options)
    assert execution.text == f"{tmp_path}\na b\n$HOME"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize(("gid", "expected"), [(4321, "1234:4321"), (None, "1234:1234")])
def test_options_name_another_user(commands: CommandsSync, gid: int | None, expected: str) -> None:
    options = RunCommandOpts(working_directory="/", uid=1234, gid=gid)
    assert commands.run('echo "$(id -u):$(id -g)"', opts=options).text == expected


def test_a_timeout_ends_the_command_and_keeps_its_output(commands: CommandsSync) -> None:
    late = commands.run("echo on; sleep 60", opts=RunCommandOpts(timeout=timedelta(milliseconds=300)))
    assert late.error is not None
    assert (late.error.name, late.exit_code, late.text) == ("CommandTimeoutError", -1, "on")


def test_a_program_that_is_not_there_is_an_error(commands: CommandsSync) -> None:
    missing = commands.run(["/no/such"])
    assert missing.error is not None
    assert "No such file" in missing.error.value


def test_what_execd_refuses_is_raised_with_its_words(commands: CommandsSync) -> None:
    with pytest.raises(SandboxApiException) as refused:
        commands.run("true", opts=RunCommandOpts(working_directory="/no/such"))
    assert refused.value.status_code == 400
    assert refused.value.error.code == "INVALID_REQUEST_BODY"
    assert "cwd" in str(refused.value)


def test_handlers_see_every_event_in_order(commands: CommandsSync) -> None:
    seen: list[tuple[str, Any]] = []

    def note(name: str) -> Any:
        return lambda event: seen.append((name, event))

    names = ("on_init", "on_stdout", "on_stderr", "on_execution_complete", "on_error", "on_result")
    handlers = ExecutionHandlersSync(**{name: note(name) for name in names})
    execution = commands.run("echo one; sleep 0.1; echo err >&2; sleep 0.1; echo two", handlers=handlers)
    assert [name for name, _ in seen] == [
        *("on_init", "on_stdout", "on_stderr", "on_stdout", "on_execution_complete")
    ]
    assert [event.text for _, event in seen[1:-1]] == ["one\n", "err\n", "two\n"]
    assert seen[0][1].id == execution.id
    del seen[:]
    commands.run("exit 9", handlers=handlers)
    assert [(name, getattr(event, "value", None)) for name, event in seen][-1] == ("on_error", "9")


def test_handlers_may_be_the_only_ones_to_get_the_output(commands: CommandsSync) -> None:
    seen: list[str] = []
    handlers = ExecutionHandlersSync(
        on_stdout=lambda message: seen.append(message.text), skip_accumulation=True
    )
    execution = commands.run("seq 1000", handlers=handlers)
    assert "".join(seen) == "".join(f"{number}\n" for number in range(1, 1001))
    assert (execution.logs.stdout, execution.exit_code) == ([], 0)


def test_many_commands_at_once_do_not_mix(commands: CommandsSync) -> None:
    def run(number: int) -> tuple[str, int | None]:
        execution = commands.run(f"echo {number}; sleep 0.2; echo {number}; exit {number}")
        return execution.text, execution.exit_code

    with ThreadPoolExecutor(20) as pool:
        found = list(pool.map(run, range(20)))
    assert found == [(f"{number}\n{number}", number) for number in range(20)]


class Running:
    """A command in a thread; entered once it is announced."""

    def __init__(self, commands: CommandsSync, command: str) -> None:
        self._commands, self._command = commands, command
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.id = ""
        self.execution: Execution | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(10)

    def _run(self) -> None:
        self.execution = self._commands.run(
            self._command, handlers=ExecutionHandlersSync(on_init=self._on_init)
        )

    def _on_init(self, init: Any) -> None:
        self.id = init.id
        self._started.set()


def test_an_interrupt_ends_a_command(commands: CommandsSync) -> None:
    with Running(commands, "sleep 60") as running:
        commands.interrupt(running.id)
    assert running.execution is not None
    assert running.execution.error is not None
    assert running.execution.exit_code == -1
    for gone in (running.id, NOBODY):
        with pytest.raises(SandboxApiException) as refused:
            commands.interrupt(gone)
        assert refused.value.status_code == 500


def test_the_status_of_a_command_that_runs_and_of_one_that_ended(commands: CommandsSync) -> None:
    with Running(commands, "sleep 60") as running:
        status = commands.get_command_status(running.id)
        assert (status.running, status.exit_code, status.finished_at) == (True, None, None)
        assert (status.id, status.content, status.error) == (running.id, "sleep 60", None)
        commands.interrupt(running.id)
    ended = commands.get_command_status(running.id)
    assert (ended.running, ended.error is None) == (False, False)
    assert ended.started_at is not None
    assert ended.finished_at is not None
    assert ended.finished_at >= ended.started_at
    with pytest.raises(SandboxApiException) as missing:
        commands.get_command_status(NOBODY)
    assert missing.value.status_code == 404


def test_a_background_command_and_its_log(commands: CommandsSync, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    execution = commands.run(
        f"echo one; echo err >&2; until [ -e {gate} ]; do sleep 0.02; done; printf zwölf; exit 5",
        opts=RunCommandOpts(background=True),
    )
    assert execution.id is not None
    assert (execution.exit_code, execution.error) == (None, None)
    first = wait_for(
        lambda: (logs := commands.get_background_command_logs(execution.id)).cursor == 8 and logs
    )
    assert sorted(first.content.split()) == ["err", "one"]
    assert commands.get_command_status(execution.id).running
    gate.touch()
    ended = wait_for(lambda: not (found := commands.get_command_status(execution.id or "")).running and found)
    assert (ended.exit_code, ended.error) == (5, "exit status 5")
    rest = commands.get_background_command_logs(execution.id, cursor=first.cursor)
    assert (rest.content, rest.cursor) == ("zwölf", 14)
    assert commands.get_background_command_logs(execution.id, cursor=14).content == ""
    with pytest.raises(SandboxApiException) as missing:
        commands.get_background_command_logs(NOBODY)
    assert missing.value.status_code == 404


@pytest.mark.parametrize(
    "value", ["plain", "two\nlines", 'it\'s "quoted" \\ back\tslash', "$HOME `id` \\n", " é ", ""]
)
def test_a_variable_is_kept_for_commands_and_sessions(
    commands: CommandsSync, daemon: RunningExecd, value: str
) -> None:
    commands.set_env("SAVED", "older")
    commands.set_env("SAVED", value)
    assert daemon.run('printf %s "$SAVED"').output().decode() == value
    session_id = commands.create_session()
    in_session = commands.run_in_session(session_id, 'printf "%s." "$SAVED"')
    assert "".join(message.text for message in in_session.logs.stdout) == f"{value}."
    commands.delete_session(session_id)


def test_no_variable_has_a_bad_name(commands: CommandsSync) -> None:
    with pytest.raises(InvalidArgumentException):
        commands.set_env("a-b", "x")


def test_a_session_keeps_its_state(commands: CommandsSync, tmp_path: Path) -> None:
    session_id = commands.create_session(working_directory=str(tmp_path))
    first = commands.run_in_session(session_id, "export A=1; B=2; pwd; echo err >&2; cd /")
    assert (first.id, first.exit_code, first.text) == (session_id, 0, f"{tmp_path}\nerr")
    assert commands.run_in_session(session_id, "echo $A $B; pwd").text == "1 2\n/"
    assert commands.run_in_session(session_id, "pwd", working_directory="/usr").text == "/usr"
    failed = commands.run_in_session(session_id, "exit 3")
    assert (failed.exit_code, failed.error and failed.error.name) == (3, "CommandExecError")
    late = commands.run_in_session(session_id, "sleep 60", timeout=timedelta(milliseconds=300))
    assert late.error is not None
    seen: list[str] = []
    handlers = ExecutionHandlersSync(on_stdout=lambda message: seen.append(message.text))
    assert commands.run_in_session(session_id, "echo $A", handlers=handlers).text == "1"
    assert seen == ["1\n"]
    commands.delete_session(session_id)


def test_a_session_that_is_gone_is_an_error(commands: CommandsSync) -> None:
    session_id = commands.create_session()
    commands.delete_session(session_id)
    with pytest.raises(SandboxApiException):
        commands.run_in_session(session_id, "true")
    with pytest.raises(SandboxApiException) as missing:
        commands.delete_session(session_id)
    assert missing.value.status_code == 404
    with pytest.raises(SandboxApiException) as refused:
        commands.create_session(working_directory="/no/such")
    assert refused.value.status_code == 400
