"""Commands and sessions of execd against whoever runs them (threat model, T13, T15, T21, T36 to T44)."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.execd import Outcome, RunningExecd, is_alive, read_events, running_execd, wait_for

Run = Callable[..., Outcome]

DESCRIPTORS = "exec python3 -c 'import os; print(sorted(map(int, os.listdir(\"/proc/self/fd\")))[:-1])'"


@pytest.fixture
def execd(bundle: Path, tmp_path: Path) -> Iterator[RunningExecd]:
    with running_execd(bundle, tmp_path) as daemon:
        yield daemon


def in_foreground(execd: RunningExecd, command: str, **fields: Any) -> Outcome:
    return execd.run(command, **fields)


def in_background(execd: RunningExecd, command: str, **fields: Any) -> Outcome:
    execution_id = execd.run(command, background=True, **fields).id
    with execd.client.stream("GET", f"/command/{execution_id}/stream") as response:
        return Outcome(list(read_events(response)))


def in_session(execd: RunningExecd, command: str, **fields: Any) -> Outcome:
    session_id = execd.client.post("/session").json()["session_id"]
    url = f"/session/{session_id}/run"
    with execd.client.stream("POST", url, json={"command": command, **fields}) as response:
        return Outcome(list(read_events(response)))


def unique_seconds() -> str:
    """A time to sleep that no one else on this machine sleeps for."""
    return f"9{int.from_bytes(os.urandom(4), 'big')}"


def sleepers(execd: RunningExecd, seconds: str) -> int:
    return int(execd.run(f"pgrep -c -f -x 'sleep {seconds}'").output())


@pytest.fixture(params=[in_foreground, in_background, in_session])
def run(request: pytest.FixtureRequest) -> Run:
    """Each way to run a command."""
    way: Run = request.param
    return way


def test_programs_inherit_three_descriptors(execd: RunningExecd, run: Run) -> None:
    """T13, with another command, a follower and a session open beside it."""
    other = execd.run("sleep 99", background=True, stdin="x" * 1_000_000).id
    with httpx.stream("GET", f"{execd.url}/command/{other}/stream") as follower:
        next(read_events(follower))
        in_session(execd, "true")
        assert run(execd, DESCRIPTORS).output() == b"[0, 1, 2]\n"
        assert run(execd, DESCRIPTORS + " # " + "x" * 200_000).output() == b"[0, 1, 2]\n"


@pytest.mark.parametrize(
    "script",
    [
        "(setsid sh -c 'trap \"\" TERM INT HUP; sleep {0}' &); sleep 0.1; sleep {0}",
        "trap '' TERM INT HUP; while :; do sleep {0}; done",
        "sleep {0} & kill -STOP 0",
        "sleep {0} & kill -STOP $$",
        "sh -c 'kill -STOP $PPID; sleep {0}'; true",
        "exec sleep {0}",
    ],
    ids=["daemon", "deaf", "group stops", "stops itself", "child stops it", "replaced"],
)
def test_nothing_outlives_its_timeout(execd: RunningExecd, run: Run, script: str) -> None:
    """T15, T21."""
    seconds = unique_seconds()
    started = time.monotonic()
    last = run(execd, script.format(seconds), timeout=400).last
    assert time.monotonic() - started < 0.4 + 2
    assert last["reason"] == "timeout"
    assert sleepers(execd, seconds) == 0


@pytest.mark.parametrize("command", ["-c true", "--version", "-x", "--", "-"])
def test_text_that_looks_like_an_option_is_a_command(execd: RunningExecd, run: Run, command: str) -> None:
    """T36."""
    outcome = run(execd, command)
    assert b"command not found" in outcome.output() + outcome.output("stderr")
    assert outcome.last["exit_code"] == 127


def test_variables_change_one_command_only(execd: RunningExecd, tmp_path: Path) -> None:
    """T37."""
    (tmp_path / "startup").write_text(f"touch {tmp_path}/forged\n")
    hostile = {
        "BASH_ENV": str(tmp_path / "startup"),
        "BASH_FUNC_echo%%": "() { printf forged; }",
        "IFS": "/",
        "LD_PRELOAD": "/no/such.so",
        "PATH": str(tmp_path),
        "PYTHONHOME": "/no/such",
        "\x7f\n$(id)": "`id`",
    }
    assert execd.run(argv=["/bin/echo", "fine"], envs=hostile).output() == b"fine\n"
    execd.run("true", envs={"BASH_ENV": hostile["BASH_ENV"]})
    (tmp_path / "forged").unlink()  # it does work, for that one
    assert execd.run("echo fine; echo ${BASH_ENV-unset}").output() == b"fine\nunset\n"
    assert in_session(execd, "echo fine; echo ${BASH_ENV-unset}").output() == b"fine\nunset\n"
    assert not (tmp_path / "forged").exists()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/command", '{"command":"a\\u0000"}'),
        ("/command", '{"command":"\\udc80"}'),
        ("/command", '{"command":"a","stdin":"\\udc80"}'),
        ("/session", '{"cwd":"\\u0000"}'),
        ("/session", '{"cwd":"\\ud800"}'),
        ("/session/{id}/run", '{"command":"a\\u0000"}'),
        ("/session/{id}/run", '{"command":"\\udc80"}'),
        ("/command/{id}/signal", '{"signal":"\\udc80"}'),
    ],
)
def test_characters_that_cannot_be_passed_on_are_refused(execd: RunningExecd, path: str, body: str) -> None:
    """T38."""
    execution_id = execd.run("sleep 99", background=True).id
    session_id = execd.client.post("/session").json()["session_id"]
    url = path.format(id=session_id if path.startswith("/session") else execution_id)
    response = execd.client.post(url, content=body.encode())
    assert response.status_code == 400
    assert response.json()["code"] == "INVALID_REQUEST_BODY"


def test_any_output_is_lossless(execd: RunningExecd, run: Run, tmp_path: Path) -> None:
    """T38."""
    data = os.urandom(100_000) + b"\0\xe2\x82"
    (tmp_path / "data").write_bytes(data)
    outcome = run(execd, f"cat {tmp_path}/data")
    assert outcome.output() == data
    fetched = b""
    execution_id = execd.client.get("/commands").json()["commands"][0]["id"]
    while len(fetched) < len(data):
        url = f"/command/{execution_id}/output?offset={len(fetched)}&limit=30000"
        fetched += execd.client.get(url).content
    assert fetched == data


def test_input_larger_than_is_taken_is_refused_and_costs_nothing(execd: RunningExecd) -> None:
    """T39."""
    execd.run("true")
    before = execd.rss_kib()
    chunk = b"x" * (1 << 20)

    seconds = unique_seconds()

    def body() -> Iterator[bytes]:
        yield f'{{"command":"sleep {seconds}","stdin":"'.encode()
        for _ in range(1024):
            yield chunk

    # Told early, a client may or may not read the answer before its own writes fail.
    with contextlib.suppress(httpx.TransportError):
        assert execd.client.post("/command", content=body()).status_code == 413
    assert sleepers(execd, seconds) == 0
    assert execd.rss_kib() - before < 40 * 1024


def test_a_daemon_that_dies_leaves_a_broken_stream_and_forgets(bundle: Path, tmp_path: Path) -> None:
    """T42: no stream that only looks whole, and afterwards a clear answer."""
    with running_execd(bundle, tmp_path) as execd:
        events: list[dict[str, Any]] = []
        with pytest.raises(httpx.TransportError):
            _read_and_kill(execd, events)
        assert [event["type"] for event in events] == ["init", "ping", "stdout"]
    (tmp_path / "second").mkdir()
    with running_execd(bundle, tmp_path / "second") as execd:
        response = execd.client.get(f"/command/{events[0]['text']}/stream")
        assert (response.status_code, response.json()["code"]) == (404, "COMMAND_NOT_FOUND")


def _read_and_kill(execd: RunningExecd, events: list[dict[str, Any]]) -> None:
    body = {"command": "echo first; sleep 99"}
    with httpx.stream("POST", f"{execd.url}/command", json=body) as response:
        for event in read_events(response):
            events.append(event)
            if event["type"] == "stdout":
                execd.process.send_signal(signal.SIGKILL)


def test_a_client_that_leaves_at_any_moment_leaves_nothing(execd: RunningExecd, tmp_path: Path) -> None:
    """T41, in sessions."""
    session_id = execd.client.post("/session").json()["session_id"]
    url = f"{execd.url}/session/{session_id}/run"
    body = {"command": f"setsid sleep 99 & echo $! >>{tmp_path}/pids; echo ready; sleep 99"}
    for wanted in range(1, 4):
        with httpx.stream("POST", url, json=body, timeout=10) as response:
            assert response.status_code == 200
            events = read_events(response)
            for _ in range(wanted):
                next(events)
        wait_for(lambda: _is_free(execd, session_id))
    for pid in (tmp_path / "pids").read_text().split():
        assert not is_alive(int(pid))


def _is_free(execd: RunningExecd, session_id: str) -> bool:
    response = execd.client.post(f"/session/{session_id}/run", json={"command": "true"})
    assert response.status_code in (200, 409), json.dumps(response.json())
    return response.status_code == 200
