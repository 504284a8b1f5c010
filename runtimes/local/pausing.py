"""Stopping and waking a whole sandbox: by its control groups, else process by process."""

import os
import signal
import time
from contextlib import suppress

from core.errors import DaemonError
from runtimes.cgroups import SandboxCgroup
from runtimes.processes import ProcessRef

__all__ = ["is_paused", "pause", "resume", "thaw_for_removal"]

_TIMEOUT_SECONDS = 10.0
_PAUSE_SECONDS = 0.002


def pause(cgroup: SandboxCgroup, init: ProcessRef | None) -> None:
    """Stop every process of a sandbox. init: its process 1. Idempotent.

    Raises DaemonError if some do not stand still; all go on then.
    """
    try:
        if cgroup.freeze(timeout_seconds=_TIMEOUT_SECONDS):
            return
    except OSError as error:
        cgroup.thaw(timeout_seconds=_TIMEOUT_SECONDS)
        raise DaemonError(f"the sandbox could not be paused: {error}") from error
    _stop_each(init)


def resume(cgroup: SandboxCgroup, init: ProcessRef | None) -> None:
    """Let a paused sandbox go on. Idempotent. Raises DaemonError."""
    try:
        if cgroup.thaw(timeout_seconds=_TIMEOUT_SECONDS):
            return
    except OSError as error:
        raise DaemonError(f"the sandbox could not be resumed: {error}") from error
    for process in _family(init):
        _signal(process, signal.SIGCONT)


def is_paused(cgroup: SandboxCgroup, init: ProcessRef | None) -> bool:
    """Say whether all of it stands still."""
    return cgroup.is_frozen or (init is not None and _is_stopped(init))


def thaw_for_removal(cgroup: SandboxCgroup) -> None:
    """Let processes of a frozen group die: version 1 keeps even the killed where they stand."""
    with suppress(OSError):
        if cgroup.is_frozen:
            cgroup.thaw(timeout_seconds=_TIMEOUT_SECONDS)


def _stop_each(init: ProcessRef | None) -> None:
    """Stop processes until a look finds none that runs: one that is not stopped yet can start others."""
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while running := [process for process in _family(init) if not _is_stopped(process)]:
        if time.monotonic() > deadline:
            for process in _family(init):
                _signal(process, signal.SIGCONT)
            raise DaemonError(f"{len(running)} processes of the sandbox do not stand still")
        for process in running:
            _signal(process, signal.SIGSTOP)
        time.sleep(_PAUSE_SECONDS)


def _family(init: ProcessRef | None) -> list[ProcessRef]:
    """Process 1 and all that descends from it, which is everybody in the sandbox."""
    family = [init] if init is not None else []
    for process in family:
        family += process.children
    return family


def _is_stopped(process: ProcessRef) -> bool:
    return process.state in ("T", None)


def _signal(process: ProcessRef, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        if process.is_alive:
            os.kill(process.pid, number)
