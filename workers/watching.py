"""The worker's side of the watchdog: starts one, and again if it should ever end."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from core.build import SOURCE_ROOT
from core.logging import get_logger
from workers.lease_file import LeaseFile
from workers.watchdog import Facts

__all__ = ["WatchdogKeeper", "end_sandboxes"]

log = get_logger(__name__)

_END_SECONDS = 5.0
_POLL_SECONDS = 0.02


class WatchdogKeeper:
    """Sees to it that a watchdog of this build runs."""

    def __init__(self, folder: Path, facts: Facts) -> None:
        """folder: the node's own. Nothing is started yet."""
        self._folder = folder
        self._facts = facts
        self._process: subprocess.Popen[bytes] | None = None

    def ensure(self) -> None:
        """Start one unless it runs; replace one of another build, or that watches something else. Cheap if it runs."""
        if self._process is not None:
            if self._process.poll() is None:
                return
            log.warning("watchdog_ended", exit_code=self._process.returncode)
            self._process = None
        if not _is_held(self._folder):
            self._start()
            return
        noted = _noted(self._folder)
        if noted.get("facts") != asdict(self._facts):
            _end(self._folder, noted)
            self._start()

    def stop(self) -> None:
        """End it, once nothing of this node runs any more."""
        LeaseFile(self._folder).remove()
        _await_free(self._folder, _END_SECONDS)
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)

    def _start(self) -> None:
        try:
            self._process = _start(self._folder, asdict(self._facts))
        except OSError as error:
            log.exception("watchdog_not_started", error=error.strerror)
            return
        log.info("watchdog_started", watchdog_pid=self._process.pid)


def end_sandboxes(folder: Path, *, timeout_seconds: float) -> bool:
    """End all that a node's workers left running, at once; False if the watchdog takes longer.

    For whoever stops a node for good. folder: the node's own. The worker must have ended.
    """
    lease = LeaseFile(folder)
    had_lease = lease.read() is not None
    lease.remove()
    facts = _noted(folder).get("facts")
    if had_lease and facts is not None and not _is_held(folder):
        # It was killed, too: one that only clears away.
        with suppress(OSError, subprocess.TimeoutExpired):
            return _start(folder, facts).wait(timeout_seconds) == 0
    return _await_free(folder, timeout_seconds)


def _start(folder: Path, facts: Mapping[str, Any]) -> "subprocess.Popen[bytes]":
    """Start the program. Raises OSError."""
    return subprocess.Popen(
        [sys.executable, "-m", "workers.watchdog", str(folder), json.dumps(facts)],
        stdin=subprocess.DEVNULL,
        cwd="/",
        # Without our own: there are passwords in it.
        env={"PYTHONPATH": str(SOURCE_ROOT), "PYTHONSAFEPATH": "1"},
        # Its own session: it stays when the worker's group is killed.
        start_new_session=True,
    )


def _end(folder: Path, noted: dict[str, Any]) -> None:
    with suppress(ProcessLookupError, KeyError, TypeError):
        os.kill(int(noted["pid"]), signal.SIGTERM)
    _await_free(folder, _END_SECONDS)


def _await_free(folder: Path, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while _is_held(folder):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _is_held(folder: Path) -> bool:
    try:
        lock = os.open(folder / "watchdog.lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _noted(folder: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        found = json.loads((folder / "watchdog.lock").read_bytes())
        if isinstance(found, dict):
            return found
    return {}
