"""What users of similar services found wrong with how commands start and end, sessions and input, against execd.

Terminals broken off at bad moments (B-046) are in `test_relay.py`.
"""

import base64
import contextlib
import json
import random
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opensandbox.models.sandboxes import SandboxEndpoint
from opensandbox.sync.services import CommandsSync

from tests.support.execd import Outcome, RunningExecd, names_in, read_events, until, wait_for
from tests.support.outside import host_processes, sleep_mark
from tests.support.sdk import FLAVOURS, connected

TREES = {
    "background": "sleep {0} & echo ready; sleep {0}",
    "pipeline": "sleep {0} & echo ready; sleep {0} | cat",
    "own session": "setsid sleep {0} & echo ready; sleep {0}",
    "daemon": "(setsid nohup sh -c 'sleep {0}; true' >/dev/null 2>&1 &) ; echo ready; sleep {0}",
}


def until_both_sleep(events: Iterator[dict[str, Any]], mark: str) -> str:
    """Wait until all of a command has been started, and give its id."""
    execution_id: str = until(events, "ready")[0]["text"]
    wait_for(lambda: _sleepers(mark) == 2)
    return execution_id


def _sleepers(mark: str) -> int:
    texts = []
    for pid in host_processes(mark):
        with contextlib.suppress(OSError):
            texts.append(Path(f"/proc/{pid}/cmdline").read_bytes())
    return texts.count(f"sleep\0{mark}\0".encode())


def by_timeout(execd: RunningExecd, command: str, mark: str) -> float:
    """Each of these ends a command and gives the time from then on."""
    started = time.monotonic()
    assert execd.run(command, timeout=500).last["reason"] == "timeout"
    return started + 0.5


def by_leaving(execd: RunningExecd, command: str, mark: str) -> float:
    with execd.streaming(command) as events:
        until_both_sleep(events, mark)
    return time.monotonic()


def by_interrupt(execd: RunningExecd, command: str, mark: str) -> float:
    with execd.streaming(command) as events:
        execution_id = until_both_sleep(events, mark)
        started = time.monotonic()
        assert execd.client.delete("/command", params={"id": execution_id}).status_code == 200
        assert list(events)[-1]["reason"] == "killed_by_client"
    return started


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
@pytest.mark.parametrize("end", [by_timeout, by_leaving, by_interrupt])
def test_nothing_of_a_command_outlives_its_end(
    shared_execd: RunningExecd, end: Callable[[RunningExecd, str, str], float], tree: str
) -> None:
    """B-026: in two seconds."""
    mark = sleep_mark()
    ended = end(shared_execd, tree.format(mark), mark)
    wait_for(lambda: host_processes(mark) == [])
    assert time.monotonic() - ended < 2


HOLDERS = {
    "both outputs": "sleep 30 & echo done",
    "deaf to hang-ups": "nohup sh -c 'sleep 30; true' & echo done",
    "only stderr": "sleep 30 >/dev/null & echo done",
    "another session": "setsid sleep 30 & echo done",
}


@pytest.mark.parametrize("command", HOLDERS.values(), ids=HOLDERS)
def test_a_child_that_holds_the_outputs_delays_nothing(execd: RunningExecd, command: str) -> None:
    """B-028."""
    started = time.monotonic()
    outcome = execd.run(command)
    assert time.monotonic() - started < 2
    assert (outcome.output(), outcome.last["exit_code"]) == (b"done\n", 0)
    assert outcome.last["remaining_processes"] >= 1
    assert execd.run("echo on").output() == b"on\n"


@pytest.fixture(params=FLAVOURS)
def commands(request: pytest.FixtureRequest, shared_execd: RunningExecd) -> Iterator[CommandsSync]:
    """The published client's."""
    endpoint = SandboxEndpoint(endpoint=f"127.0.0.1:{shared_execd.port}")
    with connected(request.param, endpoint) as services:
        yield services.commands


@pytest.fixture
def session(commands: CommandsSync, tmp_path: Path) -> Iterator[str]:
    session_id = commands.create_session(working_directory=str(tmp_path))
    yield session_id
    commands.delete_session(session_id)


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("cat <<'EOF' > f\nhello\nEOF\ncat f", 0),
        ("cat <<EOF", 0),
        ("echo 'not closed", None),
        ('echo "not closed', None),
        ("echo $(not closed", None),
        ("if true; then", None),
        ("true \\", 0),
        ("exit 3", 3),
        ("exec true", 0),
        ("exec sh -c 'exit 4'", 4),
        ("cat", 0),
        ("read line", 1),
        ("kill -KILL $$", -1),
    ],
)
def test_no_code_hangs_a_session(
    commands: CommandsSync, session: str, code: str, exit_code: int | None
) -> None:
    """B-029: an end in time, and the session is as usable as before. None: any but success."""
    started = time.monotonic()
    found = commands.run_in_session(session, code).exit_code
    assert time.monotonic() - started < 5
    assert found == exit_code if exit_code is not None else found not in (0, None)
    assert commands.run_in_session(session, "echo on").text == "on"


@pytest.mark.parametrize(
    "code",
    [
        "set -x; (exit 5)",
        "PS1='$(exit 9)'; PS4='$(exit 9)'; PROMPT_COMMAND='exit 8'; (exit 5)",
        "echo EXIT_CODE=0; echo '__exit__:0'; printf '\\nexit 0\\n'; (exit 5)",
        "exec 2>&1; (exit 5)",
        "exec >/dev/null 2>&1; (exit 5)",
        "exec >&- 2>&-; (exit 5)",
        "trap 'echo leaving; true' EXIT; (exit 5)",
        "trap 'echo failed; true' ERR DEBUG; (exit 5)",
        "(while sleep 0.01; do echo noise; done) & (exit 5)",
        "printf 'no line end'; (exit 5)",
        "exit() { builtin exit 0; }; true() { false; }; (builtin exit 5)",
        "alias true=false; set -o pipefail; (exit 5) | cat",
    ],
)
def test_exit_codes_do_not_depend_on_the_output(commands: CommandsSync, session: str, code: str) -> None:
    """B-050: the status travels out of band."""
    assert commands.run_in_session(session, code).exit_code == 5
    assert commands.run_in_session(session, "(builtin exit 6)").exit_code == 6
    assert commands.run_in_session(session, "(builtin exit 0)").exit_code == 0


def test_a_command_is_known_when_it_is_announced(shared_execd: RunningExecd) -> None:
    """B-043, fifty times: an interrupt on the first event finds it, and ends it in a second."""
    for _ in range(50):
        with shared_execd.streaming("exec sleep 60") as events:
            execution_id = next(events)["text"]
            started = time.monotonic()
            assert shared_execd.client.get(f"/command/status/{execution_id}").status_code == 200
            assert shared_execd.client.delete("/command", params={"id": execution_id}).status_code == 200
            assert list(events)[-1]["reason"] == "killed_by_client"
        assert time.monotonic() - started < 1


def threads(execd: RunningExecd) -> int:
    return len(names_in(Path(f"/proc/{execd.pid}/task")))


def test_requests_broken_off_at_any_moment_leave_nothing(execd: RunningExecd) -> None:
    """B-046, a hundred times."""
    rng, mark = random.Random(46), sleep_mark()
    body = json.dumps({"command": f"sleep {mark} & sleep {mark}"})
    request = f"POST /command HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
    execd.run("true")
    before = execd.descriptors(), threads(execd)
    for _ in range(100):
        with (
            contextlib.suppress(ConnectionError),
            socket.create_connection(("127.0.0.1", execd.port)) as client,
        ):
            client.sendall(request[: rng.choice([len(request), len(request), rng.randrange(len(request))])])
            time.sleep(rng.uniform(0, 0.005))  # what is tried is any moment
    started = time.monotonic()
    assert execd.run("echo ok").output() == b"ok\n"
    assert time.monotonic() - started < 5  # those before it are started and killed first, on a busy machine
    wait_for(lambda: host_processes(mark) == [], seconds=10)
    wait_for(lambda: (execd.descriptors(), threads(execd)) <= before, seconds=10)


def test_programs_that_cannot_be_started_leak_nothing(execd: RunningExecd, tmp_path: Path) -> None:
    """B-047, two hundred times each."""
    (tmp_path / "text").write_text("no program")
    (tmp_path / "text").chmod(0o755)
    bodies: list[dict[str, Any]] = [
        {"argv": ["/no/such/program"]},
        {"argv": [str(tmp_path / "text")]},
        {"command": "true", "cwd": "/no/such"},
        {"argv": ["/bin/true", "x" * 200_000]},
        {"argv": ["/no/such/program"], "stdin": "x" * 10_000},
    ]

    def round_of_failures() -> None:
        for body in bodies:
            assert execd.client.post("/command", json=body).status_code in (200, 400)

    for _ in range(50):
        round_of_failures()
    before = execd.descriptors(), threads(execd)
    for _ in range(200):
        round_of_failures()
    wait_for(lambda: (execd.descriptors(), threads(execd)) <= before)


def executable(path: Path, content: bytes, mode: int = 0o755) -> str:
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)


def test_the_kind_of_a_failed_start_is_told(shared_execd: RunningExecd, tmp_path: Path) -> None:
    """B-049: and of a shell's, by its exit code."""
    machine = b"\x7fELF\2\1\1" + bytes(9) + b"\2\0\xb7\0" + bytes(44)  # aarch64, if it were one
    cases = [
        (["/no/such/program"], "not_found", 127),
        (["no-such-program"], "not_found", 127),
        ([executable(tmp_path / "plain", b"#!/bin/sh\n", 0o644)], "not_executable", 126),
        ([str(tmp_path)], "not_executable", 126),
        ([executable(tmp_path / "machine", machine)], "not_executable", 126),
        ([executable(tmp_path / "script", b"#!/no/such/interpreter\n")], "not_found", 127),
    ]
    for argv, kind, code in cases:
        last = shared_execd.run(argv=argv).last
        assert (last["reason"], last["start_failure"], last["exit_code"]) == ("start_failed", kind, None)
        assert argv[0] in last["error"]["evalue"]
        in_shell = shared_execd.run(f"'{argv[0]}'").last
        assert in_shell["exit_code"] in ((126, 127) if "script" in argv[0] else (code,))
        assert "start_failure" not in in_shell
    assert shared_execd.run(argv=["/bin/true", "x" * (3 << 20)]).last["start_failure"] == "too_long"
    for field, value in (("uid", 1 << 32), ("uid", "nobody"), ("cwd", "/no/such")):
        response = shared_execd.client.post("/command", json={"command": "true", field: value})
        assert (response.status_code, field in response.json()["message"]) == (400, True)


@pytest.mark.parametrize(
    "command",
    ["sleep {0} & kill -STOP 0", "sleep {0} & kill -STOP $$", "sh -c 'kill -STOP $PPID; sleep {0}'; true"],
    ids=["its group", "itself", "its parent"],
)
@pytest.mark.parametrize("session", [False, True], ids=["command", "session"])
def test_a_command_that_stops_itself_ends_in_time(
    shared_execd: RunningExecd, command: str, session: bool
) -> None:
    """B-052."""
    path, mark = "/command", sleep_mark()
    if session:
        path = f"/session/{shared_execd.client.post('/session').json()['session_id']}/run"
    started = time.monotonic()
    body = {"command": command.format(mark), "timeout": 1000}
    with shared_execd.client.stream("POST", path, json=body) as response:
        outcome = Outcome(list(read_events(response)))
    assert 1 <= time.monotonic() - started < 2.5
    assert outcome.last["reason"] == "timeout"
    assert host_processes(mark) == []


INPUT = random.Random(55).randbytes(10 << 20)


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("wc -c", b"%d\n" % len(INPUT)),
        ("sleep 1; wc -c", b"%d\n" % len(INPUT)),
        (
            "head -c 3 | od -An -tu1",
            b" ".join(b"%4d" % byte for byte in INPUT[:3]).replace(b"  ", b" ") + b"\n",
        ),
        ("true", b""),
        ("exec <&-; sleep 0.5", b""),
    ],
    ids=["counts", "counts late", "stops reading", "does not read", "closes it"],
)
def test_large_input_breaks_nothing(execd: RunningExecd, command: str, output: bytes) -> None:
    """B-055: ten megabytes; what is larger than a request may be comes as a file."""
    outcome = execd.run(command, stdin_b64=base64.b64encode(INPUT).decode())
    assert (outcome.output().split(), outcome.last["exit_code"]) == (output.split(), 0)


def test_input_that_is_too_large_is_refused(execd: RunningExecd) -> None:
    """B-055: and 200 MB of it go by way of a file."""
    refused = execd.client.post("/command", json={"command": "wc -c", "stdin": "x" * (17 << 20)})
    assert (refused.status_code, refused.json()["code"]) == (413, "PAYLOAD_TOO_LARGE")
    assert execd.run("echo on").output() == b"on\n"
