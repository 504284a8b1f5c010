"""Commands without a client: started, looked at, ended."""

import time
from typing import Any

import httpx
import pytest

from tests.support.execd import RunningExecd, is_alive, wait_for

CURSOR = "EXECD-COMMANDS-TAIL-CURSOR"


def start(execd: RunningExecd, command: str, **fields: Any) -> str:
    outcome = execd.run(command, background=True, **fields)
    assert [event["type"] for event in outcome.events] == ["init", "ping", "execution_complete"]
    return outcome.id


def status(execd: RunningExecd, execution_id: str) -> dict[str, Any]:
    response = execd.client.get(f"/command/status/{execution_id}")
    assert response.status_code == 200
    document: dict[str, Any] = response.json()
    return document


def wait(execd: RunningExecd, execution_id: str) -> dict[str, Any]:
    response = execd.client.get(f"/command/{execution_id}/wait", params={"timeout_ms": 10_000})
    document: dict[str, Any] = response.json()
    assert document["running"] is False
    return document


def logs(execd: RunningExecd, execution_id: str, cursor: int | None = None) -> httpx.Response:
    params = {} if cursor is None else {"cursor": cursor}
    response = execd.client.get(f"/command/{execution_id}/logs", params=params)
    assert response.status_code == 200
    return response


def test_a_background_command_answers_at_once_and_runs_on(shared_execd: RunningExecd) -> None:
    started = time.monotonic()
    execution_id = start(shared_execd, "echo begun; sleep 1; echo done; exit 4")
    assert time.monotonic() - started < 0.8
    while_running = status(shared_execd, execution_id)
    assert (while_running["running"], while_running["exit_code"]) == (True, None)
    assert (while_running["finished_at"], while_running["reason"]) == (None, None)
    assert while_running["content"] == "echo begun; sleep 1; echo done; exit 4"
    after = wait(shared_execd, execution_id)
    assert (after["exit_code"], after["reason"], after["error"]) == (4, "exit", "exit status 4")
    assert after["finished_at"] > after["started_at"]
    assert after["duration_ms"] >= 1000
    assert logs(shared_execd, execution_id).content == b"begun\ndone\n"


def test_stderr_is_merged_and_stdin_is_empty_unless_given(shared_execd: RunningExecd) -> None:
    script = "for i in 1 2 3; do echo out $i; echo err $i >&2; done; readlink /proc/self/fd/0"
    execution_id = start(shared_execd, script)
    assert wait(shared_execd, execution_id)["stderr_bytes"] == 0
    expected = b"out 1\nerr 1\nout 2\nerr 2\nout 3\nerr 3\n/dev/null\n"
    assert logs(shared_execd, execution_id).content == expected
    fed = start(shared_execd, "cat", stdin="text")
    wait(shared_execd, fed)
    assert logs(shared_execd, fed).content == b"text"


def test_the_cursor_is_in_bytes_and_shows_unfinished_lines(shared_execd: RunningExecd) -> None:
    execution_id = start(shared_execd, "printf 'é no newline'; sleep 99")
    first = wait_for(lambda: (found := logs(shared_execd, execution_id)).content and found)
    assert first.text == "é no newline"
    assert first.headers[CURSOR] == str(len(first.content))
    assert logs(shared_execd, execution_id, 3).content == b"no newline"
    at_the_end = logs(shared_execd, execution_id, int(first.headers[CURSOR]))
    assert (at_the_end.content, at_the_end.headers[CURSOR]) == (b"", first.headers[CURSOR])
    assert logs(shared_execd, execution_id, 10**9).content == b""
    shared_execd.client.delete("/command", params={"id": execution_id, "grace_ms": 0})


def test_logs_are_for_background_commands_and_known_ids_only(shared_execd: RunningExecd) -> None:
    foreground = shared_execd.run("true").id
    assert shared_execd.client.get(f"/command/{foreground}/logs").status_code == 400
    for path in ("/command/status/nope", "/command/nope/logs", "/command/nope/output", "/command/nope/wait"):
        response = shared_execd.client.get(path)
        assert (response.status_code, response.json()["code"]) == (404, "COMMAND_NOT_FOUND")
    assert shared_execd.client.get(f"/command/{foreground}/logs?cursor=-1").status_code == 400


def test_a_background_command_is_interrupted_and_times_out(shared_execd: RunningExecd) -> None:
    execution_id = start(shared_execd, "sleep 99 & sleep 99")
    assert shared_execd.client.delete("/command", params={"id": execution_id}).status_code == 200
    assert status(shared_execd, execution_id)["reason"] == "killed_by_client"
    late = start(shared_execd, "echo partial; sleep 99", timeout=300)
    assert wait(shared_execd, late)["reason"] == "timeout"
    assert logs(shared_execd, late).content == b"partial\n"


def test_a_background_command_that_cannot_start_says_so(shared_execd: RunningExecd) -> None:
    outcome = shared_execd.run(argv=["/no/such"], background=True)
    assert outcome.last["type"] == "error"
    assert outcome.last["reason"] == "start_failed"
    after = status(shared_execd, outcome.id)
    assert (after["running"], after["reason"], after["exit_code"]) == (False, "start_failed", None)
    assert "No such file" in after["error"]


def test_long_logs_keep_the_beginning_and_the_end(shared_execd: RunningExecd) -> None:
    execution_id = start(shared_execd, "seq 1000000")
    after = wait(shared_execd, execution_id)
    everything = b"".join(b"%d\n" % number for number in range(1, 1_000_001))
    assert after["stdout_bytes"] == len(everything)
    assert after["truncated"] is True
    found = logs(shared_execd, execution_id)
    first, last = (int(number) for number in found.headers["EXECD-OUTPUT-GAP"].split("-"))
    assert 60 * 1024 <= first < last <= len(everything) - 1024 * 1024
    assert found.content == everything[:first] + everything[last:]
    assert after["dropped_bytes"] == last - first
    assert found.headers[CURSOR] == str(len(everything))


def test_a_chatterer_does_not_keep_the_daemon_from_others(execd: RunningExecd) -> None:
    ids = [start(execd, "yes") for _ in range(4)]
    execd.run("true")
    before = execd.rss_kib()
    slowest = 0.0
    for _ in range(30):
        started = time.monotonic()
        assert execd.run("echo quick").output() == b"quick\n"
        slowest = max(slowest, time.monotonic() - started)
    assert slowest < 2
    assert execd.rss_kib() - before < 24 * 1024
    for execution_id in ids:
        assert execd.client.delete("/command", params={"id": execution_id, "grace_ms": 0}).status_code == 200


def test_processes_that_remain_are_counted(execd: RunningExecd) -> None:
    assert execd.run("true").last["remaining_processes"] == 0
    outcome = execd.run("setsid sleep 99 >/dev/null 2>&1 & sleep 99 & (sleep 99 &) ; echo done")
    assert outcome.output() == b"done\n"
    assert outcome.last["remaining_processes"] == 3
    assert status(execd, outcome.id)["remaining_processes"] == 3
    other = execd.run("sleep 98 & echo $!")
    assert other.last["remaining_processes"] == 1  # not those of the earlier command
    assert is_alive(int(other.output()))


@pytest.mark.parametrize("signal", ["USR1", "SIGUSR1", 10])
def test_a_signal_reaches_the_group(shared_execd: RunningExecd, signal: str | int) -> None:
    script = "trap 'echo got; exit 5' USR1; echo ready; while :; do sleep 0.02; done"
    execution_id = start(shared_execd, script)
    wait_for(lambda: logs(shared_execd, execution_id).content == b"ready\n")
    url = f"/command/{execution_id}/signal"
    assert shared_execd.client.post(url, json={"signal": signal}).status_code == 200
    after = wait(shared_execd, execution_id)
    assert (after["exit_code"], after["reason"]) == (5, "exit")
    assert logs(shared_execd, execution_id).content.endswith(b"got\n")
    too_late = shared_execd.client.post(url, json={"signal": signal})
    assert (too_late.status_code, too_late.json()["code"]) == (409, "COMMAND_NOT_RUNNING")


@pytest.mark.parametrize(
    "body", [{}, {"signal": "NOPE"}, {"signal": 0}, {"signal": True}, {"signal": "INT", "x": 1}]
)
def test_a_bad_signal_is_refused(shared_execd: RunningExecd, body: dict[str, Any]) -> None:
    execution_id = start(shared_execd, "sleep 99")
    response = shared_execd.client.post(f"/command/{execution_id}/signal", json=body)
    assert (response.status_code, response.json()["code"]) == (400, "INVALID_REQUEST_BODY")
    shared_execd.client.delete("/command", params={"id": execution_id, "grace_ms": 0})


def test_a_kill_by_signal_is_told_from_one_by_memory(shared_execd: RunningExecd) -> None:
    execution_id = start(shared_execd, "sleep 99")
    shared_execd.client.post(f"/command/{execution_id}/signal", json={"signal": "KILL"})
    after = wait(shared_execd, execution_id)
    assert (after["reason"], after["signal"]) == ("signal", 9)


def test_the_list_shows_the_latest_first(execd: RunningExecd) -> None:
    ids = [execd.run("true").id, start(execd, "sleep 99"), execd.run("exit 3", timeout=5000).id]
    document = execd.client.get("/commands").json()
    assert document["total"] == 3
    assert {each["id"] for each in document["commands"]} == set(ids)
    starts = [each["started_at"] for each in document["commands"]]
    assert starts == sorted(starts, reverse=True)
    assert len(execd.client.get("/commands?limit=1").json()["commands"]) == 1
    assert execd.client.get("/commands?limit=1001").status_code == 400


def test_a_wait_ends_with_its_time(shared_execd: RunningExecd) -> None:
    execution_id = start(shared_execd, "sleep 99")
    document = shared_execd.client.get(f"/command/{execution_id}/wait?timeout_ms=100").json()
    assert document["running"] is True
    shared_execd.client.delete("/command", params={"id": execution_id, "grace_ms": 0})
