"""Locks between processes and threads, by files. The kernel drops those of whoever dies."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["is_locked", "lock_file", "remove_free_lock"]


@contextmanager
def lock_file(path: Path, *, shared: bool = False) -> Iterator[None]:
    """Hold a lock file, made if missing, for as long as the block runs; waits for whoever has it."""
    descriptor = _open_locked(path, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Say whether somebody alive holds the lock. A file that is not there is nobody's."""
    if (descriptor := _try_open(path)) is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def remove_free_lock(path: Path) -> None:
    """Remove a lock file that nobody holds; `lock_file` notices if it waited for it."""
    if (descriptor := _try_open(path)) is None:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another file of that name can only have come after one that had our lock removed ours.
        if _is_at(path, descriptor):
            path.unlink()
    except BlockingIOError:
        pass
    finally:
        os.close(descriptor)


def _try_open(path: Path) -> int | None:
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False


def _open_locked(path: Path, kind: int) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, kind)
            # A lock file may be removed while we wait: then the next one would lock another file than ours.
            if _is_at(path, descriptor):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
