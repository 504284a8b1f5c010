"""The zygote: what a sandbox inherits from it, and what its end and its starter's end leave."""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from core.errors import DaemonError
from runtimes.local.config import LocalConfig
from runtimes.local.plan import Bind
from runtimes.local.runtime import LocalRuntime
from runtimes.local.zygote.ids import mapped_namespace
from runtimes.local.zygote.process import _SPARE_FORKS
from runtimes.local.zygote.rehearsal import rehearsal_order
from runtimes.processes import ProcessRef
from tests.support.execd import names_in, wait_for
from tests.support.outside import background
from tests.support.sandboxes import START_SECONDS, Box, Kind, is_root, local_kind, make_spec

pytestmark = pytest.mark.skipif(not is_root(), reason="the zygote is root's way")

REPOSITORY = Path(__file__).resolve().parents[3]

WORKER = """
import sys
from pathlib import Path
from runtimes.local.config import LocalConfig
from runtimes.local.runtime import LocalRuntime
from tests.support.sandboxes import make_spec
runtime = LocalRuntime(LocalConfig(state_dir=Path(sys.argv[1]), bundle_dir=Path(sys.argv[2])))
handle = runtime.create(make_spec(image="host"), timeout_seconds=60)
print(handle.ref.split(".")[0], runtime._prepared.executor._connection._process.pid, flush=True)
sys.stdin.read()
"""

_FORKERS = 1
"""Children of a zygote that never become sandboxes."""

MAPS_INSIDE = """
import sys
from runtimes import linux
linux.enter_namespace(int(sys.argv[1]), linux.CLONE_NEWUSER)
print(open("/proc/self/uid_map").read(), open("/proc/self/gid_map").read())
"""

AHEAD = """
import os, sys
from runtimes import linux
from runtimes.local.plan import Bind, ProcFolder
from runtimes.local.zygote.ahead import AheadMounts
from runtimes.local.zygote.prepared import Prepared

def opened():
    return len(os.listdir("/proc/self/fd")), len(open("/proc/self/mountinfo").readlines())

usr, cover = Bind("/usr", "/usr"), Bind("/dev/null", "/proc/uptime")
linux.unshare(linux.CLONE_NEWNS)
linux.make_private("/", receives=False)
prepared = Prepared(sys.argv[1], (usr, ProcFolder(), cover, Bind("/etc", "/etc")))
before = opened()
ahead = AheadMounts(prepared)
print(ahead.take_proc([usr, ProcFolder(), Bind("/dev/null", "/proc/version")]), ahead.take_proc([usr]))
proc, done = ahead.take_proc([usr, ProcFolder(), cover])
print(done == (ProcFolder(), cover), ahead.take_proc([usr, ProcFolder(), cover]))
os.mkdir(sys.argv[1] + "/proc")
linux.attach(proc, sys.argv[1] + "/proc")
print(os.path.samefile("/dev/null", sys.argv[1] + "/proc/uptime"), os.path.exists(sys.argv[1] + "/proc/1"))
linux.unmount(sys.argv[1] + "/proc")
os.close(ahead.take_bind(usr))
ahead.close()
ahead.close()
print(opened() == before)
"""

MOUNT_AS_INNER_ROOT = """
import os, sys
from runtimes import linux
names = {"mnt": linux.CLONE_NEWNS, "user": linux.CLONE_NEWUSER}
opened = [(os.open(f"/proc/{sys.argv[1]}/ns/{name}", os.O_RDONLY), kind) for name, kind in names.items()]
status = open("/proc/self/status")
for descriptor, kind in opened:
    linux.enter_namespace(descriptor, kind)
status.seek(0)
if int(next(line for line in status if line.startswith("CapEff")).split()[1], 16) & 1 << 21:
    print("all capabilities", end=", ")
try:
    linux.mount("tmpfs", "/mnt", "tmpfs", 0)
except OSError as error:
    print(error.strerror)
"""


@pytest.fixture
def kind(tmp_path, runtime_folder):
    """A local runtime with a zygote of its own."""
    runtime = LocalRuntime(
        LocalConfig(state_dir=tmp_path / "state", bundle_dir=runtime_folder / "bundles", executor="zygote")
    )
    yield Kind(runtime, "host")
    runtime.close()


def zygote_of(kind):
    return kind.runtime._prepared.executor._connection._process.pid


def children_of(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def init_of(box):
    return ProcessRef.of(int(box.handle.ref.split(".")[0]))


def test_a_command_line_tells_nothing_of_the_host(kind):
    with kind.box() as box:
        shown = box.sh("tr -d '\\0' < /proc/1/cmdline; echo; cat /proc/1/comm").out
    assert shown == "execd\nexecd\n"


def test_a_live_sandbox_of_the_host_is_root_without_a_right_of_root(kind):
    """Clients ask for user 0 where they mean a container's root; here that is who they are already."""
    with kind.box(is_sealed=False, is_writable=True) as box:
        assert box.sh("id -u; id -g; pwd; echo $HOME $USER").out == "0\n0\n/root\n/root root\n"
        assert box.sh("grep -c '^Cap.*:.0*$' /proc/self/status").out == "5\n"
        assert box.sh("mkdir /logs && chmod 777 /logs && stat -c %a /logs").out == "777\n"
        assert box.sh("chown 1000 /logs; mount -t tmpfs t /mnt; touch /usr/x /etc/x").out == ""
        assert box.sh("ls /usr/x /etc/x 2>/dev/null").out == ""
    with kind.box() as box:
        assert box.sh("id -u").out == "1000\n"


@pytest.mark.parametrize("is_writable", [False, True], ids=["ordinary", "root"])
def test_process_one_can_be_neither_read_nor_traced_from_inside(kind, is_writable):
    probes = "for f in environ maps mem exe root cwd fd/0 ns/net auxv stack; do head -c1 /proc/1/$f && echo $f; done"
    with kind.box(is_writable=is_writable) as box:
        said = box.sh(f"{probes} 2>/dev/null; ls /proc/1/fd /proc/1/map_files 2>/dev/null | wc -l")
    assert said.out.strip() == "0"


def test_an_environment_of_the_starter_does_not_reach_commands(kind, monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_WORKER", "x")
    with kind.box(env={"GIVEN": "1"}) as box:
        names = {line.partition("=")[0] for line in box.sh("env").out.splitlines()}
    assert "GIVEN" in names
    assert not names & {"SECRET_OF_THE_WORKER", "SANDMILL_SANDBOX", "LC_CTYPE"}


def test_commands_get_no_descriptor_of_the_zygote(kind):
    with kind.box() as one, kind.box():
        assert one.sh("ls /proc/self/fd | wc -l").out.strip() == "4"  # the listing's own is the fourth


def test_a_daemon_inside_loads_no_code_from_the_sandbox(kind, tmp_path):
    """A module of the image's, or of the code's, must never be imported by the process that watches it."""
    trap = "open('/tmp/trapped', 'w').close()"
    roots = [str(REPOSITORY), *[path for path in sys.path if path]]
    script = "".join(
        f"mkdir -p {root}/execd {root}/encodings 2>/dev/null && for m in execd/x json idna encodings/cp037 zoneinfo; "
        f'do echo "{trap}" > {root}/$m.py; done; '
        for root in roots
    )
    with kind.box() as box:
        box.sh(script)
        with pytest.raises(Exception, match=r"."):
            box.client.download("/no/such/file", max_bytes=10)
        box.sh("printf 'caf\\351\\n'", cwd="/tmp", env={"LANG": "de_DE.cp037"})
        assert box.sh("ls /tmp/trapped").code == 2


def test_every_sandbox_has_users_of_its_own(kind):
    with kind.box() as one, kind.box() as two:
        users = [init_of(box).user_ids[0] for box in (one, two)]
    assert abs(users[0] - users[1]) >= 65_536
    assert all(user % 65_536 == (720_000 + 1000) % 65_536 for user in users)


def test_mounts_belong_to_the_host_so_no_right_inside_can_change_them(kind):
    """Even all capabilities of the sandbox's own user namespace are worth nothing there."""
    with kind.box() as box:
        done = subprocess.run(
            [sys.executable, "-c", MOUNT_AS_INNER_ROOT, str(init_of(box).pid)],
            cwd=REPOSITORY, capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.stdout == "all capabilities, Operation not permitted\n", done.stderr


def test_both_sandboxes_of_a_fork_come_from_processes_made_ahead(kind):
    """Also where one has to see the other's layer with its owners shifted."""
    handle = kind.runtime.create(kind.spec(), timeout_seconds=START_SECONDS)
    zygote = zygote_of(kind)
    wait_for(lambda: len(children_of(zygote)) == 1 + _SPARE_FORKS + _FORKERS)
    ahead = children_of(zygote)
    handles = kind.runtime.fork(handle, kind.spec(), timeout_seconds=START_SECONDS)
    try:
        assert {one.ref.split(".")[0] for one in handles} <= set(ahead)
    finally:
        for one in handles:
            kind.runtime.remove(one)


def test_a_fork_returns_when_the_processes_of_the_first_have_ended(kind):
    """They are taken apart while it starts anew, in the same groups."""
    spec = kind.spec(limits={"memory_bytes": 1 << 30})
    handle = kind.runtime.create(spec, timeout_seconds=START_SECONDS)
    init = ProcessRef.of(int(handle.ref.split(".")[0]))
    # What has much memory takes long to end.
    client = kind.runtime.executions(handle)
    with background(
        Box(kind.runtime, handle, client),
        "python3 -c 'x = bytes([1]) * (400 << 20); print(1, flush=True); input()'",
        until=b"1\n",
    ):
        handles = kind.runtime.fork(handle, kind.spec(), timeout_seconds=START_SECONDS)
        assert not init.is_alive
        kind.runtime.executions(handles[0]).ping()
    for one in handles:
        kind.runtime.remove(one)


def test_mounts_made_ahead_are_used_where_they_are_the_same_and_else_let_go_of(tmp_path):
    """Left open, those of the host would be in reach of what follows links of an image."""
    done = subprocess.run(
        [sys.executable, "-c", AHEAD, str(tmp_path)],
        cwd=REPOSITORY, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        "(None, ()) (None, ())",
        "True (None, ())",
        "True True",
        "True",
    ]


def test_a_mapped_namespace_is_no_processs():
    before = children_of(os.getpid())
    namespace = mapped_namespace(720_000, seen_as=655_360)
    try:
        assert children_of(os.getpid()) == before
        done = subprocess.run(
            [sys.executable, "-c", MAPS_INSIDE, str(namespace)],
            pass_fds=[namespace], cwd=REPOSITORY, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout.split() == ["655360", "720000", "65536"] * 2
    finally:
        os.close(namespace)


def test_a_rehearsal_that_fails_is_told_and_sandboxes_start_all_the_same(kind, monkeypatch, capfd):
    def order(*arguments, **options):
        made = rehearsal_order(*arguments, **options)
        return replace(made, plan=replace(made.plan, workdir="/no-such-folder"))

    monkeypatch.setattr("runtimes.local.preparation.rehearsal_order", order)
    with kind.box() as box:
        assert box.sh("echo here").out == "here\n"
    assert "the rehearsal failed: the sandbox could not be set up" in capfd.readouterr().err


def test_a_sandbox_at_rest_has_little_memory_of_its_own(kind):
    """It shares the zygote's, which has done before what a sandbox does, down to where Python keeps what it learnt."""
    kind.runtime.check()
    wait_for(lambda: len(children_of(zygote_of(kind))) == _SPARE_FORKS + _FORKERS)
    with kind.box() as box:
        box.client.ping()
        text = Path(f"/proc/{init_of(box).pid}/smaps_rollup").read_text()
    kilobytes = int(next(line.split()[1] for line in text.splitlines() if line.startswith("Private_Dirty:")))
    assert kilobytes < 3700


def test_forks_are_children_of_the_zygote_and_go_on_being_made_when_their_maker_ends(kind):
    kind.runtime.check()
    zygote = zygote_of(kind)
    wait_for(lambda: len(children_of(zygote)) == _SPARE_FORKS + _FORKERS)
    # The first that there was.
    maker = ProcessRef.of(int(min(children_of(zygote), key=lambda pid: ProcessRef.of(int(pid)).started)))
    assert Path(f"/proc/{maker.pid}/comm").read_text() == "sandmill-zygote\n"
    assert not maker.children
    with ExitStack() as stack:
        boxes = [stack.enter_context(kind.box())]
        os.kill(maker.pid, signal.SIGKILL)
        wait_for(lambda: not maker.is_alive)
        boxes += [stack.enter_context(kind.box()) for _ in range(_SPARE_FORKS + 1)]
        assert [box.sh("echo here").out for box in boxes] == ["here\n"] * len(boxes)
    assert zygote_of(kind) == zygote
    wait_for(lambda: len(children_of(zygote)) == _SPARE_FORKS)


def test_the_end_of_the_zygote_ends_its_sandboxes_and_the_next_create_starts_another(kind):
    with kind.box() as box:
        init = init_of(box)
        first = zygote_of(kind)
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: not init.is_alive)
        with kind.box() as new:
            new.client.ping()
            assert zygote_of(kind) != first


def test_a_killed_worker_leaves_neither_zygote_nor_sandbox_nor_spare(tmp_path, runtime_folder):
    argv = [sys.executable, "-c", WORKER, str(tmp_path / "state"), str(runtime_folder / "bundles")]
    with subprocess.Popen(
        argv, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        init, zygote = (int(word) for word in worker.stdout.readline().split())
        wait_for(lambda: len(children_of(zygote)) > 3)
        family = [ProcessRef.of(int(pid)) for pid in [init, zygote, *children_of(zygote)]]
        worker.kill()
    wait_for(lambda: not any(process.is_alive for process in family if process))


def test_a_stopped_zygote_that_is_killed_leaves_no_sandbox(kind):
    with kind.box() as box:
        init, zygote = init_of(box), zygote_of(kind)
        os.kill(zygote, signal.SIGSTOP)
        os.kill(zygote, signal.SIGKILL)
        wait_for(lambda: not init.is_alive)


def test_the_dead_are_collected(kind):
    with kind.box() as box:
        zygote = zygote_of(kind)
        gone = str(init_of(box).pid)
    wait_for(lambda: gone not in children_of(zygote))


def test_twenty_sandboxes_leave_no_descriptor_mount_or_process_behind(kind):
    def held():
        zygote = zygote_of(kind)
        return (
            len(names_in(Path("/proc/self/fd"))),
            len(names_in(Path(f"/proc/{zygote}/fd"))),
            Path(f"/proc/{zygote}/mountinfo").read_text().count(str(kind.runtime._config.state_dir)),
            len(children_of(zygote)),
        )

    with kind.box() as box:
        box.client.ping()
    settled = 0

    def is_settled():
        # The spare forks are made anew in quiet moments.
        return len(children_of(zygote_of(kind))) == _SPARE_FORKS + _FORKERS

    wait_for(is_settled, seconds=20)
    before = held()
    for _ in range(20):
        with kind.box() as box:
            settled += 1
    assert settled == 20
    # Not more: at the first look one that was just starting may have been counted.
    wait_for(lambda: all(now <= then for now, then in zip(held(), before, strict=True)), seconds=20)


def test_a_plan_that_cannot_be_executed_says_why_and_leaves_nothing(kind):
    with kind.box():
        pass
    plan = kind.runtime.plan
    missing = Bind("/no/such/folder", "/mnt/x")

    def broken_plan(*arguments):
        made = plan(*arguments)
        return replace(made, mounts=(*made.mounts, missing))

    kind.runtime.plan = broken_plan
    with pytest.raises(DaemonError, match="/no/such/folder"):
        kind.runtime.create(kind.spec(), timeout_seconds=START_SECONDS)
    assert kind.runtime.list() == []
    assert list((kind.runtime._config.state_dir / "sockets").iterdir()) == []


def test_an_execd_that_refuses_its_flags_says_so(kind):
    with kind.box():
        pass
    plan = kind.runtime.plan

    def with_flag(spec, root, sources, argv, seccomp):
        return plan(spec, root, sources, (*argv, "--no-such-flag"), seccomp)

    kind.runtime.plan = with_flag
    with pytest.raises(DaemonError, match="no-such-flag"):
        kind.runtime.create(kind.spec(), timeout_seconds=START_SECONDS)


def test_bwrap_serves_root_too_when_it_is_asked_for(tmp_path, runtime_folder):
    with local_kind(tmp_path, executor="bwrap") as kind, kind.box() as box:
        assert box.sh("id -u").out.strip() == "1000"
        assert init_of(box).user_ids[0] == 721_000


def test_limits_and_names_of_many_sandboxes_at_once(kind):
    specs = [make_spec(image="host", workdir=f"/w{n}") for n in range(6)]
    handles = [kind.runtime.create(spec, timeout_seconds=START_SECONDS) for spec in specs]
    try:
        for spec, handle in zip(specs, handles, strict=True):
            client = kind.runtime.executions(handle)
            assert client.file_info(spec.workdir).type == "directory"
            client.close()
    finally:
        for handle in handles:
            kind.runtime.remove(handle)
