"""What processes leave that are killed in the middle of something, and what the next one makes of it."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from core.errors import CreateTimeoutError, DaemonError, ExecdUnreachableError, NotSupportedError
from runtimes.local import runtime as runtime_module
from runtimes.local.config import LocalConfig
from runtimes.local.loop_disks import LoopDisks
from runtimes.local.runtime import LocalRuntime
from runtimes.processes import ProcessRef
from tests.support.execd import wait_for
from tests.support.sandboxes import START_SECONDS, is_root, local_kind

pytestmark = pytest.mark.skipif(not is_root(), reason="the zygote is root's way")

REPOSITORY = Path(__file__).resolve().parents[3]

WORKER = """
import os, sys
from pathlib import Path
from runtimes.local import layer_copy, snapshots
from runtimes.local.config import LocalConfig
from runtimes.local.loop_disks import LoopDisks
from runtimes.local.runtime import LocalRuntime
from tests.support.sandboxes import make_spec
config = LocalConfig(state_dir=Path(sys.argv[1]), bundle_dir=Path(sys.argv[2]), disk="file")
runtime = LocalRuntime(config)
handle = runtime.create(make_spec(image="host"), timeout_seconds=60)
print(handle.ref.split(".")[0], flush=True)
def die(*arguments, **options):
    layer_copy.copy_layer(*arguments, **options)
    os.kill(os.getpid(), 9)
snapshots.copy_layer = die
runtime.snapshot(handle, "half")
"""


@pytest.fixture
def kind(tmp_path):
    with local_kind(tmp_path) as made:
        yield made


def zygote_of(kind):
    return kind.runtime._prepared.executor._connection.pid


def spares_of(kind):
    pid = zygote_of(kind)
    numbers = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    found = [process for number in numbers if (process := ProcessRef.of(int(number))) is not None]
    # The first of all makes the others.
    return sorted(found, key=lambda process: process.started)[1:]


def loop_files():
    """Give the files that loop devices have."""
    found = subprocess.run(["losetup", "--list", "--noheadings"], capture_output=True, text=True, check=True)
    return found.stdout.splitlines()


def test_a_worker_killed_in_a_snapshot_leaves_nothing_after_the_next_start(tmp_path, runtime_folder):
    state, bundles = tmp_path / "state", runtime_folder / "bundles"
    done = subprocess.run(
        [sys.executable, "-c", WORKER, str(state), str(bundles)],
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    (state / "etc-new-left").mkdir()
    (state / "snapshots" / ".other.lock").touch()
    (state / "sandboxes" / "sm-x@1.4194999.tmp").touch()
    (state / "disks" / "sm-x.0.ext4").touch()
    runtime = LocalRuntime(LocalConfig(state_dir=state, bundle_dir=bundles, disk="file"))
    try:
        for handle in runtime.list():
            runtime.remove(handle)
        runtime.check()
    finally:
        runtime.close()
    wait_for(lambda: str(state) not in "".join(loop_files()))
    assert list((state / "disks").iterdir()) == []
    assert list((state / "snapshots").iterdir()) == []
    assert sorted(path.name for path in (state / "sandboxes").iterdir()) == ["lock"]
    assert not list(state.glob("etc-new-*"))


def test_spares_that_were_killed_cost_no_create(kind):
    with kind.box():
        wait_for(lambda: len(spares_of(kind)) == 9, seconds=20)
    spares = spares_of(kind)
    for process in spares:
        os.kill(process.pid, signal.SIGKILL)
    wait_for(lambda: not any(process.is_alive for process in spares))
    with kind.box() as box:
        box.client.ping()


def test_an_answer_that_comes_too_late_is_no_other_sandboxs(kind):
    with kind.box():
        pass
    os.kill(zygote_of(kind), signal.SIGSTOP)
    try:
        with pytest.raises(CreateTimeoutError):
            kind.runtime.create(kind.spec(), timeout_seconds=0.3)
    finally:
        os.kill(zygote_of(kind), signal.SIGCONT)
    with kind.box() as box:
        assert box.sh("echo right").out == "right\n"
        assert [handle.name for handle in kind.runtime.list()] == [box.handle.name]
    wait_for(lambda: len(spares_of(kind)) == 8, seconds=20)


def test_a_chain_of_forks_has_an_end(kind, monkeypatch):
    monkeypatch.setattr(runtime_module, "_MAX_WRITTEN_LAYERS", 2)
    current = kind.runtime.create(kind.spec(), timeout_seconds=START_SECONDS)
    for _ in range(2):
        first, current = kind.runtime.fork(current, kind.spec(), timeout_seconds=START_SECONDS)
        kind.runtime.remove(first)
    with pytest.raises(NotSupportedError, match="at most 2"):
        kind.runtime.fork(current, kind.spec(), timeout_seconds=START_SECONDS)
    kind.runtime.remove(current)


def test_calls_from_many_threads_on_few_names_leave_nothing(kind):
    """Forks lock two names at once: in one order, or two of them wait for each other."""
    names = [f"sm-race-{n}" for n in range(3)]

    def work(number):
        for turn in range(4):
            try:
                handle = kind.runtime.create(kind.spec(name=names[number % 3]), timeout_seconds=START_SECONDS)
                kind.runtime.pause(handle)
                spec = kind.spec(name=names[(number + 1 + turn % 2) % 3])
                handle, _ = kind.runtime.fork(handle, spec, timeout_seconds=START_SECONDS)
                kind.runtime.remove(handle)
            except (DaemonError, ExecdUnreachableError):
                continue  # another thread was there first

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    for handle in kind.runtime.list():
        kind.runtime.remove(handle)
    wait_for(lambda: len(spares_of(kind)) == 8, seconds=20)
    assert not list(Path("/sys/fs/cgroup").glob("*/sandmill/sm-race-*"))


def test_a_sandbox_killed_while_it_stood_still_ends_although_nothing_is_known_of_it(tmp_path, runtime_folder):
    state, bundles = tmp_path / "state", runtime_folder / "bundles"
    done = subprocess.run(
        [sys.executable, "-c", WORKER, str(state), str(bundles)],
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    left = ProcessRef.of(int(done.stdout))
    runtime = LocalRuntime(LocalConfig(state_dir=tmp_path / "another", bundle_dir=bundles))
    try:
        runtime.check()
        wait_for(lambda: left is None or not left.is_alive)
    finally:
        runtime.close()


def test_a_disk_that_is_being_made_is_not_swept(tmp_path):
    disks = LoopDisks(tmp_path / "disks")
    with disks.attached("sm-x.0", 16 << 20) as device:
        disks.sweep()
        assert [path.name for path in (tmp_path / "disks").iterdir()] == ["sm-x.0.ext4"]
        assert any(line.startswith(device) for line in loop_files())
    assert list((tmp_path / "disks").iterdir()) == []
