"""Ways out of a sandbox (threat model, T1 to T13), tried from inside every real runtime."""

import json
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from runtimes.base import Command, FileUpload
from tests.support import probes
from tests.support.outside import background, host_process, listening_on_the_host
from tests.support.sandboxes import is_root


@pytest.mark.parametrize("entry", ["argv", "shell", "child", "merged"])
def test_no_process_has_any_privilege(shared_box, entry):
    """T1: whichever way it is started."""
    if entry in ("argv", "merged"):
        command = replace(probes.probe(shared_box, "privileges"), merge_streams=entry == "merged")
    else:
        program = probes.program_text("privileges").encode()
        shared_box.client.upload([FileUpload("/tmp/probe.py", program)])
        run = " ".join([*shared_box.python_argv, "/tmp/probe.py"])
        command = Command(shell=run if entry == "shell" else f"(({run}) & wait)")
    assert probes.privilege_faults(json.loads(shared_box.run(command).out)) == []


@pytest.mark.skipif(not is_root(), reason="an ordinary user's sandboxes run as that user")
def test_sandbox_is_nobody_on_the_host(real_kind):
    """T1: seen from the host, none of its processes is root or another sandbox's user."""
    with real_kind.box() as one, real_kind.box() as two:
        users = [host_user_of(one), host_user_of(two)]
    assert 0 not in users
    if real_kind.runtime.name == "local":
        assert users[0] != users[1]


def host_user_of(box):
    """The host's user of a process in the sandbox that carries a mark."""
    mark = uuid.uuid4().hex
    with background(box, f"sleep 30 # {mark}\ntrue"):
        return Path(f"/proc/{host_process(mark)}").stat().st_uid


def test_dangerous_system_calls_are_refused_with_an_error(shared_box):
    """T2."""
    assert probes.find(shared_box, "system_calls") == []


def test_setuid_bit_cannot_be_set_to_any_use(shared_box):
    """T3: a program of one's own with the bit, and every program of the image that has it."""
    shared_box.client.upload([FileUpload("/tmp/setuid", b"#!/bin/sh\nid -u\n", 0o6755)])
    said = shared_box.sh(
        "chmod 6755 /tmp/setuid; /tmp/setuid; [ -x /bin/setuid-cat ] && setuid-cat /proc/self/status; id -u"
    )
    users = said.out.split()
    assert users
    assert "0" not in users


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


def test_execd_cannot_be_slowed_starved_or_ended_from_inside(real_kind):
    """T7: every signal, and every call and file by which one process of a user steers another."""
    with real_kind.box() as box:
        assert probes.find(box, "steer_execd") == []
        box.client.ping()
        assert box.sh("kill -TERM 1; kill -INT 1; kill -KILL 1; kill -STOP 1; echo on").out == "on\n"
        assert box.sh("ulimit -n 50; ulimit -n").out == "50\n"


def test_programs_may_still_tune_themselves(shared_box):
    """What keeps others off execd is in nobody's way."""
    assert probes.find(shared_box, "ordinary_tuning") == []


def test_no_file_in_the_sandbox_sets_variables_of_later_commands(real_kind):
    """T7: nor what their shell reads, nor which programs it finds."""
    with real_kind.box(workdir="/opt/opensandbox") as box:
        box.client.upload([FileUpload("/opt/opensandbox/.env", HOSTILE_ENV)])
        box.client.upload([FileUpload("/opt/opensandbox/evil", b"echo forged; exit 0")])
        said = box.sh("echo $FORGED $BASH_ENV $LD_PRELOAD; [ /nowhere != $PATH ] && cat /dev/null && false")
        assert (said.out, said.code) == ("\n", 1)


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


@pytest.mark.parametrize("shape", ["shell", "argv"])
def test_commands_inherit_only_their_streams(shared_box, shape):
    """T13."""
    if shape == "argv":
        assert probes.find(shared_box, "descriptors") == []
        return
    shared_box.client.upload([FileUpload("/tmp/fds.py", probes.program_text("descriptors").encode())])
    said = shared_box.sh(f"{' '.join(shared_box.python_argv)} /tmp/fds.py")
    assert json.loads(said.out) == []


def test_nothing_outside_answers_without_a_network(shared_box):
    """T45: the host's loopback, its other addresses, abstract sockets, metadata and names."""
    with listening_on_the_host() as targets:
        assert probes.find(shared_box, "network", json.dumps(targets)) == []
