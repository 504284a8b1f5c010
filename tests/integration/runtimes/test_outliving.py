"""Local sandboxes that go on when the process that made them is killed, and the next one that finds them."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from core.errors import NotSupportedError
from runtimes.base import Command, FileUpload, KeptRun
from runtimes.local.config import LocalConfig
from runtimes.local.runtime import LocalRuntime
from runtimes.processes import ProcessRef
from tests.support.execd import wait_for
from tests.support.sandboxes import START_SECONDS, is_root, make_spec

REPOSITORY = Path(__file__).resolve().parents[3]
EXECUTORS = ["zygote", "bwrap"] if is_root() else ["bwrap"]

MAKER = """
import os, sys
from pathlib import Path
from runtimes.base import Command, KeptRun
from runtimes.local.config import LocalConfig
from runtimes.local.runtime import LocalRuntime
from tests.support.sandboxes import make_spec
state, bundles, executor, name, point = sys.argv[1:]
config = LocalConfig(state_dir=Path(state), bundle_dir=Path(bundles), executor=executor, outlives=True)
runtime = LocalRuntime(config)
def die(*_):
    os.kill(os.getpid(), 9)
if point == "init-unknown":
    from runtimes.local import launch
    from runtimes.local.zygote.client import Zygote
    launch._Launch._release = die
    Zygote._send = lambda self, *arguments, send=Zygote._send: die(send(self, *arguments))
handle = runtime.create(make_spec(name=name, image="host"), timeout_seconds=60)
client = runtime.executions(handle)
client.run(Command(shell="echo one; sleep 0.5; echo two; exit 5"), on_output=die, kept=KeptRun("step"))
"""


def run_and_die(state: Path, bundles: Path, executor: str, name: str, point: str = "running") -> None:
    done = subprocess.run(
        [sys.executable, "-c", MAKER, str(state), str(bundles), executor, name, point],
        cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL


@pytest.fixture(params=EXECUTORS)
def successor(request, tmp_path, runtime_folder):
    """Another process's view: a runtime on the same state, and how to make the first one die."""
    state, bundles = tmp_path / "state", runtime_folder / "bundles"
    config = LocalConfig(state_dir=state, bundle_dir=bundles, executor=request.param, outlives=True)
    runtime = LocalRuntime(config)
    yield runtime, lambda name, point="running": run_and_die(state, bundles, request.param, name, point)
    for handle in runtime.list():
        runtime.remove(handle)
    runtime.close()


def test_sandbox_and_its_command_outlive_their_maker(successor):
    runtime, run = successor
    run("sm-first")
    (handle,) = runtime.list()
    got = []
    result = runtime.executions(handle).run(
        Command(shell="echo one; sleep 0.5; echo two; exit 5"),
        on_output=lambda _, data: got.append(data),
        kept=KeptRun("step", offset=4, is_started=True),
    )
    assert (result.exit_code, b"".join(got)) == (5, b"two\n")
    init = ProcessRef.of(int(handle.ref.split(".")[0]))
    runtime.remove(handle)
    assert runtime.list() == []
    assert not init.is_alive


def test_successor_starts_its_own_beside_it(successor):
    runtime, run = successor
    run("sm-first")
    second = runtime.create(make_spec(image="host"), timeout_seconds=START_SECONDS)
    runtime.executions(second).ping()
    assert len(runtime.list()) == 2


def test_start_that_was_cut_short_leaves_a_name_that_can_be_removed(successor):
    runtime, run = successor
    run("sm-first", "init-unknown")
    (handle,) = runtime.list()
    runtime.remove(handle)
    again = runtime.create(make_spec(name="sm-first", image="host"), timeout_seconds=START_SECONDS)
    runtime.executions(again).ping()
    named = b"SANDMILL_SANDBOX=sm-first"
    environments = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            environments.append((folder / "environ").read_bytes())
    assert sum(named in each for each in environments) <= 1


@pytest.mark.skipif(not is_root(), reason="the zygote is root's way")
def test_zygote_ends_after_its_last_sandbox_when_nobody_is_there(tmp_path, runtime_folder):
    state, bundles = tmp_path / "state", runtime_folder / "bundles"
    run_and_die(state, bundles, "zygote", "sm-first")
    reader = LocalRuntime(LocalConfig(state_dir=state, bundle_dir=bundles))
    (handle,) = reader.list()
    init = ProcessRef.of(int(handle.ref.split(".")[0]))
    zygote = parent_of(init)
    assert zygote.is_alive
    reader.remove(handle)
    wait_for(lambda: not zygote.is_alive)
    reader.close()


def test_a_check_removes_what_a_killed_check_has_left_and_nothing_else(successor):
    runtime, run = successor
    mine = ProcessRef.of(os.getpid())
    under_way = f"sm-check-{mine.pid}-{mine.started}-ab"
    for name in ("sm-check-999999999-1-ab", under_way, "sm-checked"):
        run(name)
    runtime.check()
    assert {handle.name for handle in runtime.list()} == {under_way, "sm-checked"}


@pytest.mark.skipif(not is_root(), reason="the zygote is root's way")
def test_zygote_of_another_build_is_left_to_its_sandboxes(tmp_path, runtime_folder):
    state, bundles = tmp_path / "state", runtime_folder / "bundles"
    run_and_die(state, bundles, "zygote", "sm-first")
    (socket,) = (state / "zygotes").glob("*.socket")
    socket.rename(socket.with_name("0123.socket"))  # as if its sources had been others
    runtime = LocalRuntime(LocalConfig(state_dir=state, bundle_dir=bundles, outlives=True))
    old = next(handle for handle in runtime.list())
    new = runtime.create(make_spec(image="host"), timeout_seconds=START_SECONDS)
    zygotes = [parent_of(ProcessRef.of(int(handle.ref.split(".")[0]))) for handle in (old, new)]
    assert zygotes[0] != zygotes[1]
    runtime.executions(old).ping()
    runtime.remove(old)
    wait_for(lambda: not zygotes[0].is_alive)
    runtime.executions(new).ping()
    runtime.remove(new)
    runtime.close()
    wait_for(lambda: not zygotes[1].is_alive)


@pytest.fixture
def adopted(tmp_path, runtime_folder):
    """A runtime as the next process has it, and the sandbox that it found there."""
    state, bundles = tmp_path / "state", runtime_folder / "bundles"
    run_and_die(state, bundles, "zygote", "sm-first")
    runtime = next_runtime(tmp_path, runtime_folder)
    yield runtime, runtime.list()[0]
    for handle in runtime.list():
        runtime.remove(handle)
    runtime.close()


def next_runtime(tmp_path, runtime_folder) -> LocalRuntime:
    return LocalRuntime(
        LocalConfig(state_dir=tmp_path / "state", bundle_dir=runtime_folder / "bundles", outlives=True)
    )


def write(runtime, handle, text: bytes) -> None:
    runtime.executions(handle).upload([FileUpload("/tmp/text", text)])


def read(runtime, handle) -> bytes:
    return runtime.executions(handle).download("/tmp/text", max_bytes=100)


def start(runtime, snapshot: str):
    return runtime.create(make_spec(image=f"snapshot:{snapshot}"), timeout_seconds=START_SECONDS)


@pytest.mark.skipif(not is_root(), reason="snapshots of local sandboxes need root")
def test_successor_makes_snapshots_of_what_it_found(adopted):
    runtime, handle = adopted
    write(runtime, handle, b"kept")
    runtime.snapshot(handle, "one")
    write(runtime, handle, b"later")
    assert read(runtime, start(runtime, "one")) == b"kept"
    assert read(runtime, handle) == b"later"
    assert runtime.snapshot_bytes("one") >= 4096


@pytest.mark.skipif(not is_root(), reason="snapshots of local sandboxes need root")
def test_successor_makes_snapshots_of_what_another_release_started(tmp_path, runtime_folder):
    run_and_die(tmp_path / "state", runtime_folder / "bundles", "zygote", "sm-first")
    (socket,) = (tmp_path / "state" / "zygotes").glob("*.socket")
    socket.rename(socket.with_name("0123.socket"))  # as if its sources had been others
    runtime = next_runtime(tmp_path, runtime_folder)
    (handle,) = runtime.list()
    write(runtime, handle, b"old")
    runtime.snapshot(handle, "one")
    with pytest.raises(NotSupportedError, match="an earlier release"):
        runtime.fork(handle, make_spec(image="host"), timeout_seconds=START_SECONDS)
    new = start(runtime, "one")
    assert read(runtime, new) == b"old"
    for each in (handle, new):
        runtime.remove(each)
    runtime.close()


@pytest.mark.skipif(not is_root(), reason="forks of local sandboxes need root")
def test_fork_of_what_was_found_outlives_once_more(adopted, tmp_path, runtime_folder):
    runtime, handle = adopted
    write(runtime, handle, b"shared")
    first, second = runtime.fork(handle, make_spec(name="sm-second"), timeout_seconds=START_SECONDS)
    third_runtime = next_runtime(tmp_path, runtime_folder)
    # The first one's disk is a layer of the second, which this object has not started.
    third_runtime.remove(first)
    third_runtime.snapshot(second, "two")
    again = start(third_runtime, "two")
    assert (read(third_runtime, second), read(third_runtime, again)) == (b"shared", b"shared")
    third_runtime.remove(again)
    third_runtime.close()


@pytest.mark.skipif(not is_root(), reason="snapshots of local sandboxes need root")
def test_files_of_a_removed_snapshot_stay_as_long_as_a_sandbox_stands_on_them(
    adopted, tmp_path, runtime_folder
):
    runtime, handle = adopted
    write(runtime, handle, b"kept")
    runtime.snapshot(handle, "one")
    users = [start(runtime, "one"), start(runtime, "one")]
    folder = tmp_path / "state" / "snapshots" / "one"
    runtime.remove_snapshot("one")
    assert (runtime.snapshots(), folder.is_dir()) == ([], True)
    successor = next_runtime(tmp_path, runtime_folder)
    # It has not started them, and takes none of them for gone.
    assert read(successor, start_fork(successor, users)) == b"kept"
    assert folder.is_dir()
    for each in successor.list():
        assert folder.is_dir() or each.name == handle.name
        successor.remove(each)
    assert not folder.exists()
    successor.close()


def start_fork(runtime, users: list):
    """Fork the first, which then stands on the snapshot a second time; gives the fork."""
    users[0], fork = runtime.fork(users[0], make_spec(name="sm-fork"), timeout_seconds=START_SECONDS)
    return fork


@pytest.mark.skipif(not is_root(), reason="snapshots of local sandboxes need root")
def test_lease_of_a_sandbox_that_is_gone_holds_no_snapshot(adopted, tmp_path, runtime_folder):
    runtime, handle = adopted
    runtime.snapshot(handle, "one")
    (tmp_path / "state" / "snapshots" / ".users").mkdir(exist_ok=True)
    (tmp_path / "state" / "snapshots" / ".users" / "sm-gone").write_text("one")
    runtime.remove_snapshot("one")
    assert (tmp_path / "state" / "snapshots" / "one").is_dir()
    successor = next_runtime(tmp_path, runtime_folder)
    successor.remove(start_host(successor))
    assert not (tmp_path / "state" / "snapshots" / "one").exists()
    successor.close()


def start_host(runtime):
    return runtime.create(make_spec(image="host"), timeout_seconds=START_SECONDS)


def parent_of(process: ProcessRef) -> ProcessRef:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return ProcessRef.of(int(fields[1]))
