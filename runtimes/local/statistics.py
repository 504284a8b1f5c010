"""What a sandbox has written, as its file system counts it."""

import os
from dataclasses import replace

from runtimes.base import SandboxStats
from runtimes.processes import ProcessRef

__all__ = ["with_disk_use"]


def with_disk_use(stats: SandboxStats, init: ProcessRef | None) -> SandboxStats:
    """Add use and size of the root's file system; left out when process 1 is gone, or not ours to look into."""
    if init is None or not init.is_alive:
        return stats
    try:
        found = os.statvfs(f"/proc/{init.pid}/root")
    except OSError:
        return stats
    size = found.f_blocks * found.f_frsize
    return replace(stats, disk_bytes=size - found.f_bfree * found.f_frsize, disk_limit_bytes=size)
