"""Nothing of a command survives its timeout, its interruption or its client, whatever it does to hide."""

import contextlib
import os
import threading
import time
from pathlib import Path

import httpx
import pytest

from tests.support.execd import RunningExecd, end_process, is_alive, until, wait_for

# Each leaves pids in the file `pids`, prints "ready" and waits.
HIDDEN = "bash -c 'echo $$ >pids; exec sleep 99'"
MAIN_THREAD_GONE = """\
import ctypes, os, threading, time
open('pids', 'w').write(str(os.getpid()))
threading.Thread(target=time.sleep, args=(99,)).start()
print('ready', flush=True)
ctypes.CDLL(None).pthread_exit(0)
"""
FAMILIES = {
    "plain child": "sleep 99 & echo $! >pids; echo ready; wait",
    "own session": "setsid sleep 99 & echo $! >pids; echo ready; wait",
    "double fork, own session": f"(setsid {HIDDEN} &); sleep 0.1; echo ready; sleep 99",
    "closed outputs": f"(setsid {HIDDEN} >/dev/null 2>&1 &); sleep 0.1; echo ready; sleep 99",
    "deaf to TERM": f"trap '' TERM INT HUP; {HIDDEN} & sleep 0.1; echo ready; wait; sleep 99",
    "stopped": "sleep 99 & echo $! $$ >pids; kill -STOP $!; echo ready; kill -STOP $$",
    "without environment": f"(setsid env -i /bin/{HIDDEN} &); sleep 0.1; echo ready; sleep 99",
    "main thread gone": f'(setsid python3 -c "{MAIN_THREAD_GONE}" &); sleep 99',
}
NESTED_SESSIONS = """\
echo $$ >>pids
[ "$1" -gt 0 ] && for i in 1 2; do setsid bash nested.sh $(($1-1)) >/dev/null 2>&1 & done
sleep 50
"""


def family_pids(work: Path) -> list[int]:
    text = wait_for(lambda: (work / "pids").exists() and (work / "pids").read_text().strip())
    return [int(pid) for pid in text.split()]


@pytest.fixture(params=FAMILIES.values(), ids=FAMILIES.keys())
def family(request: pytest.FixtureRequest) -> str:
    return request.param


def test_timeout_kills_the_whole_family(execd: RunningExecd, tmp_path: Path, family: str) -> None:
    started = time.monotonic()
    outcome = execd.run(family, timeout=1000)
    assert time.monotonic() - started < 3
    assert outcome.output().strip() == b"ready"
    assert outcome.last["type"] == "error"
    assert outcome.last["reason"] == "timeout"
    assert outcome.last["exit_code"] is None
    assert 1000 <= outcome.last["execution_time"] < 3000
    assert [pid for pid in family_pids(tmp_path) if is_alive(pid)] == []


def test_leaving_client_kills_the_whole_family_at_once(
    execd: RunningExecd, tmp_path: Path, family: str
) -> None:
    with execd.streaming(family) as events:
        until(events, "ready")
        pids = family_pids(tmp_path)
        assert all(is_alive(pid) for pid in pids)
        left = time.monotonic()
    wait_for(lambda: not any(is_alive(pid) for pid in pids), seconds=2)
    assert time.monotonic() - left < 1


def test_interrupt_kills_the_whole_family_and_answers_when_nothing_is_left(
    execd: RunningExecd, tmp_path: Path, family: str
) -> None:
    with execd.streaming(family) as events:
        seen = until(events, "ready")
        pids = family_pids(tmp_path)
        response = execd.client.delete("/command", params={"id": seen[0]["text"], "grace_ms": "200"})
        assert response.status_code == 200
        assert not any(is_alive(pid) for pid in pids)
        last = list(events)[-1]
    assert last["type"] == "error"
    assert last["reason"] == "killed_by_client"


def test_interrupt_lets_a_program_clean_up_within_its_grace(execd: RunningExecd, tmp_path: Path) -> None:
    script = "trap 'echo cleaned >done; exit 7' TERM; echo ready; while :; do sleep 0.05; done"
    with execd.streaming(script) as events:
        seen = until(events, "ready")
        started = time.monotonic()
        assert execd.client.delete("/command", params={"id": seen[0]["text"]}).status_code == 200
        assert time.monotonic() - started < 2
        last = list(events)[-1]
    assert (tmp_path / "done").read_text() == "cleaned\n"
    assert (last["reason"], last["exit_code"], last["signal"]) == ("killed_by_client", 7, None)


def test_interrupt_of_an_unknown_or_finished_command_is_a_runtime_error(execd: RunningExecd) -> None:
    finished = execd.run("true").id
    for execution_id in (finished, "nope"):
        response = execd.client.delete("/command", params={"id": execution_id})
        assert response.status_code == 500
        assert response.json()["code"] == "RUNTIME_ERROR"


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ({}, "MISSING_QUERY"),
        ({"id": "x", "grace_ms": "-1"}, "INVALID_QUERY"),
        ({"id": "x", "grace_ms": "60001"}, "INVALID_QUERY"),
    ],
)
def test_interrupt_refuses_a_bad_query(execd: RunningExecd, query: dict[str, str], code: str) -> None:
    response = execd.client.delete("/command", params=query)
    assert response.status_code == 400
    assert response.json()["code"] == code


def test_a_kill_spares_other_commands_and_daemons_of_earlier_ones(
    execd: RunningExecd, tmp_path: Path
) -> None:
    daemon = int(execd.run("setsid sleep 99 >/dev/null 2>&1 & echo $!").output())
    try:
        with execd.streaming(
            "(setsid bash -c 'echo $$ >other; exec sleep 98' &); sleep 0.1; echo ready; sleep 98"
        ) as events:
            until(events, "ready")
            other = int((tmp_path / "other").read_text())
            assert execd.run("(setsid sleep 97 &); sleep 97", timeout=200).last["reason"] == "timeout"
            assert is_alive(daemon)
            assert is_alive(other)
        wait_for(lambda: not is_alive(other))
        assert is_alive(daemon)
    finally:
        end_process(daemon)


def test_a_hundred_processes_in_sessions_of_their_own_are_ended_by_the_timeout(
    execd: RunningExecd, tmp_path: Path
) -> None:
    (tmp_path / "nested.sh").write_text(NESTED_SESSIONS)
    outcome = execd.run("bash nested.sh 6", timeout=700)
    assert outcome.last["reason"] == "timeout"
    assert [pid for pid in family_pids(tmp_path) if is_alive(pid)] == []


def test_a_command_with_a_reader_that_does_not_read_still_times_out(
    execd: RunningExecd, tmp_path: Path
) -> None:
    with execd.streaming("echo $$ >pids; echo ready; yes", timeout=500) as events:
        next(events)
        (pid,) = family_pids(tmp_path)
        wait_for(lambda: not is_alive(pid), seconds=3)


def test_zombies_are_collected(execd: RunningExecd) -> None:
    execd.run("for i in 1 2 3 4 5; do (setsid true &) ; done; sleep 0.1")
    children = Path(f"/proc/{execd.pid}/task/{execd.pid}/children")
    wait_for(lambda: children.read_text() == "")


def test_shutdown_ends_commands_and_everything_they_left(execd: RunningExecd, tmp_path: Path) -> None:
    daemon = int(execd.run("setsid sleep 99 >/dev/null 2>&1 & echo $!").output())

    def stream() -> None:
        with contextlib.suppress(httpx.HTTPError):
            httpx.post(execd.url + "/command", json={"command": "echo $$ >pids; sleep 99"}, timeout=20)

    reader = threading.Thread(target=stream)
    reader.start()
    (pid,) = family_pids(tmp_path)
    execd.process.terminate()
    assert execd.process.wait(5) == 0
    reader.join(5)
    assert not is_alive(pid)
    assert not is_alive(daemon)
    assert is_alive(os.getpid())


def test_whoever_left_the_group_is_asked_to_end_once_as_well(execd: RunningExecd, tmp_path: Path) -> None:
    asked = f"trap 'echo asked >>{tmp_path}/asked' TERM; echo ready; while :; do sleep 0.05; done"
    with execd.streaming(f'setsid sh -c "{asked}" & {asked}') as events:
        execution_id = next(events)["text"]
        until(events, "ready")
        until(events, "ready")
        parameters = {"id": execution_id, "grace_ms": 500}
        assert execd.client.delete("/command", params=parameters).status_code == 200
    assert (tmp_path / "asked").read_text() == "asked\n" * 2
