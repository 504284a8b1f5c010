"""Of a sandbox that ends, the files stay in memory until nobody waits for it any more."""

import subprocess
import threading
from pathlib import Path

import pytest

from runtimes.local.held_files import root_held
from runtimes.processes import ProcessRef


def opened():
    # Without the one that it is listed by.
    return {path for path in list(Path("/proc/self/fd").iterdir()) if path.is_symlink()}


@pytest.fixture
def process():
    """A process that ends when the test does."""
    with subprocess.Popen(["sleep", "1000"]) as started:
        yield started
        started.kill()


def wait_for_threads():
    for thread in threading.enumerate():
        if thread.name == "sandbox-files":
            thread.join(timeout=30)


def test_the_root_of_a_process_is_there_after_its_end_and_let_go_behind_the_block(process):
    before = opened()
    with root_held(ProcessRef.of(process.pid)):
        (held,) = opened() - before
        process.kill()
        process.wait()
        assert held.samefile("/")
    wait_for_threads()
    assert opened() == before


def test_it_is_let_go_when_the_block_fails_and_when_no_thread_can_be_had(process, monkeypatch):
    def refuse(_):
        message = "can't start new thread"
        raise RuntimeError(message)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    before = opened()
    with pytest.raises(KeyError), root_held(ProcessRef.of(process.pid)):
        raise KeyError
    assert opened() == before


def test_nothing_is_held_of_what_has_ended(process):
    ended = ProcessRef.of(process.pid)
    process.kill()
    process.wait()
    before = opened()
    for init in (ended, None):
        with root_held(init):
            assert opened() == before
