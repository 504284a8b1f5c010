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
    """

    version: str
    oci_runtimes: frozenset[str]
    root: Path
    has_apparmor: bool
    has_seccomp: bool
    is_remapped: bool
    limits_disk: bool

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
        )


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
