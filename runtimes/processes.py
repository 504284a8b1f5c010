"""Naming a process so that a reused number cannot be mistaken for it, and ending it for sure."""

import os
import select
import signal
from dataclasses import dataclass
from pathlib import Path

__all__ = ["KILL_TIMEOUT_SECONDS", "ProcessRef", "await_end", "kill", "kill_and_wait"]

KILL_TIMEOUT_SECONDS = 10.0
"""SIGKILL takes microseconds; a process stuck in the kernel (a dying disk) may need longer and is then reported."""


_STAT_BYTES = 4096
"""Some fifty numbers and a name of 64 bytes at most."""


@dataclass(frozen=True, slots=True)
class ProcessRef:
    """A process of this host. started: clock ticks after boot, field 22 of proc(5)'s /proc/pid/stat."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> "ProcessRef | None":
        """Look a process up; None if there is none, or only its zombie."""
        try:
            descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            # The name in field 2 may hold blanks and parentheses: count from its last one.
            fields = os.read(descriptor, _STAT_BYTES).rpartition(b")")[2].split()
        except OSError:
            return None
        finally:
            os.close(descriptor)
        return None if fields[0] in b"ZX" else cls(pid, int(fields[19]))

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
    def parent(self) -> "ProcessRef | None":
        """The process it is a child of; None once either is gone."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return self.of(int(fields[1])) if int(fields[19]) == self.started else None

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
    return await_end(kill(process), timeout_seconds=timeout_seconds)


def kill(process: ProcessRef) -> int | None:
    """Send SIGKILL; give a descriptor for `await_end`, None if it has ended already."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    try:
        # Checked after opening: from here on the descriptor, not the number, says which process is meant.
        if process.is_alive:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            return descriptor
    except ProcessLookupError:
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def await_end(killed: int | None, *, timeout_seconds: float) -> bool:
    """Wait for the end of what was killed, and close the descriptor; False if it still runs after the timeout."""
    if killed is None:
        return True
    try:
        poller = select.poll()
        poller.register(killed, select.POLLIN)
        return bool(poller.poll(timeout_seconds * 1000))
    finally:
        os.close(killed)
