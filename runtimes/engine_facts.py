"""What the docker runtime has to know about the engine it talks to."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["EngineFacts"]

_OWN_LIMITS = frozenset({"btrfs", "zfs", "devicemapper", "windowsfilter"})
"""Storage drivers that limit each container's disk by themselves."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Of one engine. oci_runtimes: their names. root: where it keeps its files, as it sees them.

    is_remapped: its containers' users are shifted on this host. limits_disk: it takes `size` as a storage option.
    default_oci_runtime: what starts containers that name none. groups: where the processes of a container are listed,
    with {id} in it, unless the engine was told of another place.
    """

    version: str
    oci_runtimes: frozenset[str]
    root: Path
    has_apparmor: bool
    has_seccomp: bool
    is_remapped: bool
    limits_disk: bool
    default_oci_runtime: str | None = None
    groups: str | None = None

    @classmethod
    def of(cls, info: Mapping[str, Any], mountinfo: str | None = None) -> "EngineFacts":
        """Read the answer to `GET /info`. mountinfo: of this host, see proc(5)."""
        options = [part for line in info.get("SecurityOptions") or () for part in line.split(",")]
        root = Path(info.get("DockerRootDir") or "/var/lib/docker")
        driver = info.get("Driver", "")
        status = dict(pair for pair in info.get("DriverStatus") or () if len(pair) == 2)
        by_quota = driver == "overlay2" and status.get("Backing Filesystem") == "xfs"
        if by_quota:
            mountinfo = Path("/proc/self/mountinfo").read_text() if mountinfo is None else mountinfo
            by_quota = _has_project_quota(mountinfo, root)
        return cls(
            version=str(info.get("ServerVersion", "")),
            oci_runtimes=frozenset(info.get("Runtimes") or ()),
            root=root,
            has_apparmor="name=apparmor" in options,
            has_seccomp="name=seccomp" in options,
            is_remapped="name=userns" in options,
            limits_disk=driver in _OWN_LIMITS or by_quota,
            default_oci_runtime=info.get("DefaultRuntime") or None,
            groups=_groups(str(info.get("CgroupDriver", "")), str(info.get("CgroupVersion", "1"))),
        )

    def only_process(self, container: str) -> int | None:
        """Give the number of the one process of a container; None if there are several, or it is not seen where."""
        if self.groups is None:
            return None
        try:
            numbers = Path(self.groups.format(id=container)).read_text().split()
        except OSError:
            return None
        return int(numbers[0]) if len(numbers) == 1 else None


def _groups(driver: str, version: str) -> str | None:
    place = {"cgroupfs": "docker/{id}", "systemd": "system.slice/docker-{id}.scope"}.get(driver)
    if place is None:
        return None
    # Of version 1, any hierarchy does that each container is in.
    root = "/sys/fs/cgroup" if version == "2" else "/sys/fs/cgroup/pids"
    return f"{root}/{place}/cgroup.procs"


def _has_project_quota(mountinfo: str, path: Path) -> bool:
    """Say whether the file system with a path was mounted with project quotas."""
    best, options = "", ""
    for line in mountinfo.splitlines():
        fields, _, tail = line.partition(" - ")
        point = fields.split(" ")[4]
        is_above = path == Path(point) or os.fspath(path).startswith(point.rstrip("/") + "/")
        if is_above and len(point) >= len(best):
            best, options = point, tail.rpartition(" ")[2]
    return bool({"prjquota", "pquota"} & set(options.split(",")))
