"""Using up what a sandbox may have (threat model, T14 to T24): it stops at its own limit, and can always be removed."""

import resource
import threading
import time
import uuid
from contextlib import ExitStack
from pathlib import Path

import pytest

from runtimes.base import Command
from runtimes.cgroups import CgroupTree, cgroup_of
from runtimes.local.config import LocalConfig
from runtimes.local.runtime import LocalRuntime
from tests.support import probes
from tests.support.execd import wait_for
from tests.support.outside import background, host_process, host_processes, sleep_mark
from tests.support.sandboxes import Kind, is_root, make_limits

needs_cgroups = pytest.mark.skipif(not is_root(), reason="an ordinary user has no control groups here")


@pytest.fixture
def without_cgroups(tmp_path, runtime_folder, local):
    """The local runtime as on a host that gives no control groups."""
    runtime = LocalRuntime(LocalConfig(state_dir=tmp_path / "state", bundle_dir=runtime_folder / "bundles"))
    runtime._cgroups = CgroupTree("sandmill", mounts=[])
    yield Kind(runtime, local.image, local.python_argv)
    runtime.close()


def test_fork_bomb_stops_at_its_limit_and_is_removed(real_kind):
    """T14: several bombs, a neighbour that goes on, and an end to all of it in ten seconds."""
    mark = uuid.uuid4().hex
    with (
        real_kind.box() as neighbour,
        real_kind.box(limits={"pids": 24}) as box,
        background(box, probes.probe(box, "fork_bomb", mark), until=b"\n") as bomb,
    ):
        assert 1 <= int(bomb.seen) < 24
        began = time.monotonic()
        assert neighbour.sh("echo fine").out == "fine\n"
        assert time.monotonic() - began < 5
        began = time.monotonic()
        real_kind.runtime.remove(box.handle)
        assert time.monotonic() - began < 10
    assert host_processes(mark) == []


def test_process_limit_holds_without_control_groups(without_cgroups):
    """T14 on a host without control groups."""
    with (
        without_cgroups.box(limits={"pids": 24}) as box,
        background(box, probes.probe(box, "fork_bomb"), until=b"\n") as bomb,
    ):
        assert 1 <= int(bomb.seen) < 24


def test_daemon_does_not_hold_the_call_and_does_not_survive(real_kind):
    """T15: detached, deaf to signals, holding stdout; gone with the sandbox."""
    mark = sleep_mark()
    with real_kind.box() as box:
        began = time.monotonic()
        said = box.sh(f"(trap '' TERM HUP INT; setsid sh -c 'sleep {mark}; :' & ) ; echo main")
        assert said.out == "main\n"
        assert time.monotonic() - began < 10
        host_process(mark)
    assert host_processes(mark) == []


def test_timeout_ends_everything_the_command_started(real_kind):
    """T15, T21: deaf, detached and stopped processes die with the timeout, within two seconds."""
    mark = sleep_mark()
    with real_kind.box() as box:
        script = (
            f"trap '' TERM HUP INT; (setsid sh -c 'sleep {mark}1; :' &); (sleep {mark}2 & kill -STOP $!); "
            f"sh -c 'kill -STOP $$; sleep {mark}3'; sleep {mark}4"
        )
        began = time.monotonic()
        result = box.sh(script, timeout_seconds=1.0).result
        assert result.timed_out
        assert time.monotonic() - began < 3.0 + 3.0  # the limit, two seconds, and a busy machine
        assert host_processes(mark) == []
        box.client.ping()


@needs_cgroups
@pytest.mark.parametrize("who", ["program", "child"])
def test_memory_limit_kills_the_program_and_is_counted(real_kind, who):
    """T16: a signal, an OOM kill in the stats, and an execd that still answers."""
    eat = "s = bytearray(300 << 20)\nfor i in range(0, len(s), 4096): s[i] = 1\nprint('survived')"
    with real_kind.box(limits={"memory_bytes": 96 << 20}) as box:
        if who == "program":
            said = box.python(eat)
            assert said.result.signal == 9
        else:
            said = box.python(f"import os, sys\nif os.fork() == 0:\n exec({eat!r})\nsys.exit(os.wait()[1])")
            assert said.code == 9
        assert said.out == ""
        assert (real_kind.runtime.stats(box.handle).oom_kills or 0) >= 1
        box.client.ping()
        assert box.sh("echo alive").out == "alive\n"


def test_memory_limit_holds_without_control_groups(without_cgroups):
    """T16 on a host without control groups: the allocation fails instead."""
    with without_cgroups.box(limits={"memory_bytes": 96 << 20}) as box:
        said = box.python("s = bytearray(300 << 20)")
        assert said.code == 1
        assert b"MemoryError" in said.of("stderr")


@needs_cgroups
@pytest.mark.parametrize(
    "fill",
    [
        "f = os.memfd_create('x')\nfor _ in range(200): os.write(f, block)",
        "fs = [os.memfd_create('x') for _ in range(40)]\nfor f in fs:\n for _ in range(8): os.write(f, block)",
        "f = os.open('/dev/shm/x', os.O_CREAT | os.O_WRONLY)\nfor _ in range(200): os.write(f, block)",
        "import mmap\nm = [mmap.mmap(-1, 1 << 20) for _ in range(200)]\nfor x in m: x.write(block)",
    ],
    ids=["memfd", "many-memfds", "dev-shm", "shared-anonymous"],
)
def test_memory_of_every_kind_counts(real_kind, fill):
    """T17: 200 MiB in whatever form does not fit into a sandbox of 96 MiB."""
    with real_kind.box(limits={"memory_bytes": 96 << 20, "disk_bytes": 64 << 20}) as box:
        said = box.python(f"import os\nblock = bytes(1 << 20)\n{fill}\nprint('survived')")
        assert said.out == ""
        assert said.code != 0
        peak = real_kind.runtime.stats(box.handle).memory_peak_bytes
        assert peak is not None
        assert peak <= 96 << 20


def test_disk_stops_at_its_limit_in_every_folder_together(real_kind):
    """T18, B-071: and the space is free for the next sandbox."""
    folders = "/tmp /var/tmp /run $PWD"
    fill = (
        f"for d in {folders}; do head -c 12000000 /dev/zero > $d/big; done 2>&1; du -ck {folders} | tail -1"
    )
    for _ in range(2):
        with real_kind.box(workdir="/work", limits={"disk_bytes": 8 << 20}) as box:
            said = box.sh(fill)
            used = int(said.out.splitlines()[-1].split()[0]) << 10
            assert (4 << 20) <= used <= (8 << 20) + 4096 * 8


@pytest.mark.skipif(not is_root(), reason="only root may limit the files of a sandbox")
def test_number_of_files_stops_at_its_limit(real_kind):
    """T19, B-071: empty ones take no space, but memory of the kernel."""
    fill = "cd /tmp; i=0; while [ $i -lt 4000 ] && true > f$i; do i=$((i+1)); done 2>/dev/null; echo $i"
    with real_kind.box(limits={"disk_bytes": 8 << 20}) as box:
        assert 1000 < int(box.sh(fill).out) < (8 << 20) // 4096
        assert len(box.client.search("/tmp", "f*")) < (8 << 20) // 4096
        assert box.sh("rm /tmp/f*; echo x > /tmp/again; cat /tmp/again").out == "x\n"


@pytest.mark.skipif(not is_root(), reason="an ordinary user's sandboxes share what that user may have")
def test_what_the_kernel_counts_by_user_is_not_shared(real_kind):
    """T23: one sandbox takes all the inotify instances of its user; its neighbour still gets some."""
    with real_kind.box() as greedy, real_kind.box() as neighbour:
        command = probes.probe(greedy, "inotify_instances", "stay")
        with background(greedy, command, until=b"\n") as taking:
            assert int(taking.seen) > 0
            assert probes.find(neighbour, "inotify_instances") > 0


@needs_cgroups
def test_spinning_on_every_processor_is_throttled(real_kind):
    """T20: eight programs that never rest get what the sandbox has, and execd still answers."""
    with real_kind.box(limits={"cpu_millicores": 500}) as box:
        spin = "for i in 1 2 3 4 5 6 7 8; do (while :; do :; done) & done; echo spinning; wait"
        with background(box, spin, until=b"spinning\n"):
            used, began = cpu_seconds(real_kind, box), time.monotonic()
            answers = [seconds_to_ping(box) for _ in range(10)]
            wait_for(lambda: time.monotonic() - began > 1.5)
            used, elapsed = cpu_seconds(real_kind, box) - used, time.monotonic() - began
        assert used <= 0.5 * elapsed + 0.2  # up to two periods are granted ahead
        assert max(answers) < 2


def cpu_seconds(kind, box):
    return kind.runtime.stats(box.handle).cpu_seconds


def seconds_to_ping(box):
    began = time.monotonic()
    box.client.ping()
    return time.monotonic() - began


def test_descriptors_run_out_inside_only(real_kind):
    """T23: a program takes all it may have, and streams stay open; execd still answers, runs and kills."""
    hoard = (
        "import os, time\nheld = []\n"
        "try:\n while True: held.append(os.open('/dev/null', os.O_RDONLY))\n"
        "except OSError as error: print(error.errno, flush=True)\ntime.sleep(60)"
    )
    mark = sleep_mark()
    with real_kind.box(limits={"open_files": 256, "pids": 64}) as box:
        with ExitStack() as streams:
            command = Command(argv=[*box.python_argv, "-c", hoard])
            streams.enter_context(background(box, command, until=b"24\n"))
            for _ in range(12):
                streams.enter_context(background(box, f"echo on; exec sleep {mark}", until=b"on\n"))
            box.client.ping()
            assert box.sh("echo alive").out == "alive\n"
            assert len(host_processes(mark)) == 12
        assert host_processes(mark) == []


def test_output_without_end_keeps_the_client_small(real_kind):
    """T22: 30 MB in one line, then 200,000 lines; nothing piles up on our side."""
    with real_kind.box() as box:
        counted = 0

        def count(_stream, data):
            nonlocal counted
            counted += len(data)

        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for script, size in (
            ("head -c 30000000 /dev/zero | tr '\\0' x", 30_000_000),
            ("yes | head -c 400000", 400_000),
        ):
            counted = 0
            result = box.client.run(Command(shell=script), on_output=count)
            assert (result.exit_code, counted) == (0, size)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert grown < 32 << 20


def test_reader_that_stops_reading_is_not_read_for(real_kind):
    """T22: execd does not buffer for us; the program waits."""
    with real_kind.box(limits={"memory_bytes": 64 << 20}) as box:
        gate = threading.Event()
        first = threading.Event()

        def slow(_stream, _data):
            first.set()
            gate.wait(20)

        stop = threading.Event()
        thread = threading.Thread(
            target=lambda: box.client.run(
                Command(shell="yes"), on_output=slow, stop=stop, kill_grace_seconds=0
            )
        )
        thread.start()
        assert first.wait(20)
        assert box.sh("echo beside").out == "beside\n"
        stop.set()
        gate.set()
        thread.join(20)
        assert not thread.is_alive()


@pytest.mark.parametrize("field", ["cpu_millicores", "memory_bytes", "disk_bytes", "pids", "open_files"])
@pytest.mark.parametrize("value", [0, -1, 1 << 62, 1.5, "1", None, True], ids=str)
def test_limit_that_is_none_is_refused(field, value):
    """T24."""
    with pytest.raises(ValueError, match=field):
        make_limits(**{field: value})


@needs_cgroups
def test_limits_are_set_where_the_kernel_enforces_them(real_kind):
    """T24: what the host says about the groups, and what the process says about itself."""
    limits = {"cpu_millicores": 500, "memory_bytes": 80 << 20, "pids": 33, "open_files": 99}
    mark = sleep_mark()
    with real_kind.box(limits=limits) as box:
        with background(box, f"sleep {mark}; true"):
            folders = cgroup_of(host_process(mark))._folders
            values = {
                (folder / name).read_text().strip()
                for folder in folders
                for name in ("memory.limit_in_bytes", "memory.max", "pids.max", "cpu.cfs_quota_us", "cpu.max")
                if (folder / name).exists()
            }
        own = box.sh("ulimit -n; ulimit -c; ulimit -f").out.split()
    assert str(80 << 20) in values
    assert "33" in values
    assert values & {"50000", "50000 100000"}
    assert own[:2] == ["99", "0"]
    assert own[2] != "unlimited"


@needs_cgroups
def test_swap_is_no_way_around_the_memory_limit(local):
    """Memory and swap together have the memory's limit, where the kernel counts swap."""
    with local.box(limits={"memory_bytes": 80 << 20}) as box:
        found = list(Path("/sys/fs/cgroup").glob(f"**/sandmill/{box.handle.name}/memory*swap*max"))
        found += list(
            Path("/sys/fs/cgroup").glob(f"**/sandmill/{box.handle.name}/memory.memsw.limit_in_bytes")
        )
        assert all(path.read_text().strip() in ("0", str(80 << 20)) for path in found)
