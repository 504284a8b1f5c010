"""Naming a process so that a reused number cannot be mistaken for it, and ending it for sure."""

import errno
import os
import select
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["KILL_TIMEOUT_SECONDS", "ProcessRef", "kill_and_wait"]

KILL_TIMEOUT_SECONDS = 10.0
"""SIGKILL takes microseconds; a process stuck in the kernel (a dying disk) may need longer and is then reported."""


@dataclass(frozen=True, slots=True)
class ProcessRef:
    """A process of this host. started: clock ticks after boot, field 22 of proc(5)'s /proc/pid/stat."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> "ProcessRef | None":
        """Look a process up; None if there is none, or only its zombie."""
        try:
            # The name in field 2 may hold blanks and parentheses: count from its last one.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in "ZX" else cls(pid, int(fields[19]))

    @property
    def is_alive(self) -> bool:
        """True while this very process runs."""
        return self.of(self.pid) == self

    @property
    def state(self) -> str | None:
        """Its state as proc(5) has it, e.g. S, or T for stopped; None once it is gone."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return fields[0] if int(fields[19]) == self.started and fields[0] not in "ZX" else None

    @property
    def children(self) -> "list[ProcessRef]":
        """Its living children."""
        try:
            numbers = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        except OSError:
            return []
        return [child for child in (self.of(int(number)) for number in numbers) if child is not None]

    @property
    def user_ids(self) -> tuple[int, ...] | None:
        """Real, effective, saved and file system user on this host; None once it is gone."""
        try:
            lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        except OSError:
            return None
        return next((tuple(map(int, line.split()[1:])) for line in lines if line.startswith("Uid:")), None)


def kill_and_wait(process: ProcessRef, *, timeout_seconds: float) -> bool:
    """Send SIGKILL and wait for the end; False if it still runs after the timeout.

    For process 1 of a process namespace the kernel ends everything in it first, so its end means that nothing is left.
    """
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return True
    try:
        # Checked after opening: from here on the descriptor, not the number, says which process is meant.
        if not process.is_alive:
            return True
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        return bool(poller.poll(timeout_seconds * 1000))
    except OSError as error:
        if error.errno == errno.ESRCH:
            return True
        raise
    finally:
        os.close(descriptor)
