"""Bounding the number of files in a sandbox's memory file systems, which bwrap gives a size only.

An empty file takes none of the size, but a kilobyte of the kernel's memory.
"""

from collections.abc import Iterable

from runtimes import linux
from runtimes.local.plan import Mount, Tmpfs

__all__ = ["inodes_for", "limit_inodes"]

_BYTES_PER_INODE = 4096
_MIN_INODES, _MAX_INODES = 1_000, 1_000_000
"""At least what the sandbox is made of and a few files."""


def inodes_for(size_bytes: int) -> int:
    """Allow a memory file system one file per 4,096 bytes, as if each had one block."""
    return min(max(size_bytes // _BYTES_PER_INODE, _MIN_INODES), _MAX_INODES)


def limit_inodes(pid: int, mounts: Iterable[Mount]) -> None:
    """Bound the files of each memory file system of the plan, see `inodes_for`.

    pid: of a process of the sandbox, before anything in it could change its mounts. Needs CAP_SYS_ADMIN in the calling
    thread's and the sandbox's namespaces. Raises OSError.
    """
    for mount in mounts:
        if isinstance(mount, Tmpfs):
            linux.reconfigure(f"/proc/{pid}/root{mount.path}", "nr_inodes", str(inodes_for(mount.size_bytes)))
