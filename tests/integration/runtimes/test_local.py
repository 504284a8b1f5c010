"""The local runtime's life beside other threads and processes, and what it leaves when something fails."""

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from core.errors import (
    CreateTimeoutError,
    DaemonError,
    ExecdUnreachableError,
    ImageNotFoundError,
    NotSupportedError,
    RuntimeUnavailableError,
    SpecInvalidError,
)
from runtimes.base import EXECD_PORT, Command, ResourceLimits
from runtimes.bundle import Bundle, ensure_bundle
from runtimes.cgroups import CgroupTree
from runtimes.local.config import LocalConfig
from runtimes.local.runtime import LocalRuntime
from runtimes.netns import connect_in_namespace
from runtimes.processes import ProcessRef
from tests.support.ordinary_user import run_as_ordinary_user
from tests.support.outside import background, host_processes
from tests.support.sandboxes import START_SECONDS, Box, Kind, is_root, local_kind, make_spec

as_root = pytest.mark.skipif(not is_root(), reason="needs root")

REPOSITORY = Path(__file__).resolve().parents[3]

OTHER_PROCESS = """
import sys
from pathlib import Path
from runtimes.local.config import LocalConfig
from runtimes.local.runtime import LocalRuntime
from tests.support.sandboxes import make_spec
folder = Path(sys.argv[1])
runtime = LocalRuntime(LocalConfig(state_dir=folder / "state", bundle_dir=Path(sys.argv[2])))
handle = runtime.create(make_spec(image="host", name=sys.argv[3], labels={"by": "other"}), timeout_seconds=60)
print(handle.ref, flush=True)
sys.stdin.read()
runtime.remove(handle)
"""


@pytest.fixture
def kind(tmp_path, runtime_folder):
    """A local runtime with a state folder of its own."""
    runtime = LocalRuntime(LocalConfig(state_dir=tmp_path / "state", bundle_dir=runtime_folder / "bundles"))
    yield Kind(runtime, "host", ensure_bundle(runtime_folder / "bundles").command[:-1])
    runtime.close()


@pytest.fixture
def bwrap_kind(tmp_path, runtime_folder):
    """The same with the executor that everyone can use."""
    runtime = LocalRuntime(
        LocalConfig(state_dir=tmp_path / "state", bundle_dir=runtime_folder / "bundles", executor="bwrap")
    )
    yield Kind(runtime, "host", ensure_bundle(runtime_folder / "bundles").command[:-1])
    runtime.close()


@pytest.fixture
def other_process(tmp_path, runtime_folder):
    """Another process with the same state folder that has made a sandbox and waits: (process, name, ref)."""
    name = make_spec().name
    argv = [sys.executable, "-c", OTHER_PROCESS, str(tmp_path), str(runtime_folder / "bundles"), name]
    with subprocess.Popen(
        argv, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield process, name, process.stdout.readline().strip()
        process.kill()


def leftovers(kind, name):
    """All that a sandbox may leave: records, sockets, control groups, processes."""
    state = kind.runtime._config.state_dir
    found = [*state.glob(f"sandboxes/{name}*"), *(state / "sockets").iterdir()]
    found += [
        mount.path for mount in kind.runtime._cgroups._usable() if (mount.path / "sandmill" / name).exists()
    ]
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if f"SANDMILL_SANDBOX={name}".encode() in (folder / "environ").read_bytes():
                    found.append(folder)
            except OSError:
                continue
    return found


def wait_until_gone(process, seconds=10):
    deadline = time.monotonic() + seconds
    while process.is_alive and time.monotonic() < deadline:
        time.sleep(0.01)
    return not process.is_alive


def process_of(ref):
    pid, started = ref.split(".")
    return ProcessRef(int(pid), int(started))


def test_sandbox_outlives_the_thread_that_made_it(kind):
    """Sandboxes die with the thread that forked them, so that must not be the caller's."""
    handles = []
    thread = threading.Thread(
        target=lambda: handles.append(kind.runtime.create(kind.spec(), timeout_seconds=START_SECONDS))
    )
    thread.start()
    thread.join()
    try:
        kind.runtime.executions(handles[0]).ping()
        assert process_of(handles[0].ref).is_alive
    finally:
        kind.runtime.remove(handles[0])


def test_sandbox_dies_with_the_process_that_made_it_and_can_be_cleared_away(kind, other_process):
    process, name, ref = other_process
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert wait_until_gone(process_of(ref))
    listed = kind.runtime.list()
    assert [(handle.name, handle.ref, handle.labels) for handle in listed] == [(name, ref, {"by": "other"})]
    kind.runtime.remove(listed[0])
    assert leftovers(kind, name) == []


def test_sandbox_of_another_process_is_used_and_removed(kind, other_process):
    process, name, ref = other_process
    (handle,) = kind.runtime.list()
    assert kind.runtime.create(kind.spec(name=name), timeout_seconds=5) == handle
    assert Box(kind.runtime, handle, kind.runtime.executions(handle)).sh("echo hello").out == "hello\n"
    kind.runtime.remove(handle)
    assert not process_of(ref).is_alive
    assert leftovers(kind, name) == []
    process.communicate("")
    assert process.returncode == 0


def test_sandbox_that_another_object_removed_is_let_go(kind, tmp_path, runtime_folder):
    other = LocalRuntime(LocalConfig(state_dir=tmp_path / "state", bundle_dir=runtime_folder / "bundles"))
    with kind.box() as box:
        other.remove(box.handle)
        assert wait_until_gone(process_of(box.handle.ref))
    assert kind.runtime._started == {}
    other.close()


def test_name_of_a_dead_sandbox_can_be_used_again(kind):
    with kind.box() as dead:
        os.kill(process_of(dead.handle.ref).pid, signal.SIGKILL)
        assert wait_until_gone(process_of(dead.handle.ref))
        with pytest.raises(ExecdUnreachableError):
            dead.client.ping()
        with kind.box(name=dead.handle.name) as new:
            assert new.handle.ref != dead.handle.ref
            new.client.ping()
    assert leftovers(kind, dead.handle.name) == []


def test_start_that_was_cut_off_is_found_and_cleared_away(kind):
    """A worker killed between reserving the name and learning the process."""
    spec = kind.spec()
    with kind.box() as box:
        records = kind.runtime._records()
        record = records.reserve(spec.name, {})
        records.update(record, owner=ProcessRef(record.owner.pid, record.owner.started - 1))
        assert spec.name in {handle.name for handle in kind.runtime.list()}
        with kind.box(name=spec.name) as new:
            new.client.ping()
        box.client.ping()
    assert leftovers(kind, spec.name) == []


@pytest.mark.parametrize("broken", ["loader", "program", "argument"])
def test_start_by_bwrap_that_fails_says_why_and_leaves_nothing(bwrap_kind, broken):
    kind = bwrap_kind
    with kind.box() as box:
        box.client.ping()
    good = kind.runtime._prepared.bundle
    command = {
        "loader": ("/.sbx/lib/none", *good.command[1:]),
        "program": (*good.command[:-1], "/.sbx/app/none.pyc"),
        "argument": (*good.command, "--no-such-flag"),
    }[broken]
    kind.runtime._prepared = replace(kind.runtime._prepared, bundle=Bundle(good.path, command))
    spec = kind.spec()
    with pytest.raises(DaemonError, match=r"none|no-such-flag"):
        kind.runtime.create(spec, timeout_seconds=START_SECONDS)
    assert leftovers(kind, spec.name) == []
    assert kind.runtime.list() == []


@pytest.mark.parametrize("seconds", [0.0, 0.001, 0.005, 0.01, 0.02, 0.04])
def test_timeout_at_any_moment_leaves_nothing(kind, seconds):
    with kind.box() as box:
        box.client.ping()
    spec = kind.spec()
    with suppress(CreateTimeoutError):
        kind.runtime.remove(kind.runtime.create(spec, timeout_seconds=seconds))
    assert leftovers(kind, spec.name) == []


def test_only_the_host_image_exists(kind):
    advice = (
        r"besides there is 'host'; `sandmill-server image pull NAME` \(in a clone `./run image pull NAME`\)"
    )
    with pytest.raises(ImageNotFoundError, match=advice):
        kind.runtime.create(kind.spec(image="python:3.11"), timeout_seconds=5)


@pytest.mark.parametrize(
    "workdir", ["/usr/bin", "/etc/x", "/proc/1", "/sys", "/.sbx/x", "/dev/x", "/tmp/../usr/x"]
)
def test_workdir_in_a_system_folder_is_refused(kind, workdir):
    with pytest.raises(SpecInvalidError, match="read-only system folder"):
        kind.runtime.create(kind.spec(workdir=workdir), timeout_seconds=5)


def test_environment_too_large_for_a_program_is_refused(kind):
    with pytest.raises(SpecInvalidError, match="larger"):
        kind.runtime.create(kind.spec(env={"A": "x" * 200_000}), timeout_seconds=5)
    with kind.box(env={f"V{n}": "x" * 90 for n in range(900)}) as box:
        assert box.sh("echo $V899").out == "x" * 90 + "\n"


def test_state_folder_with_a_very_long_name_works(tmp_path, runtime_folder):
    """Addresses of Unix sockets have room for 107 bytes."""
    folder = tmp_path / ("long" * 30)
    runtime = LocalRuntime(LocalConfig(state_dir=folder, bundle_dir=runtime_folder / "bundles"))
    try:
        with Kind(runtime, "host").box() as box:
            assert box.sh("echo ok").out == "ok\n"
        assert folder.stat().st_mode & 0o777 == 0o700
    finally:
        runtime.close()


def test_environment_is_not_on_a_command_line_of_the_host(kind):
    secret = f"secret-{time.time_ns()}"
    with kind.box(env={"TOKEN": secret}) as box:
        assert box.sh("echo $TOKEN").out == secret + "\n"
        assert host_processes(secret) == []


def test_extra_folder_of_the_host_is_shown_read_only(tmp_path, runtime_folder):
    extra = tmp_path / "extra"
    extra.mkdir()
    (extra / "file").write_text("from the host\n")
    with local_kind(runtime_folder, host_paths=(extra,)) as kind, kind.box() as box:
        said = box.sh(f"cat {extra}/file; touch {extra}/new 2>&1")
        assert said.out.startswith("from the host\n")
        assert said.code != 0
    assert sorted(path.name for path in extra.iterdir()) == ["file"]


def test_other_ports_are_reached_as_root_only(kind):
    server = (
        "import socket\nlistener = socket.create_server(('127.0.0.1', 8123))\nprint('on', flush=True)\n"
        "connection, _ = listener.accept()\nconnection.sendall(connection.recv(10)[::-1])"
    )
    with (
        kind.box() as box,
        background(box, Command(argv=[*kind.python_argv, "-c", server]), until=b"on\n"),
    ):
        if not is_root():
            with pytest.raises(NotSupportedError, match="root"):
                kind.runtime.connect(box.handle, 8123, timeout_seconds=5)
            return
        with kind.runtime.connect(box.handle, 8123, timeout_seconds=5) as connection:
            connection.sendall(b"abc")
            assert connection.recv(10) == b"cba"
        with pytest.raises(ExecdUnreachableError):
            kind.runtime.connect(box.handle, 9, timeout_seconds=5)


@as_root
def test_call_to_a_port_nobody_has_is_never_answered_by_itself(kind):
    """The kernel may pick the called port for the caller: such a socket is connected to itself, and in the way."""
    with kind.box() as box:
        process = process_of(box.handle.ref)
        # Leaves the kernel two ports to pick from, and calls one of them.
        narrow = "echo 40000 40001 > /proc/sys/net/ipv4/ip_local_port_range"
        subprocess.run(
            ["nsenter", "--net", f"--target={process.pid}", "sh", "-c", narrow], check=True, timeout=20
        )
        for _ in range(20):
            with pytest.raises(ExecdUnreachableError):
                connect_in_namespace(process, 40_000, timeout_seconds=1)


@as_root
def test_host_without_user_namespaces_gets_one_clear_line(tmp_path):
    """As an ordinary user in a user namespace whose setting forbids more of them."""
    check = (
        "import sys\nfrom pathlib import Path\nfrom runtimes.registry import build_runtime\n"
        "from core.errors import RuntimeUnavailableError\n"
        "Path('/proc/sys/user/max_user_namespaces').write_text('0')\n"
        "try:\n    build_runtime('local', Path.home() / 'node').check()\n"
        "except RuntimeUnavailableError as error:\n    print(error)\n"
    )
    run = (
        "import os, sys\n"
        "os.execvp('unshare', ['unshare', '--user', '--map-root-user', sys.executable, '-c', sys.argv[1]])"
    )
    done = run_as_ordinary_user(["-c", run, check], tmp_path / "home", timeout_seconds=60)
    assert "sysctl -w user.max_user_namespaces" in done.stdout, done.stderr
    assert "docker" in done.stdout
    assert done.stdout.count("\n") == 1


@as_root
def test_root_without_other_users_is_not_taken_for_an_ordinary_user(tmp_path):
    """Its sandboxes would run as the host's root."""
    check = (
        "import sys\nfrom pathlib import Path\nfrom runtimes.registry import build_runtime\n"
        "build_runtime('local', Path(sys.argv[1])).check()"
    )
    argv = ["unshare", "--user", "--map-root-user", sys.executable, "-c", check, str(tmp_path)]
    done = subprocess.run(argv, cwd=REPOSITORY, check=False, capture_output=True, text=True, timeout=60)
    assert "RuntimeUnavailableError: root has no host user 720000 here" in done.stderr


def test_bundle_that_cannot_be_built_is_told(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    runtime = LocalRuntime(LocalConfig(state_dir=tmp_path / "state", bundle_dir=blocked / "bundles"))
    with pytest.raises(RuntimeUnavailableError, match="bundle"):
        runtime.check()


def test_bundle_is_built_once_by_many(tmp_path):
    folder = tmp_path / "bundles"
    program = (
        "import sys\nfrom pathlib import Path\nfrom runtimes.bundle import ensure_bundle\n"
        "print(ensure_bundle(Path(sys.argv[1])).path)"
    )
    argv = [sys.executable, "-c", program, str(folder)]
    running = [subprocess.Popen(argv, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    paths = {process.communicate(timeout=60)[0].strip() for process in running}
    assert len(paths) == 1
    assert [path for path in folder.iterdir() if path.is_dir()] == [Path(paths.pop())]


def test_closed_runtime_starts_again_on_the_next_create(kind):
    with kind.box():
        pass
    kind.runtime.close()
    with kind.box() as box:
        box.client.ping()


def test_socket_of_execd_is_for_the_owner_of_the_state_only(kind):
    with kind.box():
        folder = kind.runtime._config.state_dir / "sockets"
        assert folder.stat().st_mode & 0o077 == 0
        (path,) = folder.iterdir()
        assert path.is_socket()


@as_root
def test_processes_without_a_record_are_found_by_their_groups(tmp_path):
    """A creator that is killed between start and record leaves a sandbox whose first process nobody wrote down."""
    tree = CgroupTree("sandmill-test")
    group = tree.create("sm-unrecorded", ResourceLimits(1000, 64 << 20, 1 << 20, 16))
    with group.entered_by_this_thread():
        process = subprocess.Popen(["sleep", "60"], user=65534, group=65534, extra_groups=[])
    try:
        assert process.pid in group.process_ids()
        group.remove(timeout_seconds=5)
        assert process.wait(5) == -9
    finally:
        process.kill()
        process.wait()


def cpu_used_pct(box: Box) -> float:
    connection = http.client.HTTPConnection("sandbox")
    with closing(box.runtime.connect(box.handle, EXECD_PORT, timeout_seconds=10)) as connection.sock:
        connection.request("GET", "/metrics")
        share = json.loads(connection.getresponse().read())["cpu_used_pct"]
    assert isinstance(share, float)
    return share


def test_load_of_the_machine_is_not_told_as_the_sandboxs(kind):
    with kind.box() as box:
        cpu_used_pct(box)
        until = time.process_time() + 0.5
        while time.process_time() < until:
            pass
        assert cpu_used_pct(box) < 50
        box.sh("i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done")
        assert cpu_used_pct(box) > 0
