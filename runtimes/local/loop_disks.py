"""Disks of sandboxes as sparse files, ext4 in each: what is written is not memory, and has a hard limit."""

import errno
import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from core.errors import DaemonError, RuntimeUnavailableError
from runtimes.local.images.locking import is_locked, lock_file
from runtimes.local.inode_limits import inodes_for

__all__ = ["LoopDisks"]

_LOOP_CTL_GET_FREE, _LOOP_CONFIGURE = 0x4C82, 0x4C0A
_AUTOCLEAR: Final = 4
"""The kernel lets go of the file when the last user of the device is gone."""

_ATTEMPTS: Final = 50
_MKFS_TIMEOUT_SECONDS: Final = 60.0
_MIN_BYTES: Final = 8 << 20
"""A smaller ext4 has hardly room for anything but itself."""


class LoopDisks:
    """The files of one node's sandboxes."""

    def __init__(self, folder: Path) -> None:
        """folder: made on first use."""
        self._folder = folder

    @contextmanager
    def attached(self, name: str, size_bytes: int) -> Iterator[str]:
        """Make a disk and give its device for as long as it takes to mount it. Raises DaemonError.

        It has no name afterwards, and its space is free once nothing has it mounted.

        size_bytes: less what ext4 needs for itself, some 3 %; at least 8 MiB.
        """
        program = shutil.which("mkfs.ext4", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        if program is None:
            message = "mkfs.ext4 is missing: install e2fsprogs, or set the local runtime's disk to memory"
            raise RuntimeUnavailableError(message)
        path = self._path(name)
        try:
            device = self._make(program, path, max(size_bytes, _MIN_BYTES))
        except (OSError, subprocess.TimeoutExpired) as error:
            path.unlink(missing_ok=True)
            raise DaemonError(f"the disk of {name} could not be made: {error}") from error
        try:
            yield f"/dev/loop{device[0]}"
        finally:
            os.close(device[1])
            # Whoever has it mounted keeps it; so nothing is left when they end, however they do.
            path.unlink(missing_ok=True)

    def sweep(self) -> None:
        """Delete disks of processes that were killed before they could mount them."""
        if not self._folder.is_dir():
            return
        with lock_file(self._lock):
            unused = [path for path in self._folder.glob("*.ext4") if not is_locked(path)]
            for path in unused:
                path.unlink(missing_ok=True)

    @property
    def _lock(self) -> Path:
        return self._folder.with_name("disks.lock")

    def _make(self, program: str, path: Path, size: int) -> tuple[int, int]:
        """Make a disk, and give the number and an open descriptor of a loop device on it. Raises OSError."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        with lock_file(self._lock, shared=True):
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            # The device shares the open file, and so the lock.
            fcntl.flock(file, fcntl.LOCK_SH)
        try:
            os.truncate(file, size)
            _format(program, path, size)
            return _attach(file)
        finally:
            os.close(file)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.ext4"


def _format(program: str, path: Path, size: int) -> None:
    # No journal: after a crash of the host nobody mounts it again.
    options = ["-q", "-F", "-m", "0", "-O", "^has_journal", "-E", "lazy_itable_init=1,nodiscard"]
    done = subprocess.run(
        [program, *options, "-N", str(inodes_for(size)), "--", str(path)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_MKFS_TIMEOUT_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise OSError(errno.EIO, done.stderr.strip()[-300:] or "mkfs.ext4 failed", str(path))


def _attach(file: int) -> tuple[int, int]:
    """Give the number and an open descriptor of a loop device on the open file."""
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(_ATTEMPTS):
            number = fcntl.ioctl(control, _LOOP_CTL_GET_FREE)
            device = os.open(f"/dev/loop{number}", os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.ioctl(device, _LOOP_CONFIGURE, _configuration(file))
            except OSError as error:
                os.close(device)
                if error.errno != errno.EBUSY:  # somebody else took it meanwhile
                    raise
            else:
                return number, device
        raise OSError(errno.EBUSY, "no loop device is free", "/dev/loop-control")
    finally:
        os.close(control)


def _configuration(file: int) -> bytes:
    """Struct loop_config: fd, block size, struct loop_info64 of 232 bytes with lo_flags at 52, reserved."""
    info = bytearray(232)
    struct.pack_into("=I", info, 52, _AUTOCLEAR)
    return struct.pack("=II", file, 0) + bytes(info) + bytes(64)
