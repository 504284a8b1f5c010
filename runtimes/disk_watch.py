"""Ends sandboxes that have written more than they may, where the storage driver has no limit of its own."""

import os
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from core.logging import get_logger

__all__ = ["DiskUse", "DiskWatch", "measure"]

log = get_logger(__name__)

_TICK_SECONDS = 1.0
_SHARE = 20
"""A look at a folder is paid back by a pause of so many times its length: five percent of a processor at most."""

_LONGEST_PAUSE_SECONDS = 30.0
_BYTES_PER_FILE = 4096
"""A limit of n bytes allows n / 4096 files: see `container_spec`."""


@dataclass(frozen=True, slots=True)
class DiskUse:
    """What is in a folder, links counted once; blocks, not sizes, so that holes count nothing."""

    bytes: int = 0
    files: int = 0


def measure(folder: Path, *, enough: DiskUse | None = None) -> DiskUse:
    """Count a tree, without following links; no further than to one more than `enough`."""
    total = files = 0
    seen: set[tuple[int, int]] = set()
    waiting = [os.fspath(folder)]
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
                    if (status.st_dev, status.st_ino) in seen:
                        continue
                    seen.add((status.st_dev, status.st_ino))
                total += status.st_blocks * 512
                files += 1
                if stat.S_ISDIR(status.st_mode):
                    waiting.append(entry.path)
        if enough is not None and (total > enough.bytes or files > enough.files):
            break
    return DiskUse(total, files)


@dataclass(slots=True)
class _Watched:
    """One sandbox. allowed: its limit. due: when to look next, on the monotonic clock."""

    folder: Path
    allowed: DiskUse
    due: float
    use: DiskUse = DiskUse()


class DiskWatch:
    """Looks at each folder now and then, and at once when the disk fills up fast; one thread, while there are any."""

    def __init__(self, root: Path, on_excess: Callable[[str, str], None]) -> None:
        """root: on the disk that all folders are on. on_excess: is given a key and the reason in words."""
        self._root = root
        self._on_excess = on_excess
        self._watched: dict[str, _Watched] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._free = 0

    def add(self, key: str, folder: Path, limit_bytes: int) -> None:
        """Watch a folder from now on. Idempotent."""
        allowed = DiskUse(limit_bytes, max(64, limit_bytes // _BYTES_PER_FILE))
        with self._lock:
            self._watched.setdefault(key, _Watched(folder, allowed, time.monotonic() + _TICK_SECONDS))
            if self._thread is None:
                self._stopping = threading.Event()
                self._thread = threading.Thread(target=self._run, name="disk-watch", daemon=True)
                self._thread.start()

    def drop(self, key: str) -> None:
        """Watch it no more. Idempotent."""
        with self._lock:
            self._watched.pop(key, None)

    def look_up(self, key: str) -> tuple[DiskUse, DiskUse] | None:
        """Give what the last look found, and the limit; None for a folder that is not watched."""
        watched = self._watched.get(key)
        return None if watched is None else (watched.use, watched.allowed)

    def stop(self) -> None:
        """End the thread; what is watched stays so until `add` starts another."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._stopping.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_LONGEST_PAUSE_SECONDS)

    def look(self) -> None:
        """Look at the folders that are due now."""
        with self._lock:
            watched = dict(self._watched)
        if not watched:
            return
        free = _free_bytes(self._root)
        filled, self._free = self._free - free, free
        now = time.monotonic()
        for key, one in watched.items():
            # Since the last look at the disk somebody has written half of what this one has left: maybe this one.
            is_pressing = filled > max(0, one.allowed.bytes - one.use.bytes) / 2
            if now >= one.due or is_pressing:
                self._look_at(key, one)

    def _look_at(self, key: str, one: _Watched) -> None:
        started = time.monotonic()
        one.use = measure(one.folder, enough=one.allowed)
        ended = time.monotonic()
        one.due = ended + min(_LONGEST_PAUSE_SECONDS, max(_TICK_SECONDS, _SHARE * (ended - started)))
        if one.use.bytes > one.allowed.bytes:
            reason = f"disk limit: it has written more than its {one.allowed.bytes} bytes"
        elif one.use.files > one.allowed.files:
            reason = f"disk limit: it has more than its {one.allowed.files} files"
        else:
            return
        self.drop(key)
        self._on_excess(key, reason)

    def _run(self) -> None:
        stopping = self._stopping
        while not stopping.wait(_TICK_SECONDS):
            try:
                self.look()
            except Exception:
                log.exception("disk_watch_failed")


def _free_bytes(path: Path) -> int:
    with suppress(OSError):
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize
    return 0
