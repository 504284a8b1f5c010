import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from runtimes.local.images.locking import is_locked, lock_file, remove_free_lock
from tests.support.execd import wait_for


def test_lock_is_held_by_one_alone(tmp_path):
    path = tmp_path / "lock"
    assert not is_locked(path)
    with lock_file(path):
        assert is_locked(path)
    assert not is_locked(path)


def test_shared_locks_are_held_together(tmp_path):
    path = tmp_path / "lock"
    with lock_file(path, shared=True), lock_file(path, shared=True):
        assert is_locked(path)


def test_held_lock_is_not_removed(tmp_path):
    path = tmp_path / "lock"
    with lock_file(path):
        remove_free_lock(path)
        assert path.exists()
    remove_free_lock(path)
    remove_free_lock(path)
    assert not path.exists()


@pytest.mark.parametrize("is_made_anew", [False, True])
def test_who_waited_for_a_removed_lock_takes_the_one_that_is_there(tmp_path, is_made_anew):
    path = tmp_path / "lock"
    taken, done = threading.Event(), threading.Event()

    def wait() -> None:
        with lock_file(path):
            taken.set()
            done.wait(10)

    thread = threading.Thread(target=wait)
    with ExitStack() as held:
        with lock_file(path):
            waiting = path.stat().st_ino
            thread.start()
            wait_for(lambda: f":{waiting} " in waiting_locks())
            path.unlink()
            if is_made_anew:
                held.enter_context(lock_file(path))
        if is_made_anew:
            assert not taken.wait(0.2), "two would hold it"
    assert taken.wait(10)
    assert is_locked(path)
    done.set()
    thread.join()


def waiting_locks() -> str:
    """What the kernel lists of those that wait."""
    return "".join(line for line in Path("/proc/locks").read_text().splitlines(keepends=True) if "->" in line)
