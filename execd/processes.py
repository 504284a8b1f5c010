"""Which processes belong to a command, and the killing of all of them.

execd adopts orphans (it is pid 1 or a subreaper), so a command's process that left its session and lost its
parents is a child of execd. It is told from other commands' orphans by the id in its environment, as far as that can
be believed.
"""

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from execd.envs import EXECUTION_ID_NAME
from execd.readfile import read_kernel_file

__all__ = [
    "Origin",
    "ProcessInfo",
    "ProcessTable",
    "adopted_by",
    "belonging_to",
    "children_of",
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
_EMPTY_PASSES: Final = 2
_DEAD_STATES: Final = (b"Z", b"X", b"x")

ProcessTable = Mapping[int, "ProcessInfo"]
"""Processes by pid."""


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
    """The main process of a command; its pid is also its session and process group.

    predecessors: (pid, start_ticks) of execd's children when it was started. A clock tick is long: a daemon of an
    earlier command may have started in the same one.
    """

    pid: int
    start_ticks: int
    execution_id: str
    predecessors: frozenset[tuple[int, int]] = frozenset()


def process_start(pid: int) -> int:
    """Start of a process in clock ticks since boot; 0 when it cannot be read."""
    info = _read_stat(pid)
    return info.start_ticks if info else 0


def list_processes() -> dict[int, ProcessInfo]:
    """All processes that are visible and not dead, by pid. Empty without /proc."""
    return _scan(adopter=0)[0]


def adopted_by(pid: int) -> frozenset[tuple[int, int]]:
    """Children of a process, with the start of each in clock ticks since boot."""
    return frozenset((number, process_start(number)) for number in children_of(pid))


def children_of(pid: int) -> list[int]:
    """Pids of the children of a process with one thread."""
    try:
        return [int(number) for number in read_kernel_file(f"/proc/{pid}/task/{pid}/children").split()]
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN
        return [info.pid for info in list_processes().values() if info.ppid == pid]


def belonging_to(
    origin: Origin, others: Collection[Origin], table: ProcessTable, *, adopter: int
) -> set[int]:
    """Pids in `table` that descend from the command. others: all other running commands. adopter: pid of execd.

    An orphan belongs to every command that ran when it started, unless its environment names another that still
    runs and is no younger than it: whoever wipes or forges the name does not escape by it. A kill is thorough rather
    than fair to those who hide.
    """
    if adopter <= 0:
        raise ValueError("the adopter is execd itself")
    foreign = {other.pid for other in others}
    foreign_starts = {other.execution_id: other.start_ticks for other in others}

    def is_root(info: ProcessInfo) -> bool:
        if info.start_ticks < origin.start_ticks or info.pid in foreign:
            return False
        if origin.pid in (info.pid, info.sid, info.pgid):
            return True
        if info.ppid != adopter or info.sid in foreign:
            return False
        if (info.pid, info.start_ticks) in origin.predecessors:
            return False
        named = foreign_starts.get(_execution_id_of(info.pid) or "")
        return named is None or info.start_ticks < named

    roots = [info.pid for info in table.values() if is_root(info)]
    return _with_descendants(roots, table, excluded={*foreign, adopter})


def descendants_of(pid: int, table: ProcessTable) -> set[int]:
    """Pids in `table` that descend from pid by parentage alone; without pid itself."""
    return _with_descendants([info.pid for info in table.values() if info.ppid == pid], table, excluded={pid})


def _with_descendants(roots: Sequence[int], table: ProcessTable, *, excluded: Collection[int]) -> set[int]:
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


async def kill_until_gone(find: Callable[[ProcessTable], set[int]]) -> bool:
    """SIGKILL what `find` picks from the table until it picks nothing; False if something was left at the deadline.

    A family that forks faster than it is killed, or hands itself on from child to child so that no listing shows it
    alive, is brought to a standstill first.
    """
    deadline = time.monotonic() + KILL_DEADLINE_SECONDS
    is_init = os.getpid() == 1
    pause = 0.001
    for attempt in count():
        table, is_conclusive = _scan(adopter=os.getpid())
        victims = find(table)
        # On a host of its own making processes come and go all the time; only in a sandbox it means something.
        if not victims and (is_conclusive or not is_init):
            return True
        if time.monotonic() > deadline:
            log.error("processes_survive_kill count=%d", len(victims))
            return False
        if attempt < _FREEZE_AFTER_PASSES:
            send_signal(victims, signal.SIGKILL)
        elif is_init:
            if _kill_at_standstill(find):
                return True
        else:
            send_signal(_freeze(find), signal.SIGKILL)
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


def _kill_at_standstill(find: Callable[[ProcessTable], set[int]]) -> bool:
    """Stop every process of the sandbox in one step that no fork slips through, kill the victims, let the rest go on.

    Gives whether none is left. For process 1 only: to anyone else this would be every process of the user.
    """
    if os.getpid() != 1:
        raise RuntimeError("only process 1 may stop all others")
    try:
        os.kill(-1, signal.SIGSTOP)
    except ProcessLookupError:
        return True
    except PermissionError:  # all of them run as other users
        return False
    # Twice: one that was ending already may have left its child to us while we read.
    empty_passes = 0
    try:
        for _ in range(_MAX_FREEZE_PASSES):
            victims = find(list_processes())
            send_signal(victims, signal.SIGKILL)
            empty_passes = 0 if victims else empty_passes + 1
            if empty_passes == _EMPTY_PASSES:
                break
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(-1, signal.SIGCONT)
    return empty_passes == _EMPTY_PASSES


def _freeze(find: Callable[[ProcessTable], set[int]]) -> set[int]:
    """Stop what is found until nothing new is; stopped processes keep their places in the process limit."""
    stopped: set[int] = set()
    for _ in range(_MAX_FREEZE_PASSES):
        fresh = find(list_processes()) - stopped
        if not fresh:
            break
        send_signal(fresh, signal.SIGSTOP)
        stopped |= fresh
    return stopped


def _scan(*, adopter: int) -> tuple[dict[int, ProcessInfo], bool]:
    """List the living, and say whether none but those can be there.

    Not so if one was gone before it could be read, or waits dead for its adopter: it may have left a child that the
    listing had passed by.
    """
    try:
        names = os.listdir("/proc")
    except OSError:
        return {}, True
    table: dict[int, ProcessInfo] = {}
    is_conclusive = True
    for pid in [int(name) for name in names if name.isdecimal()]:
        info, is_dead = _look_at(pid)
        if info is None or (is_dead and info.ppid == adopter):
            is_conclusive = False
        elif not is_dead:
            table[pid] = info
    return table, is_conclusive


def _read_stat(pid: int) -> ProcessInfo | None:
    info, is_dead = _look_at(pid)
    return None if is_dead else info


def _look_at(pid: int) -> tuple[ProcessInfo | None, bool]:
    """Give what the kernel says of a process, and whether it has ended and only waits for its parent to notice."""
    try:
        text = read_kernel_file(f"/proc/{pid}/stat")
    except OSError:
        return None, True
    # The name is in parentheses and may hold anything, parentheses included.
    fields = text[text.rfind(b")") + 2 :].split()
    if len(fields) < 20:
        return None, True
    # A main thread that ended alone looks like a zombie while other threads go on: count them.
    is_dead = fields[0] in _DEAD_STATES and int(fields[17]) <= 1
    return ProcessInfo(pid, int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19])), is_dead


def _execution_id_of(pid: int) -> str | None:
    try:
        block = read_kernel_file(f"/proc/{pid}/environ")
    except OSError:
        return None
    prefix = EXECUTION_ID_NAME.encode() + b"="
    for entry in block.split(b"\0"):
        if entry.startswith(prefix):
            return entry[len(prefix) :].decode("ascii", "replace")
    return None
