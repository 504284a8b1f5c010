"""Reading files that code in the sandbox may have replaced by anything."""

import errno
import os
import stat

__all__ = ["open_regular", "read_kernel_file", "read_small_file"]


def open_regular(path: str) -> tuple[int, os.stat_result]:
    """Open a regular file for reading; never blocks and never opens a device.

    Returns the descriptor and its stat. Raises OSError; IsADirectoryError and the like carry the errno,
    ENXIO stands for every other kind of file.
    """
    kind = os.stat(path).st_mode
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, "Is a directory")
    if not stat.S_ISREG(kind):
        raise OSError(errno.ENXIO, "Not a regular file")
    # The path may have become a FIFO since: O_NONBLOCK keeps its open from waiting, fstat tells.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise OSError(errno.ENXIO, "Not a regular file")
    return fd, status


def read_small_file(path: str, *, max_bytes: int) -> bytes | None:
    """Give the first max_bytes of a regular file; None if there is none to be read."""
    try:
        fd, _ = open_regular(path)
    except (OSError, ValueError):
        return None
    try:
        parts = []
        while max_bytes > 0 and (data := os.read(fd, min(max_bytes, 65536))):
            parts.append(data)
            max_bytes -= len(data)
        return b"".join(parts)
    except OSError:
        return None
    finally:
        os.close(fd)


def read_kernel_file(path: str) -> bytes:
    """Give the content of a file of /proc. Raises OSError.

    A file object would take longer to make than the reading takes, and each command needs several.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while data := os.read(fd, 65536):
            parts.append(data)
        return b"".join(parts)
    finally:
        os.close(fd)
