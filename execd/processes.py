"""Which processes belong to a command, and the killing of all of them.

execd adopts orphans (it is pid 1 or a subreaper), so a command's process that left its session and lost its
parents is a child of execd. It is told from other commands' orphans by the id in its environment.
"""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from execd.envs import EXECUTION_ID_NAME

__all__ = [
    "Origin",
    "ProcessInfo",
    "belonging_to",
    "descendants_of",
    "kill_until_gone",
    "list_processes",
    "process_start",
]

log = logging.getLogger("execd.processes")

KILL_DEADLINE_SECONDS: Final = 5.0
"""A process in an uninterruptible system call outlives SIGKILL; the reply does not wait for it longer."""

_FREEZE_AFTER_PASSES: Final = 3
_MAX_FREEZE_PASSES: Final = 50
_DEAD_STATES: Final = (b"Z", b"X", b"x")


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A line of the process table. start_ticks: clock ticks between boot and the start."""

    pid: int
    ppid: int
    pgid: int
    sid: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class Origin:
    """The main process of a command; its pid is also its session and process group."""

    pid: int
    start_ticks: int
    execution_id: str


def process_start(pid: int) -> int:
    """Start of a process in clock ticks since boot; 0 when it cannot be read."""
    info = _read_stat(pid)
    return info.start_ticks if info else 0


def list_processes() -> dict[int, ProcessInfo]:
    """All processes that are visible and not dead, by pid. Empty without /proc."""
    try:
        names = os.listdir("/proc")
    except OSError:
        return {}
    found = (_read_stat(int(name)) for name in names if name.isdecimal())
    return {info.pid: info for info in found if info}


def belonging_to(
    origin: Origin, others: Collection[Origin], table: Mapping[int, ProcessInfo], *, adopter: int
) -> set[int]:
    """Pids in `table` that descend from the command. others: all other running commands. adopter: pid of execd.

    An orphan that has wiped its environment belongs to every command that ran when it started: a kill is
    thorough rather than fair to those who hide.
    """
    if adopter <= 0:
        raise ValueError("the adopter is execd itself")
    foreign = {other.pid for other in others}

    def is_root(info: ProcessInfo) -> bool:
        if info.start_ticks < origin.start_ticks or info.pid in foreign:
            return False
        if origin.pid in (info.pid, info.sid, info.pgid):
            return True
        if info.ppid != adopter or info.sid in foreign:
            return False
        return _execution_id_of(info.pid) in (origin.execution_id, None)

    roots = [info.pid for info in table.values() if is_root(info)]
    return _with_descendants(roots, table, excluded={*foreign, adopter})


def descendants_of(pid: int, table: Mapping[int, ProcessInfo]) -> set[int]:
    """Pids in `table` that descend from pid by parentage alone; without pid itself."""
    return _with_descendants([info.pid for info in table.values() if info.ppid == pid], table, excluded={pid})


def _with_descendants(
    roots: Sequence[int], table: Mapping[int, ProcessInfo], *, excluded: Collection[int]
) -> set[int]:
    children: dict[int, list[int]] = {}
    for info in table.values():
        children.setdefault(info.ppid, []).append(info.pid)
    pending = list(roots)
    found: set[int] = set()
    while pending:
        pid = pending.pop()
        if pid not in found and pid not in excluded:
            found.add(pid)
            pending += children.get(pid, ())
    return found


async def kill_until_gone(find: Callable[[], set[int]]) -> bool:
    """SIGKILL what `find` gives until it gives nothing; False if something was left at the deadline.

    A family that forks faster than it is killed is frozen first: stopped processes keep their places in the
    process limit, so that its forks begin to fail.
    """
    deadline = time.monotonic() + KILL_DEADLINE_SECONDS
    pause = 0.001
    for attempt in _count():
        victims = find()
        if not victims:
            return True
        if time.monotonic() > deadline:
            log.error("processes_survive_kill count=%d", len(victims))
            return False
        if attempt >= _FREEZE_AFTER_PASSES:
            victims = _freeze(find)
        send_signal(victims, signal.SIGKILL)
        await asyncio.sleep(pause)
        pause = min(pause * 2, 0.05)
    raise AssertionError("unreachable")


def send_signal(pids: Collection[int], number: signal.Signals) -> None:
    """Signal each process; those that are gone, or belong to a user we may not signal, are passed over."""
    # The last line of defence: whatever the table said, neither init nor this process is ever a victim.
    for pid in set(pids) - {os.getpid()}:
        if pid <= 1:
            continue
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
        except PermissionError:
            log.warning("signal_not_permitted pid=%d signal=%d", pid, number)


def _count() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1


def _freeze(find: Callable[[], set[int]]) -> set[int]:
    stopped: set[int] = set()
    for _ in range(_MAX_FREEZE_PASSES):
        fresh = find() - stopped
        if not fresh:
            break
        send_signal(fresh, signal.SIGSTOP)
        stopped |= fresh
    return stopped


def _read_stat(pid: int) -> ProcessInfo | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    # The name is in parentheses and may hold anything, parentheses included.
    fields = text[text.rfind(b")") + 2 :].split()
    if len(fields) < 20:
        return None
    # A main thread that ended alone looks like a zombie while other threads go on: count them.
    if fields[0] in _DEAD_STATES and int(fields[17]) <= 1:
        return None
    return ProcessInfo(pid, int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


def _execution_id_of(pid: int) -> str | None:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            block = file.read()
    except OSError:
        return None
    prefix = EXECUTION_ID_NAME.encode() + b"="
    for entry in block.split(b"\0"):
        if entry.startswith(prefix):
            return entry[len(prefix) :].decode("ascii", "replace")
    return None
