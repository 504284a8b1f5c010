"""Ways out of a sandbox (threat model, T1 to T13), tried from inside every real runtime.

Of `docker` as jobs have their sandboxes, of `local` as live ones are, too; of writable containers, whose root has six
capabilities, `test_containers.py`.
"""

import contextlib
import json
import signal
import uuid
from pathlib import Path

import pytest

from core.errors import ExecdUnreachableError
from runtimes.base import FileUpload
from tests.support import probes
from tests.support.entry_points import ENTRY_POINTS
from tests.support.outside import background, host_process, host_processes, listening_on_the_host
from tests.support.runtime_fixtures import kind_named, runtime_params
from tests.support.sandboxes import Kind, is_root

LIVE = "local-live"
ENDS_A_LIVE_ONE = [signal.SIGTERM, signal.SIGINT]


class LiveKind(Kind):
    """A runtime with sandboxes as live ones are started: under root with user 0, and writable."""

    def spec(self, **changes):
        return super().spec(**{"is_sealed": False, "is_writable": True, **changes})


@pytest.fixture(scope="session", params=[*runtime_params("local", "docker"), LIVE])
def real_kind(request, runtime_folder):
    """Every runtime that starts something, in each form."""
    for kind in kind_named(request.param.partition("-")[0], runtime_folder):
        yield LiveKind(kind.runtime, kind.image, kind.python_argv) if request.param == LIVE else kind


@pytest.fixture
def is_live(real_kind):
    return isinstance(real_kind, LiveKind)


@pytest.fixture(scope="module")
def probe_line(shared_box):
    """The line for a shell that runs one of the programs in `inside`."""

    def make(name):
        shared_box.client.upload([FileUpload(f"/tmp/{name}.py", probes.program_text(name).encode())])
        return " ".join([*shared_box.python_argv, f"/tmp/{name}.py"])

    return make


@pytest.mark.parametrize("entry", ENTRY_POINTS)
def test_no_process_has_any_privilege(shared_box, probe_line, entry, is_live):
    """T1: whichever way it is started. User 0 of a live sandbox has no capability either."""
    said = ENTRY_POINTS[entry](shared_box, probe_line("privileges"))
    assert probes.privilege_faults(json.loads(said)) == (["Gid", "Uid"] if is_live and is_root() else [])


@pytest.mark.skipif(not is_root(), reason="an ordinary user's sandboxes run as that user")
def test_sandbox_is_nobody_on_the_host(real_kind):
    """T1: seen from the host, none of its processes is root or another sandbox's user."""
    with real_kind.box() as one, real_kind.box() as two:
        users = [host_user_of(one), host_user_of(two)]
    assert 0 not in users
    assert users[0] != users[1]


def host_user_of(box):
    """The host's user of a process in the sandbox that carries a mark."""
    mark = uuid.uuid4().hex
    with background(box, f"sleep 30 # {mark}\ntrue"):
        return Path(f"/proc/{host_process(mark)}").stat().st_uid


def test_dangerous_system_calls_are_refused_with_an_error(shared_box):
    """T2."""
    assert probes.find(shared_box, "system_calls") == []


def test_setuid_bit_cannot_be_set_to_any_use(shared_box, is_live):
    """T3: a program of one's own with the bit, and every program of the image that has it."""
    shared_box.client.upload([FileUpload("/tmp/setuid", b"#!/bin/sh\nid -u\n", 0o6755)])
    said = shared_box.sh(
        "chmod 6755 /tmp/setuid; /tmp/setuid; [ -x /bin/setuid-cat ] && setuid-cat /proc/self/status; id -u"
    )
    users = said.out.split()
    assert users
    assert ("0" in users) == (is_live and is_root())  # then it is everybody's own number, which gives nothing


def test_no_engine_or_cluster_is_in_reach(shared_box):
    """T4."""
    assert probes.find(shared_box, "engine_sockets") == []


def test_kernel_files_and_devices_are_out_of_reach(shared_box):
    """T5."""
    before = Path("/proc/sys/kernel/core_pattern").read_text()
    assert probes.find(shared_box, "kernel_files") == []
    assert Path("/proc/sys/kernel/core_pattern").read_text() == before


def test_process_links_show_nothing_of_the_host(shared_box):
    """T6: what a process was started from is no way to the host's tree."""
    assert probes.find(shared_box, "host_links") == []


def test_execd_cannot_be_changed_from_inside(shared_box):
    """T7: neither its files nor its memory, on which the results of later commands depend."""
    assert probes.find(shared_box, "attack_execd") == []


def test_execd_cannot_be_slowed_starved_or_ended_from_inside(real_kind, is_live):
    """T7: every signal, and every call and file by which one process of a user steers another."""
    own = ENDS_A_LIVE_ONE if is_live else []  # whose own it is: it may end it
    with real_kind.box() as box:
        assert probes.find(box, "steer_execd", *(str(int(number)) for number in own)) == []
        box.client.ping()
        sent = [name for name in ("TERM", "INT", "KILL", "STOP") if signal.Signals[f"SIG{name}"] not in own]
        assert box.sh("".join(f"kill -{name} 1; " for name in sent) + "echo on").out == "on\n"
        assert box.sh("ulimit -n 50; ulimit -n").out == "50\n"


@pytest.mark.parametrize("number", ENDS_A_LIVE_ONE)
def test_live_sandbox_ends_by_the_signals_to_process_1_that_stop_a_program(real_kind, is_live, number):
    """T7: these two, and of a live one only."""
    with real_kind.box() as box:
        ends = pytest.raises(ExecdUnreachableError) if is_live else contextlib.nullcontext()
        with ends:
            box.sh(f"kill -{int(number)} 1; sleep 1")
            box.client.ping()


def test_programs_may_still_tune_themselves(shared_box):
    """What keeps others off execd is in nobody's way."""
    assert probes.find(shared_box, "ordinary_tuning") == []


def test_no_file_in_the_sandbox_sets_variables_of_later_commands(real_kind, is_live):
    """T7: nor what their shell reads, nor which programs it finds. A live sandbox may set them for itself."""
    with real_kind.box(workdir="/opt/opensandbox") as box:
        box.client.upload([FileUpload("/opt/opensandbox/.env", HOSTILE_ENV)])
        box.client.upload([FileUpload("/opt/opensandbox/evil", b"echo forged; exit 0")])
        said = box.sh("echo $FORGED $BASH_ENV $LD_PRELOAD; [ /nowhere != $PATH ] && cat /dev/null && false")
        assert (said.out, said.code) == (("forged\n", 0) if is_live else ("\n", 1))


HOSTILE_ENV = b"PATH=/nowhere\nBASH_ENV=/opt/opensandbox/evil\nLD_PRELOAD=/nowhere.so\nFORGED=1\n"


def test_execd_answers_nobody_inside(shared_box):
    """T7: its port is in reach of the code where the engine gives a network, but not without the token."""
    assert probes.find(shared_box, "call_execd") == []


def test_system_folders_cannot_be_changed(shared_box):
    """T9."""
    assert probes.find(shared_box, "system_folders") == []


def test_sandboxes_do_not_see_each_other(real_kind):
    """T10."""
    mark = f"mark{uuid.uuid4().hex}"
    with (
        real_kind.box() as one,
        real_kind.box() as two,
        background(one, probes.probe(one, "leave_traces", mark), until=b"left\n"),
    ):
        assert "loopback port" in probes.find(one, "find_traces", mark)
        assert probes.find(two, "find_traces", mark) == []


def test_next_sandbox_of_the_same_name_finds_no_trace(real_kind):
    """T11: not in files, memory or queues, and no process."""
    mark = f"mark{uuid.uuid4().hex}"
    with real_kind.box(workdir="/work") as first:
        with background(first, probes.probe(first, "leave_traces", mark), until=b"left\n"):
            assert first.sh(f"echo x > /work/{mark}; echo x > $HOME/{mark}; ls /work").out == f"{mark}\n"
        first.sh(f"(setsid sleep 1000 {mark} &)")
        name = first.handle.name
    with real_kind.box(name=name, workdir="/work") as second:
        assert probes.find(second, "find_traces", mark) == []
        assert second.sh("ls -A /work /tmp $HOME").out.count(mark) == 0
    assert host_processes(mark) == []


def test_nothing_types_into_a_terminal(shared_box):
    """T12: not even a program into its own."""
    program = (
        "import fcntl\ntry: fcntl.ioctl(0, 0x5412, b'x')\nexcept OSError as error: print(error.strerror)"
    )
    shared_box.client.upload([FileUpload("/tmp/type.py", program.encode())])
    said = ENTRY_POINTS["terminal"](shared_box, " ".join([*shared_box.python_argv, "/tmp/type.py"]))
    assert said == "Operation not permitted\r\n"


@pytest.mark.parametrize("entry", ENTRY_POINTS)
def test_programs_inherit_only_their_streams(shared_box, probe_line, entry):
    """T13."""
    assert json.loads(ENTRY_POINTS[entry](shared_box, probe_line("descriptors"))) == []


def test_nothing_outside_answers_without_a_network(shared_box):
    """T45: the host's loopback, its other addresses, abstract sockets, metadata and names."""
    with listening_on_the_host() as targets:
        assert probes.find(shared_box, "network", json.dumps(targets)) == []
