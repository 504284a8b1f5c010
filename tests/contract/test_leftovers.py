"""What a command leaves running: killed with it if it says so, however it hides; else left alone."""

import platform
import time

import pytest

from runtimes.base import Command, FileUpload
from tests.support.outside import background, host_process, host_processes, sleep_mark
from tests.support.relay_runner import MACHINE, relay_runner

# Each leaves a process that sleeps {mark} seconds.
HIDDEN = {
    "child": "sleep {mark} &",
    "holding the outputs": "(trap '' TERM HUP INT; sleep {mark}; :) &",
    "own session": "setsid sleep {mark} >/dev/null 2>&1 &",
    "double fork": "(setsid sh -c '(sleep {mark}; :) & exit 0' &)",
    "without environment": "(setsid env -i /bin/sleep {mark} &)",
    "forged name": "(SANDMILL_EXECUTION_ID=0123456789abcdef setsid sleep {mark} &)",
    "name of an earlier command": "(SANDMILL_EXECUTION_ID={earlier} setsid sleep {mark} &)",
    "stopped": "setsid sleep {mark} & kill -STOP $!",
}
hidden = pytest.mark.parametrize("script", HIDDEN.values(), ids=HIDDEN)


@pytest.fixture
def mark():
    return sleep_mark()


def filled(script, box, mark):
    earlier = box.sh("echo $SANDMILL_EXECUTION_ID").out.strip()
    # Long enough for what is left to have become what it shall be.
    return script.format(mark=mark, earlier=earlier) + "\nsleep 0.1; echo main"


@hidden
def test_leftovers_are_dead_when_the_result_is_there(shared_box, mark, script):
    began = time.monotonic()
    said = shared_box.sh(filled(script, shared_box, mark), kill_leftovers=True)
    left = host_processes(mark)
    assert (said.out, said.code) == ("main\n", 0)
    assert left == []
    assert time.monotonic() - began < 4


@hidden
def test_without_being_asked_execd_leaves_them_alone(real_kind, mark, script):
    with real_kind.box() as box:
        assert box.sh(filled(script, box, mark)).out == "main\n"
        host_process(mark)
        assert box.sh("true").code == 0
        assert host_processes(mark)
    assert host_processes(mark) == []


def test_daemon_of_an_earlier_command_survives(real_kind):
    """Also one that started within the same clock tick as the command that is ended with its family."""
    with real_kind.box() as box:
        for _ in range(8):
            mark = sleep_mark()
            box.sh(f"(setsid sleep {mark} >/dev/null 2>&1 &)")
            box.sh("(setsid sleep 99 &)", kill_leftovers=True)
            assert host_process(mark)
            assert len(host_processes(mark)) == 1


def test_command_beside_it_survives(shared_box, mark):
    other = sleep_mark()
    inner = f"(setsid sleep {other} &)"
    with background(shared_box, f"{inner}; echo on; sleep {mark}; :", until=b"on\n"):
        assert shared_box.sh("(setsid sleep 99 &)", kill_leftovers=True).code == 0
        assert host_processes(mark)
        assert host_processes(other)
    assert host_processes(other) == []


def test_timeout_and_failure_end_leftovers_too(shared_box, mark):
    said = shared_box.sh(f"(setsid sleep {mark} &); exit 3", kill_leftovers=True)
    assert said.code == 3
    assert shared_box.sh(f"(setsid sleep {mark} &); kill -9 $$", kill_leftovers=True).result.signal == 9
    late = shared_box.sh(f"(setsid sleep {mark} &); sleep 60", kill_leftovers=True, timeout_seconds=0.2)
    assert late.result.timed_out
    assert host_processes(mark) == []


@pytest.mark.skipif(platform.machine() != MACHINE, reason=f"the program is {MACHINE} code")
def test_process_that_is_never_listed_alive_does_not_escape(real_kind):
    """By the time its number is known it is another's; only stopping all processes at once holds it."""
    with real_kind.box(workdir="/work") as box:
        box.client.upload([FileUpload("/work/relay", relay_runner(), 0o755)])
        start = Command(shell="(/work/relay </dev/null >/dev/null 2>&1 &); :", kill_leftovers=True)
        for _ in range(15):
            assert box.run(start).code == 0
            # Its children would have used up numbers.
            first, second = box.sh("sh -c 'echo $$'; sleep 0.05; sh -c 'echo $$'").out.split()
            assert int(second) - int(first) <= 3
