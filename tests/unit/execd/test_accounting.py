import os
from collections.abc import Callable
from pathlib import Path

import pytest

from execd.accounting import Accounting

MEMINFO = "MemTotal:        2048 kB\nMemFree:  100 kB\nMemAvailable:    512 kB\n"
STAT = "cpu  100 100 100 999999 99999 100 0 50 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n"
PROCESSES = {
    # pid: parent, name, utime stime cutime cstime, resident and shared pages
    7: (1, "execd", (10, 20, 30, 41), (9, 4)),
    8: (7, "a) S 1 (b", (100, 0, 0, 0), (8, 8)),
    9: (8, "grandchild", (0, 200, 0, 0), (70, 30)),
    50: (1, "stranger", (9999, 9999, 9999, 9999), (99, 0)),
    51: (50, "its child", (9999, 9999, 9999, 9999), (99, 0)),
}

Build = Callable[..., Accounting]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Makes the accounting of a sandbox with these control group files, on a machine of 2 MiB."""

    def make(files: dict[str, str] | None = None, pid: int = 7, **arguments: dict[str, int]) -> Accounting:
        (tmp_path / "proc").mkdir()
        (tmp_path / "proc/meminfo").write_text(MEMINFO)
        (tmp_path / "proc/stat").write_text(STAT)
        for number, (parent, name, times, pages) in PROCESSES.items():
            (tmp_path / f"proc/{number}").mkdir()
            before = " ".join("0" for _ in range(9))
            spent = " ".join(str(ticks) for ticks in times)
            (tmp_path / f"proc/{number}/stat").write_text(
                f"{number} ({name}) S {parent} {before} {spent} 20 0 1 0 5\n"
            )
            (tmp_path / f"proc/{number}/statm").write_text(f"999 {pages[0]} {pages[1]} 1 0 1 0\n")
        for name, content in (files or {}).items():
            (tmp_path / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "cgroup" / name).write_text(content)
        return Accounting(
            **arguments,
            cgroup_folder=str(tmp_path / "cgroup"),
            proc_folder=str(tmp_path / "proc"),
            pid=pid,
        )

    return make


VERSION_1 = {
    "memory/memory.usage_in_bytes": "1000\n",
    "memory/memory.limit_in_bytes": "4096\n",
    "memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
    "cpuacct/cpuacct.usage": "2500000000\n",
    "cpu/cpu.cfs_quota_us": "50000\n",
    "cpu/cpu.cfs_period_us": "100000\n",
}
VERSION_2 = {
    "memory.current": "1000\n",
    "memory.max": "4096\n",
    "memory.events": "low 0\nhigh 0\nmax 9\noom 4\noom_kill 3\noom_group_kill 0\n",
    "cpu.stat": "usage_usec 2500000\nuser_usec 1\nsystem_usec 1\n",
    "cpu.max": "50000 100000\n",
}


@pytest.mark.parametrize("files", [VERSION_1, VERSION_2], ids=["version 1", "version 2"])
def test_the_control_group_that_the_sandbox_sees_is_read(build: Build, files: dict[str, str]) -> None:
    accounting = build(files)
    assert (accounting.memory_used(), accounting.memory_total()) == (1000, 4096)
    assert accounting.oom_kills() == 3
    assert (accounting.cpu_seconds(), accounting.cpu_count()) == (2.5, 0.5)


@pytest.mark.parametrize("version", [1, 2])
def test_descriptors_and_limits_from_outside_win_and_are_read_anew(
    build: Build, tmp_path: Path, version: int
) -> None:
    contents = VERSION_1 if version == 1 else VERSION_2
    paths = {
        "memory_usage": ("memory/memory.usage_in_bytes", "memory.current"),
        "memory_events": ("memory/memory.oom_control", "memory.events"),
        "cpu_usage": ("cpuacct/cpuacct.usage", "cpu.stat"),
    }
    descriptors = {}
    for name, choice in paths.items():
        (tmp_path / name).write_text(contents[choice[version - 1]])
        descriptors[name] = os.open(tmp_path / name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        accounting = build(
            {"memory.current": "7\n", "cpu.max": "1 1\n", "memory.events": "oom_kill 99\n"},
            descriptors=descriptors,
            limits={"memory_bytes": 5000, "cpu_millicores": 1500},
        )
        assert (accounting.memory_used(), accounting.memory_total()) == (1000, 5000)
        assert (accounting.cpu_seconds(), accounting.cpu_count()) == (2.5, 1.5)
        assert accounting.oom_kills() == 3
        (tmp_path / "memory_events").write_text("oom_kill 4\n")
        assert accounting.oom_kills() == 4
    finally:
        for fd in descriptors.values():
            os.close(fd)


OWN_MEMORY = 45 * os.sysconf("SC_PAGE_SIZE")


def test_without_control_groups_use_is_that_of_execds_family(build: Build) -> None:
    accounting = build()
    assert (accounting.memory_used(), accounting.memory_total()) == (OWN_MEMORY, 2048 * 1024)
    assert accounting.cpu_count() == len(os.sched_getaffinity(0))
    assert accounting.cpu_seconds() == 401 / os.sysconf("SC_CLK_TCK")
    assert accounting.oom_kills() is None


def test_all_that_the_first_process_sees_is_the_sandboxs(build: Build) -> None:
    accounting = build(pid=1)
    assert accounting.cpu_seconds() == (401 + 8 * 9999) / os.sysconf("SC_CLK_TCK")
    assert accounting.memory_used() == (45 + 2 * 99) * os.sysconf("SC_PAGE_SIZE")


def test_sandbox_without_proc_tells_of_no_use(tmp_path: Path) -> None:
    accounting = Accounting(cgroup_folder=str(tmp_path / "no"), proc_folder=str(tmp_path / "none"))
    assert (accounting.cpu_seconds(), accounting.memory_used()) == (0, 0)


def test_groups_without_a_limit_are_limited_by_the_machine(build: Build) -> None:
    accounting = build({"memory.max": "max\n", "cpu.max": "max 100000\n"})
    assert accounting.memory_total() == 2048 * 1024
    assert accounting.cpu_count() == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("content", ["", "x" * 100_000, "9" * 100, "-5\n", "oom_kill\noom_kill many\n"])
def test_files_the_sandbox_has_forged_are_not_believed(build: Build, content: str) -> None:
    accounting = build({"memory.current": content, "memory.events": content, "cpu.stat": content})
    assert accounting.memory_used() == OWN_MEMORY
    assert accounting.oom_kills() is None
    assert accounting.cpu_seconds() > 0


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(build: Build, tmp_path: Path) -> None:
    (tmp_path / "cgroup").mkdir()
    os.mkfifo(tmp_path / "cgroup/memory.current")
    assert build().memory_used() == OWN_MEMORY
