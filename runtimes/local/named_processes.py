"""Finding and killing a bwrap by the name of its sandbox, whoever started it."""

import os
import signal
from contextlib import suppress
from pathlib import Path

from runtimes.processes import KILL_TIMEOUT_SECONDS, ProcessRef, kill_and_wait

__all__ = ["NAME_VARIABLE", "kill_by_name", "kill_with_children"]

NAME_VARIABLE = "SANDMILL_SANDBOX"
"""Environment variable of the bwrap process on the host that names its sandbox; the sandbox does not see it."""

_MOST_BWRAPS = 2
"""In one start: one that makes a disk, one that makes the sandbox."""


def kill_by_name(name: str) -> None:
    """Kill what an owner that died in the middle of a start may have left.

    These are the processes that carry the sandbox's name, and what they have started: that need not die with them.
    """
    mark = f"{NAME_VARIABLE}={name}".encode()
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdigit() and mark in (folder / "environ").read_bytes().split(b"\0"):
                process = ProcessRef.of(int(folder.name))
                if process is not None:
                    kill_with_children(process)


def kill_with_children(bwrap: ProcessRef) -> None:
    """Kill a bwrap, and what it has started so far, whether that would end with it or not."""
    with suppress(ProcessLookupError):
        os.kill(bwrap.pid, signal.SIGSTOP)
        _kill_children(bwrap, _MOST_BWRAPS)
    kill_and_wait(bwrap, timeout_seconds=KILL_TIMEOUT_SECONDS)


def _kill_children(bwrap: ProcessRef, bwraps: int) -> None:
    """Kill what a stopped bwrap has started. bwraps: how many there may be, each inside the one before.

    Process 1 asks to die with bwrap only a moment after it was made. Stopped, bwrap makes no more children, so the one
    there is can be killed by number.
    """
    for child in bwrap.children:
        if bwraps > 1:
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGSTOP)
            _kill_children(child, bwraps - 1)
        kill_and_wait(child, timeout_seconds=KILL_TIMEOUT_SECONDS)
