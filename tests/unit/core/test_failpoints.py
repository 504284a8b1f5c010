import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from core.failpoints import POINTS, FailpointError, arm, failpoint, parse_failpoints, remember_connection
from tests.support.launching import REPOSITORY, launcher_environment

PROGRAMS = ("api", "scheduler", "services", "workers")


@pytest.fixture(autouse=True)
def disarmed():
    yield
    arm({})


def run(code: str, **env: str) -> "subprocess.CompletedProcess[str]":
    script = f"from core.failpoints import *\narm_or_exit(program='worker')\n{code}"
    return subprocess.run(
        [sys.executable, "-c", script],
        env=launcher_environment(env),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_nothing_happens_unless_armed():
    for name in POINTS:
        failpoint(name)


def test_every_name_in_the_code_is_known_and_every_known_one_is_in_the_code():
    sources = [
        path.read_text(encoding="utf-8")
        for folder in PROGRAMS
        for path in (REPOSITORY / folder).rglob("*.py")
    ]
    used = {name for text in sources for name in re.findall(r'failpoint\("([^"]+)"\)', text)}
    assert used == POINTS


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("worker.nowhere:kill9", "'worker.nowhere' is no failpoint; there are: api.after_commit,"),
        ("worker.received", "the action must be one of drop_connection, kill9, raise, sleep, stop"),
        ("worker.received:explode", "the action must be one of"),
        ("worker.received:stop", "needs seconds above 0"),
        ("worker.received:sleep:0", "needs seconds above 0"),
        ("worker.received:sleep:nan", "needs seconds above 0"),
        ("worker.received:sleep:1e9", "needs seconds above 0"),
        ("worker.received:raise:0", "only a count >= 1"),
        ("worker.received:raise:1:2", "only a count >= 1"),
        ("worker.received:sleep:1:x", "and its seconds only a count >= 1"),
        ("worker.received:raise,worker.received:kill9", "worker.received is given twice"),
    ],
)
def test_what_is_wrong_is_named(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_failpoints(text)


def test_only_the_nth_call_is_hit():
    arm(parse_failpoints("worker.received:raise:2"))
    failpoint("worker.received")
    failpoint("worker.before_claim")
    with pytest.raises(FailpointError, match=re.escape("worker.received")):
        failpoint("worker.received")
    failpoint("worker.received")


def test_sleep_holds_up_its_caller():
    arm(parse_failpoints("worker.received:sleep:0.2"))
    began = time.monotonic()
    failpoint("worker.received")
    assert time.monotonic() - began >= 0.2


def test_a_dropped_connection_ends_at_both_sides_without_a_word():
    arm(parse_failpoints("worker.received:drop_connection"))
    near, far = socket.socketpair()
    with near, far:
        remember_connection(near)
        failpoint("worker.received")
        assert far.recv(1) == b""
        with pytest.raises(BrokenPipeError):
            near.send(b"x")


def test_kill_ends_the_process_as_sigkill_does():
    armed = {"SANDMILL_FAILPOINTS": "worker.received:kill9", "SANDMILL_ALLOW_FAILPOINTS": "1"}
    done = run("failpoint('worker.received'); print('alive')", **armed)
    assert done.returncode == -signal.SIGKILL
    assert "alive" not in done.stdout


def test_a_stopped_process_is_woken_after_its_seconds():
    armed = {"SANDMILL_FAILPOINTS": "worker.received:stop:0.3", "SANDMILL_ALLOW_FAILPOINTS": "1"}
    code = "import time; t = time.monotonic(); failpoint('worker.received'); print(time.monotonic() - t)"
    assert float(run(code, **armed).stdout.splitlines()[-1]) >= 0.25


def test_failpoints_are_refused_where_nobody_allowed_them():
    done = run("print('started')", SANDMILL_FAILPOINTS="worker.received:kill9")
    assert done.returncode == 1
    assert "started" not in done.stdout
    assert "unset it, or set SANDMILL_ALLOW_FAILPOINTS=1" in done.stderr


def test_a_wrong_failpoint_ends_the_start_with_the_variables_name():
    done = run("print('started')", SANDMILL_FAILPOINTS="x:y", SANDMILL_ALLOW_FAILPOINTS="1")
    assert done.returncode == 1
    assert "started" not in done.stdout
    assert done.stderr.startswith("worker: SANDMILL_FAILPOINTS: 'x' is no failpoint")
