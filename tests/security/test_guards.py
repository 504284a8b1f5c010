"""Every guard holds something back: with one taken away, the probes of `test_escape.py` find a way."""

import json
import shutil
import socket
import tempfile
import uuid
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from core.errors import BadImageError, ExecdUnreachableError
from runtimes.base import FileUpload
from runtimes.docker import DockerConfig, DockerRuntime
from runtimes.local.config import LocalConfig
from runtimes.local.plan import Bind, ReadOnly, Symlink, Tmpfs
from runtimes.local.runtime import LocalRuntime
from tests.support import probes
from tests.support.images import DEBIAN_IMAGE, derived_image, ensure_debian_image, file_of_image
from tests.support.outside import background, listening_on_the_host
from tests.support.runtime_fixtures import kind_named
from tests.support.sandboxes import START_SECONDS, Kind, is_root


@pytest.fixture
def weaken_local(tmp_path, runtime_folder, local):
    """Make a local runtime whose plans have been changed."""

    @contextmanager
    def make(change, executor="auto"):
        class Weakened(LocalRuntime):
            def plan(self, *arguments):
                return change(super().plan(*arguments))

        runtime = Weakened(
            LocalConfig(
                state_dir=tmp_path / "state", bundle_dir=runtime_folder / "bundles", executor=executor
            )
        )
        try:
            yield Kind(runtime, local.image, local.python_argv)
        finally:
            runtime.close()

    return make


@pytest.fixture
def weaken_docker(runtime_folder):
    """Make a docker runtime whose rules have been changed."""

    @contextmanager
    def make(**changes):
        for usual in kind_named("docker", runtime_folder):

            class Weakened(DockerRuntime):
                def rules(self):
                    return replace(super().rules(), **changes)

            config = DockerConfig(bundle_dir=runtime_folder / "bundles", state_dir=runtime_folder / "docker")
            runtime = Weakened(config)
            try:
                yield Kind(runtime, usual.image, usual.python_argv)
            finally:
                runtime.close()

    return make


def without(plan, *mounts):
    """The plan less some mounts."""
    return replace(plan, mounts=tuple(mount for mount in plan.mounts if mount not in mounts))


def instead(plan, path, mount):
    """The plan with another mount at a path."""
    return replace(plan, mounts=tuple(mount if getattr(m, "path", "") == path else m for m in plan.mounts))


def unmasked(plan):
    """The plan with all of /proc to be seen."""
    return without(plan, *(m for m in plan.mounts if m.path.startswith("/proc/")))


def test_filter_is_what_refuses_system_calls(weaken_local):
    with weaken_local(lambda plan: replace(plan, seccomp=None)) as kind, kind.box() as box:
        open_calls = {name for name, _ in probes.find(box, "system_calls")}
        assert {"add_key", "ptrace", "kcmp", "socket AF_ALG"} & open_calls
        assert probes.privilege_faults(probes.find(box, "privileges")) == ["Seccomp"]


@pytest.mark.skipif(not is_root(), reason="an ordinary user's bwrap leaves none, asked or not")
def test_dropping_is_what_takes_capabilities_away(weaken_local):
    with weaken_local(lambda plan: replace(plan, keep_capabilities=True)) as kind, kind.box() as box:
        assert probes.privilege_faults(probes.find(box, "privileges")) != []


STEERING = {"prlimit64", "sched_setaffinity", "setpriority process", "setpriority user", "ioprio_set user"}


def test_filter_is_what_keeps_calls_off_execd(weaken_local):
    with weaken_local(lambda plan: replace(plan, seccomp=None)) as kind, kind.box() as box:
        assert set(probes.find(box, "steer_execd")) >= STEERING


@pytest.mark.docker
def test_profile_is_what_keeps_calls_off_execd(weaken_docker):
    with weaken_docker(seccomp="unconfined") as kind, kind.box() as box:
        assert set(probes.find(box, "steer_execd")) >= STEERING


def test_seal_is_what_keeps_signals_off_execd(real_kind):
    with real_kind.box(is_sealed=False) as box, pytest.raises(ExecdUnreachableError):
        box.sh("kill -TERM 1; sleep 60")


def test_seal_is_what_keeps_variables_out(real_kind):
    with real_kind.box(is_sealed=False, workdir="/opt/opensandbox") as box:
        box.client.upload([FileUpload("/opt/opensandbox/.env", b"FORGED=1\n")])
        assert box.sh("echo $FORGED").out == "1\n"


@pytest.mark.docker
def test_token_is_what_makes_execd_refuse(runtime_folder):
    class NoTokens:
        def of(self, name):
            return ""

    for kind in kind_named("docker", runtime_folder):
        kind.runtime._tokens = NoTokens()
        with kind.box() as box:
            assert ["command", "200"] in probes.find(box, "call_execd")


def test_user_namespaces_inside_are_off_even_without_the_filter(weaken_local):
    program = "import ctypes; print(ctypes.CDLL(None).unshare(0x10000000))"
    with weaken_local(lambda plan: replace(plan, seccomp=None)) as kind, kind.box() as box:
        assert box.python(program).out == "-1\n"
    loose = {"seccomp": None, "nested_user_namespaces": True}
    with weaken_local(lambda plan: replace(plan, **loose)) as kind, kind.box() as box:
        assert box.python(program).out == "0\n"


def test_network_namespace_is_what_cuts_the_network(weaken_local):
    with (
        weaken_local(lambda plan: replace(plan, namespaces=plan.namespaces - {"net"})) as kind,
        kind.box() as box,
        listening_on_the_host() as targets,
    ):
        reached = [entry[0] for entry in probes.find(box, "network", json.dumps(targets))]
    assert {"interfaces", "AF_INET", "AF_UNIX"} <= set(reached)


def test_ipc_namespace_is_what_keeps_shared_memory_apart(weaken_local):
    mark = f"mark{uuid.uuid4().hex}"
    with (
        weaken_local(lambda plan: replace(plan, namespaces=plan.namespaces - {"ipc"})) as kind,
        kind.box() as one,
        kind.box() as two,
        background(one, probes.probe(one, "leave_traces", mark), until=b"left\n"),
    ):
        found = probes.find(two, "find_traces", mark)
        for owner in (one, two):
            owner.run(probes.probe(owner, "remove_queues"))
    assert {"shared memory", "message queue"} <= set(found)


@pytest.mark.parametrize(
    ("change", "program", "finding"),
    [
        (unmasked, "kernel_files", "can read /proc/interrupts"),
        (lambda plan: without(plan, ReadOnly("/dev")), "system_folders", "made a file in /dev"),
        (lambda plan: instead(plan, "/bin", Symlink("usr/bin", "/bin")), "system_folders", "moved /bin"),
        (
            lambda plan: instead(plan, "/etc", Tmpfs("/etc", 1 << 20)),
            "system_folders",
            "made a file in /etc",
        ),
    ],
    ids=["proc-masks", "read-only-dev", "bin-is-a-mount", "etc-is-bound"],
)
def test_mount_is_what_protects(weaken_local, change, program, finding):
    # What the zygote mounts at /dev is not the sandbox user's, which would protect it a second time.
    executor = "bwrap" if "/dev" in finding else "auto"
    with weaken_local(change, executor) as kind, kind.box() as box:
        assert finding in probes.find(box, program)


def test_socket_of_the_host_would_be_found(weaken_local):
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    try:
        folder.chmod(0o755)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(folder / "engine.sock"))
            with (
                weaken_local(lambda p: replace(p, mounts=(*p.mounts, Bind(str(folder), "/srv")))) as kind,
                kind.box() as box,
            ):
                assert "socket /srv/engine.sock" in probes.find(box, "engine_sockets")
    finally:
        shutil.rmtree(folder)


def test_size_of_the_root_is_what_limits_the_disk(weaken_local):
    writing = "head -c 20000000 /dev/zero > /tmp/big"
    with weaken_local(lambda plan: plan) as kind, kind.box(limits={"disk_bytes": 8 << 20}) as box:
        assert box.sh(writing).code != 0
    bigger = Tmpfs("/", 64 << 20)
    with weaken_local(lambda plan: instead(plan, "/", bigger)) as kind, kind.box() as box:
        assert box.sh(writing).code == 0


@pytest.mark.docker
@pytest.mark.parametrize(
    ("changes", "faults"),
    [
        ({"seccomp": "unconfined"}, ["Seccomp"]),
        ({"no_new_privileges": False}, ["NoNewPrivs"]),
        ({"drop_capabilities": ()}, ["CapBnd"]),
    ],
    ids=["seccomp", "no-new-privileges", "capabilities"],
)
def test_container_setting_is_what_takes_privilege(weaken_docker, changes, faults):
    with weaken_docker(**changes) as kind, kind.box() as box:
        found = probes.privilege_faults(probes.find(box, "privileges"))
    assert set(faults) <= set(found)


@pytest.mark.docker
def test_own_profile_is_stricter_than_none(weaken_docker):
    with weaken_docker(seccomp="unconfined") as kind, kind.box() as box:
        assert {"add_key", "ioctl TIOCSTI"} <= {name for name, _ in probes.find(box, "system_calls")}


@pytest.mark.docker
def test_setuid_program_of_an_image_is_root_without_the_guards(weaken_docker):
    """The container's own capabilities and the missing flag, one without the other, are enough to stop it."""
    ensure_debian_image()
    files = {"cat": file_of_image(DEBIAN_IMAGE, "bin/cat")}
    with (
        derived_image(DEBIAN_IMAGE, "ENV PATH=/usr/bin:/bin", files=files, mode=0o4755) as image,
        weaken_docker(no_new_privileges=False, drop_capabilities=()) as kind,
        kind.box(image=image) as box,
    ):
        status = box.sh("/cat /proc/self/status").out
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert fields["Uid"].split()[1] == "0"
        assert int(fields["CapEff"], 16)


@pytest.mark.docker
def test_network_of_the_engine_would_be_found(weaken_docker):
    with weaken_docker(network="host") as kind, kind.box() as box, listening_on_the_host() as targets:
        reached = [entry[0] for entry in probes.find(box, "network", json.dumps(targets))]
    assert {"interfaces", "AF_INET"} <= set(reached)


@pytest.mark.docker
def test_container_of_root_is_not_left_running(weaken_docker):
    with weaken_docker(default_user=(0, 0)) as kind:
        spec = kind.spec()
        with pytest.raises(BadImageError, match="root"):
            kind.runtime.create(spec, timeout_seconds=START_SECONDS)
        assert spec.name not in {handle.name for handle in kind.runtime.list()}


@pytest.mark.docker
def test_user_of_its_own_is_what_keeps_a_neighbours_share(weaken_docker):
    with (
        weaken_docker(default_user=(1_777_777_777, 1_777_777_777)) as kind,
        kind.box() as greedy,
        kind.box() as neighbour,
        background(greedy, probes.probe(greedy, "inotify_instances", "stay"), until=b"\n"),
    ):
        assert probes.find(neighbour, "inotify_instances") == 0
