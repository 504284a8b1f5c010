"""Against folders that look like control groups: the parts no test machine has all of."""

import errno
import os
from pathlib import Path

import pytest

from runtimes.base import ResourceLimits
from runtimes.cgroups import CgroupMount, CgroupTree, SandboxCgroup, cgroup_mounts

LIMITS = ResourceLimits(cpu_millicores=1500, memory_bytes=64 << 20, disk_bytes=1 << 20, pids=32)

MOUNTINFO = r"""
31 23 0:27 / /sys/fs/cgroup/unified rw,nosuid shared:9 - cgroup2 cgroup2 rw
32 23 0:28 / /sys/fs/cgroup/memory rw,nosuid shared:10 - cgroup cgroup rw,memory
33 23 0:29 /docker/ab /sys/fs/cgroup/cpu,cpu\040acct rw - cgroup cgroup rw,cpu,cpuacct
34 23 0:30 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
35 23 0:31 / /proc rw - proc proc rw
"""


def test_mounted_hierarchies_are_read_with_their_controllers():
    mounts = cgroup_mounts(MOUNTINFO.strip())
    assert [(str(m.path), m.root, m.version, sorted(m.controllers)) for m in mounts] == [
        ("/sys/fs/cgroup/unified", "/", 2, []),
        ("/sys/fs/cgroup/memory", "/", 1, ["memory"]),
        ("/sys/fs/cgroup/cpu,cpu acct", "/docker/ab", 1, ["cpu", "cpuacct"]),
        ("/sys/fs/cgroup/systemd", "/", 1, []),
    ]


@pytest.fixture
def unified(tmp_path):
    """A version 2 hierarchy with all controllers, none handed down yet."""
    for folder in (tmp_path, tmp_path / "sandmill"):
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.controllers").write_text("cpuset cpu io memory hugetlb pids\n")
        (folder / "cgroup.subtree_control").write_text("\n")
    return tmp_path


def test_version_2_sets_every_limit(unified):
    tree = CgroupTree("sandmill", [CgroupMount(unified, "/", 2, frozenset())])
    group = tree.create("sm-1", LIMITS)
    folder = unified / "sandmill" / "sm-1"
    assert group.enforced == {"memory", "pids", "cpu"}
    assert {name: (folder / name).read_text() for name in ("memory.max", "pids.max", "cpu.max")} == {
        "memory.max": str(64 << 20),
        "pids.max": "32",
        "cpu.max": "150000 100000",
    }
    assert (unified / "cgroup.subtree_control").read_text().startswith("+")


def test_version_2_forbids_swap_where_it_is_counted(unified):
    (unified / "sandmill" / "sm-1").mkdir()
    (unified / "sandmill" / "sm-1" / "memory.swap.max").write_text("max")
    CgroupTree("sandmill", [CgroupMount(unified, "/", 2, frozenset())]).create("sm-1", LIMITS)
    assert (unified / "sandmill" / "sm-1" / "memory.swap.max").read_text() == "0"


def test_version_1_sets_the_limit_of_each_hierarchy(tmp_path):
    mounts = [
        CgroupMount(tmp_path / name, "/", 1, frozenset({name}))
        for name in ("memory", "pids", "cpu", "cpuacct")
    ]
    for mount in mounts:
        mount.path.mkdir()
    group = CgroupTree("sandmill", mounts).create("sm-1", LIMITS)
    assert group.enforced == {"memory", "pids", "cpu"}
    assert (tmp_path / "memory/sandmill/sm-1/memory.limit_in_bytes").read_text() == str(64 << 20)
    assert (tmp_path / "pids/sandmill/sm-1/pids.max").read_text() == "32"
    assert (tmp_path / "cpu/sandmill/sm-1/cpu.cfs_quota_us").read_text() == "150000"
    assert (tmp_path / "cpuacct/sandmill/sm-1").is_dir()


def test_hierarchy_that_is_not_ours_is_left_out(monkeypatch, tmp_path):
    def refuse(self, *_args, **_kwargs):
        raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr("os.mkdir", refuse)
    group = CgroupTree("sandmill", [CgroupMount(tmp_path, "/", 1, frozenset({"memory"}))]).create(
        "sm-1", LIMITS
    )
    assert group.enforced == frozenset()
    assert group.process_ids() == set()


@pytest.mark.parametrize("may_return", [True, False], ids=["its group is its own", "its group is another's"])
def test_group_that_a_user_could_not_leave_again_is_not_entered(monkeypatch, tmp_path, may_return):
    here = tmp_path / "user"
    here.mkdir()
    if may_return:
        (here / "tasks").touch()
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("runtimes.cgroups._thread_folders", lambda: [here, Path("/elsewhere")])
    tree = CgroupTree("sandmill", [CgroupMount(tmp_path, "/", 1, frozenset({"memory"}))])
    assert tree.create("sm-1", LIMITS).enforced == ({"memory"} if may_return else frozenset())


def test_controllers_that_limit_nothing_are_told(monkeypatch, tmp_path):
    def refuse(self, *_args, **_kwargs):
        raise PermissionError(errno.EACCES, "no")

    assert CgroupTree("sandmill", []).unenforced("sm-1", LIMITS) == {"memory", "cpu", "pids"}
    monkeypatch.setattr("os.mkdir", refuse)
    tree = CgroupTree("sandmill", [CgroupMount(tmp_path, "/", 1, frozenset({"memory"}))])
    assert tree.unenforced("sm-1", LIMITS) == {"memory", "cpu", "pids"}


def test_value_the_kernel_refuses_is_an_error_not_no_limit(monkeypatch, tmp_path):
    def refuse(*_args, **_kwargs):
        raise OSError(errno.EINVAL, "no")

    monkeypatch.setattr("runtimes.cgroups._write", refuse)
    tree = CgroupTree("sandmill", [CgroupMount(tmp_path, "/", 1, frozenset({"memory"}))])
    with pytest.raises(OSError, match="no"):
        tree.create("sm-1", LIMITS)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {
                "cpu.stat": "usage_usec 2500000\nuser_usec 1\n",
                "memory.peak": "77\n",
                "memory.events": "oom 3\noom_kill 2\n",
            },
            (2.5, 77, 2),
        ),
        (
            {
                "cpuacct.usage": "1500000000\n",
                "memory.max_usage_in_bytes": "55\n",
                "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
            },
            (1.5, 55, 1),
        ),
        ({}, (None, None, None)),
    ],
    ids=["version-2", "version-1", "nothing"],
)
def test_use_is_read_from_either_version(tmp_path, files, expected):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    stats = SandboxCgroup({tmp_path: 2}).stats()
    assert (stats.cpu_seconds, stats.memory_peak_bytes, stats.oom_kills) == expected


def test_groups_of_an_earlier_process_are_found(tmp_path):
    mount = CgroupMount(tmp_path, "/", 1, frozenset({"memory"}))
    (tmp_path / "sandmill" / "sm-1").mkdir(parents=True)
    (tmp_path / "sandmill" / "sm-1" / "cgroup.procs").write_text("12\n34\n")
    tree = CgroupTree("sandmill", [mount])
    assert tree.find("sm-1").process_ids() == {12, 34}
    assert tree.find("sm-2").process_ids() == set()


def test_old_empty_groups_are_swept_away(tmp_path):
    tree = CgroupTree("sandmill", [CgroupMount(tmp_path, "/", 1, frozenset({"memory"}))])
    for name in ("sm-old", "sm-new", "other"):
        (tmp_path / "sandmill" / name).mkdir(parents=True)
    for name in ("sm-old", "other"):
        os.utime(tmp_path / "sandmill" / name, (0, 0))
    tree.sweep()
    assert sorted(path.name for path in (tmp_path / "sandmill").iterdir()) == ["other", "sm-new"]


def test_group_that_stays_busy_is_an_error(tmp_path):
    (tmp_path / "child").mkdir()
    with pytest.raises(OSError):  # noqa: PT011 -- ENOTEMPTY here, EBUSY in a real hierarchy
        SandboxCgroup({tmp_path: 1}).remove(timeout_seconds=0.01)


def test_removing_twice_is_no_error(tmp_path):
    group = SandboxCgroup({tmp_path / "gone": 1})
    group.remove(timeout_seconds=1)


def test_accounts_are_of_the_files_that_tell_use(tmp_path):
    files = {
        1: {
            # The folder that comes first has a file by the name of version 2, which knows of no use.
            "cpu/cpu.stat": "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n",
            "cpuacct/cpuacct.usage": "2500000000\n",
            "memory/memory.usage_in_bytes": "1000\n",
            "memory/memory.oom_control": "oom_kill 3\n",
        },
        2: {
            "all/cpu.stat": "usage_usec 2500000\n",
            "all/memory.current": "1000\n",
            "all/memory.events": "oom_kill 3\n",
        },
    }
    for version, contents in files.items():
        folders = {}
        for name, content in contents.items():
            path = tmp_path / str(version) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
            folders[path.parent] = version
        opened = SandboxCgroup(folders).open_accounts()
        told = {name: os.pread(descriptor, 100, 0).decode() for name, descriptor in opened}
        for _, descriptor in opened:
            os.close(descriptor)
        values = list(contents.values())[-3:]
        assert told == {"cpu_usage": values[0], "memory_usage": values[1], "memory_events": values[2]}
