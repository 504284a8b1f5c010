"""What this process and its `local` runtime hold on the host: counts by kind, to compare before and after.

Only what is theirs is counted, so that others who start sandboxes meanwhile change nothing.
"""

import os
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

__all__ = ["HOST_OBJECTS", "Counts", "count", "host_objects"]

Counts = dict[str, int]

_ZYGOTE_NAME = "sandmill-zygote"
_QUIET_SECONDS = 0.5
"""Without a change: spare forks are made, and namespaces of the network taken apart, some time after the last order."""

_SETTLE_SECONDS = 30.0
HOST_OBJECTS = ("mnt_namespace", "net_namespace", "pid_namespace", "user_namespace", "nsproxy", "task_struct")
"""Kernel caches that show a leak nobody has a name for, on a machine that does nothing else."""


def count(state_dir: Path, cgroup_parent: str, *, at_most: Mapping[str, int] | None = None) -> Counts:
    """Count processes, namespaces, mounts, groups, descriptors and files, once these stand still.

    cgroup_parent: as the runtime's settings have it. at_most: an earlier count; waits longer for what exceeds it.
    """
    deadline = time.monotonic() + _SETTLE_SECONDS
    last, since = _count_now(state_dir, cgroup_parent), time.monotonic()
    while time.monotonic() < deadline:
        is_quiet = time.monotonic() - since > _QUIET_SECONDS
        if is_quiet and all(number <= (at_most or last).get(kind, 0) for kind, number in last.items()):
            break
        time.sleep(0.02)
        now = _count_now(state_dir, cgroup_parent)
        if now != last:
            last, since = now, time.monotonic()
    return last


def _count_now(state_dir: Path, cgroup_parent: str) -> Counts:
    family = _descendants(os.getpid())
    zygotes = [pid for pid in family if _read(pid, "comm").strip() == _ZYGOTE_NAME]
    counts = Counter(
        processes=len(family),
        threads=len(_entries(os.getpid(), "task")),
        namespaces=len({link for pid in family for link in _namespaces(pid)}),
        cgroups=sum(1 for top in group_folders(cgroup_parent) for _ in top.rglob("*/")),
        worker_descriptors=len(_entries(os.getpid(), "fd")),
        zygote_descriptors=sum(len(_entries(pid, "fd")) for pid in zygotes),
        files=sum(1 for _ in state_dir.rglob("*")),
    )
    host = _mount_points("self")
    counts["mounts"] = sum(str(state_dir) in point for point in host.elements())
    counts["zygote_mounts"] = sum((_mount_points(str(pid)) - host).total() for pid in zygotes)
    return dict(counts)


def host_objects() -> dict[str, int]:
    """Give the objects in each of HOST_OBJECTS, and all control groups with those not yet freed; root only."""
    found = {}
    with suppress(OSError):
        for line in Path("/proc/slabinfo").read_text().splitlines():
            fields = line.split()
            if fields[0] in HOST_OBJECTS:
                found[fields[0]] = int(fields[1])
    with suppress(OSError):
        for line in Path("/proc/cgroups").read_text().splitlines()[1:]:
            name, _, groups, _ = line.split()
            found[f"{name}_cgroups"] = int(groups)
    return found


def group_folders(cgroup_parent: str) -> list[Path]:
    """Give the folder of our groups in each hierarchy."""
    return [*Path("/sys/fs/cgroup").glob(cgroup_parent), *Path("/sys/fs/cgroup").glob(f"*/{cgroup_parent}")]


def _descendants(pid: int) -> set[int]:
    """Give all processes below one; those it has lost to process 1 are in its control groups, which are counted."""
    found: set[int] = set()
    for task in _entries(pid, "task"):
        for child in map(int, _read(pid, f"task/{task.name}/children").split()):
            found |= {child} | _descendants(child)
    return found


def _namespaces(pid: int) -> list[Path]:
    links = []
    for path in _entries(pid, "ns"):
        with suppress(OSError):
            links.append(path.readlink())
    return links


def _entries(pid: int, folder: str) -> list[Path]:
    with suppress(OSError):
        return list(Path(f"/proc/{pid}/{folder}").iterdir())
    return []


def _mount_points(process: str) -> Counter[str]:
    with suppress(OSError):
        lines = Path(f"/proc/{process}/mountinfo").read_text().splitlines()
        return Counter(line.split(" ")[4] for line in lines)
    return Counter()


def _read(pid: int, name: str) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_text()
    return ""
