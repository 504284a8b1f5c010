"""Bounding the number of files in a sandbox's memory file systems, which bwrap gives a size only.

An empty file takes none of the size, but a kilobyte of the kernel's memory.
"""

import ctypes
import os
from collections.abc import Iterable

from runtimes.local.plan import Mount, Tmpfs

__all__ = ["limit_inodes"]

_LIBC = ctypes.CDLL(None, use_errno=True)

_FSPICK, _FSCONFIG = 433, 431
"""The same numbers on every architecture, since Linux 5.2; older libcs have no functions for them."""

_AT_FDCWD, _FSPICK_CLOEXEC = -100, 1
_FSCONFIG_SET_STRING, _FSCONFIG_CMD_RECONFIGURE = 1, 7

_BYTES_PER_INODE = 4096
_MIN_INODES, _MAX_INODES = 1_000, 1_000_000
"""At least what the sandbox is made of and a few files."""


def limit_inodes(pid: int, mounts: Iterable[Mount]) -> None:
    """Allow each memory file system of the plan one file per 4,096 bytes, as if each had one block.

    pid: of a process of the sandbox, before anything in it could change its mounts. Needs CAP_SYS_ADMIN in the calling
    thread's and the sandbox's namespaces. Raises OSError.
    """
    for mount in mounts:
        if isinstance(mount, Tmpfs):
            count = min(max(mount.size_bytes // _BYTES_PER_INODE, _MIN_INODES), _MAX_INODES)
            _reconfigure(f"/proc/{pid}/root{mount.path}", "nr_inodes", str(count))


def _reconfigure(path: str, option: str, value: str) -> None:
    """Change one option of the mounted file system whose root is at path, leaving the others as they are."""
    descriptor = _call(path, _FSPICK, _AT_FDCWD, path.encode(), _FSPICK_CLOEXEC)
    try:
        _call(path, _FSCONFIG, descriptor, _FSCONFIG_SET_STRING, option.encode(), value.encode(), 0)
        _call(path, _FSCONFIG, descriptor, _FSCONFIG_CMD_RECONFIGURE, None, None, 0)
    finally:
        os.close(descriptor)


def _call(path: str, number: int, *arguments: int | bytes | None) -> int:
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    result: int = _LIBC.syscall(ctypes.c_long(number), *words)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    return result
