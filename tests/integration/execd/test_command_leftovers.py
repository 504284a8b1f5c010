"""`kill_leftovers`: what a command leaves running is dead before its stream ends."""

import time
from pathlib import Path

from tests.support.execd import RunningExecd, end_process, is_alive, until


def test_a_daemon_that_holds_the_outputs_does_not_delay_the_end(execd: RunningExecd, tmp_path: Path) -> None:
    started = time.monotonic()
    outcome = execd.run("(setsid yes &); sleep 0.1; echo $! >x; echo main >&2", kill_leftovers=True)
    assert time.monotonic() - started < 2
    assert outcome.output("stderr") == b"main\n"
    assert outcome.last["reason"] == "exit"


def test_a_daemon_is_dead_when_the_stream_has_ended(execd: RunningExecd) -> None:
    daemon = int(execd.run("setsid sleep 99 >/dev/null 2>&1 & echo $!", kill_leftovers=True).output())
    assert not is_alive(daemon)


def test_without_the_flag_it_lives_on(execd: RunningExecd) -> None:
    daemon = int(execd.run("setsid sleep 99 >/dev/null 2>&1 & echo $!", kill_leftovers=False).output())
    try:
        assert is_alive(daemon)
        execd.run("true", kill_leftovers=True)
        assert is_alive(daemon)
    finally:
        end_process(daemon)


def test_a_command_that_failed_or_was_interrupted_leaves_nothing_either(
    execd: RunningExecd, tmp_path: Path
) -> None:
    failed = execd.run("setsid sleep 99 >/dev/null 2>&1 & echo $!; exit 3", kill_leftovers=True)
    assert failed.last["exit_code"] == 3
    assert not is_alive(int(failed.output()))
    script = "trap 'exit 0' TERM; setsid sleep 99 & echo $! >pid; echo ready; while :; do sleep 0.05; done"
    with execd.streaming(script, kill_leftovers=True) as events:
        seen = until(events, "ready")
        execd.client.delete("/command", params={"id": seen[0]["text"]})
        assert not is_alive(int((tmp_path / "pid").read_text()))


def test_a_daemon_that_leads_processes_of_other_commands_is_told_from_them(
    execd: RunningExecd, tmp_path: Path
) -> None:
    other = "(setsid bash -c 'echo $$ >other; exec sleep 98' &); sleep 0.1; echo ready; sleep 98"
    with execd.streaming(other) as events:
        until(events, "ready")
        outcome = execd.run("(setsid sleep 97 &); echo main", kill_leftovers=True)
        assert outcome.output() == b"main\n"
        assert is_alive(int((tmp_path / "other").read_text()))
