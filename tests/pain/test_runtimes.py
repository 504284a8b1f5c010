"""Faults of streams and names that users of engines and agents met, tried on every real runtime."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from core.errors import ExecdUnreachableError
from runtimes.base import Command, FileUpload
from tests.support import probes
from tests.support.execd import wait_for
from tests.support.outside import background, host_process, host_processes, sleep_mark
from tests.support.sandboxes import is_root


def test_name_is_free_again_when_remove_returns(real_kind):
    """B-025: however soon it is used again."""
    name = real_kind.spec().name
    for _ in range(5):
        with real_kind.box(name=name) as box:
            assert box.sh("echo new >> /tmp/file; cat /tmp/file").out == "new\n"


def test_no_output_is_lost_between_head_and_stream(shared_box):
    """B-053: eight at a time; the first bytes often come with the answer's head."""
    with ThreadPoolExecutor(8) as pool:
        said = list(pool.map(lambda number: shared_box.sh(f"echo hello {number}").out, range(400)))
    assert said == [f"hello {number}\n" for number in range(400)]


HOGS = {
    "processors": lambda box: "for i in 1 2 3 4 5 6 7 8; do (while :; do :; done) & done; echo on; wait",
    "memory": lambda box: "head -c 180000000 /dev/zero | tail -c 180000000 | sleep 1000 & echo on; wait",
    "processes": lambda box: probes.probe(box, "fork_bomb"),
}


@pytest.mark.skipif(not is_root(), reason="an ordinary user has no control groups here")
@pytest.mark.parametrize("hog", HOGS.values(), ids=HOGS)
def test_hog_inside_keeps_no_call_waiting(real_kind, hog):
    """B-058: exec, files and kill answer in two seconds, an exec that finds no room for a process with an error."""
    mark = sleep_mark()
    limits = {"memory_bytes": 256 << 20, "pids": 40, "cpu_millicores": 1000}
    with real_kind.box(limits=limits) as box:
        box.client.upload([FileUpload("/tmp/file", b"content")])
        with background(box, hog(box), until=b"\n"):
            for call in (
                box.client.ping,
                lambda: box.client.download("/tmp/file", max_bytes=100),
                lambda: box.client.upload([FileUpload("/tmp/other", b"x")]),
            ):
                assert seconds(call) < 2
            assert seconds(lambda: box.sh(f"exec sleep {mark}", timeout_seconds=0.5)) < 2.5
        assert host_processes(mark) == []
        assert box.sh("echo on").out == "on\n"


def seconds(call):
    began = time.monotonic()
    call()
    return time.monotonic() - began


def test_sandbox_that_is_removed_ends_its_calls_with_an_error(real_kind):
    """A stream whose other end is gone is neither a success nor a wait without end."""
    mark = sleep_mark()
    with real_kind.box() as box, ThreadPoolExecutor(1) as pool:
        running = pool.submit(box.sh, f"exec sleep {mark}")
        host_process(mark)
        real_kind.runtime.remove(box.handle)
        with pytest.raises(ExecdUnreachableError):
            running.result(20)


TREE = (
    "setsid sleep {0} & (setsid nohup sh -c 'sleep {0}; true' >/dev/null 2>&1 &); echo ready; sleep {0} | cat"
)


class LeavesError(Exception):
    """What makes a client leave in the middle."""


def test_nothing_of_a_command_outlives_its_client_or_its_interrupt(shared_box):
    """B-026: background, pipeline and sessions of their own, in two seconds."""
    mark = sleep_mark()
    with background(shared_box, TREE.format(mark), until=b"ready"):
        host_process(mark)
    assert host_processes(mark) == []

    def leave(_stream, _data):
        raise LeavesError

    with pytest.raises(LeavesError):
        shared_box.client.run(Command(shell=TREE.format(mark)), on_output=leave)
    began = time.monotonic()
    wait_for(lambda: host_processes(mark) == [])
    assert time.monotonic() - began < 2
    assert shared_box.sh("echo on").out == "on\n"


@pytest.mark.parametrize("stop", ["kill -STOP 0", "kill -STOP $$", "sh -c 'kill -STOP $PPID'; true"])
def test_a_command_that_stops_itself_ends_in_time(shared_box, stop):
    """B-052."""
    mark = sleep_mark()
    said = []
    assert 1 <= seconds(lambda: said.append(shared_box.sh(f"sleep {mark} & {stop}", timeout_seconds=1))) < 2.5
    assert said[0].result.timed_out
    assert host_processes(mark) == []


def test_a_child_that_holds_the_outputs_delays_nothing(shared_box):
    """B-028."""
    said = []
    assert seconds(lambda: said.append(shared_box.sh("sleep 30 & echo done"))) < 2
    assert (said[0].out, said[0].code) == ("done\n", 0)
