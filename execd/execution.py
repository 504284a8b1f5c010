"""One command: its processes, how it ended, and who reads its output."""

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from enum import StrEnum
from signal import SIGKILL, Signals
from typing import Any, Final

from execd.command_processes import CommandProcesses
from execd.events import now_ms
from execd.families import Families
from execd.launch import Launched, StartFailure
from execd.outputs import OutputLog
from execd.processes import Origin
from execd.pump import Position, Pump
from execd.requests import CommandRequest

__all__ = ["EndReason", "Execution", "new_execution_id"]

_KILLED_EXIT_CODE: Final = 128 + SIGKILL
"""What a shell returns whose last command was killed."""

MAX_CONTENT_CHARACTERS: Final = 16 * 1024

ABSENCE_BYTES: Final = 1024 * 1024
"""How far a command that is kept may go on while it has no client."""

REREAD_BYTES: Final = 1536 * 1024
"""So much of what a client was sent before it left may never have reached its disk: the next one asks for it again."""

_IS_SET: Final = asyncio.Event()
_IS_SET.set()

Spawn = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]


class EndReason(StrEnum):
    """Why a command ended; the terminal event's `reason`."""

    EXIT = "exit"
    SIGNAL = "signal"
    TIMEOUT = "timeout"
    OOM = "oom"
    KILLED_BY_CLIENT = "killed_by_client"
    LOST = "lost"
    START_FAILED = "start_failed"


def new_execution_id() -> str:
    """Make a random UUID in hexadecimal, without dashes."""
    raw = bytearray(os.urandom(16))
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    return raw.hex()


class _Absence:
    """Stands in the place of a client that left a command which is kept. position: how far that one came."""

    window_bytes: Final = ABSENCE_BYTES

    def __init__(self, position: int) -> None:
        self.position = position


class Execution:
    """One command and everything that descends from it, while it runs and after.

    log: what it wrote. exited: set when the main process ended, or when not even SIGKILL could end it (status is None
    then). finished: set when its output is in the log, too. remaining_processes: how many outlived it, known then.
    start_error, start_failure: why it could not be started, in words and of what kind. state_saved: whether its
    session goes on from where it ended. on_finish: called before readers hear of the end. on_release: called once
    when it has finished and its client left.
    """

    __slots__ = (
        "_clients",
        "_is_kept",
        "_kill",
        "_kills_leftovers",
        "_processes",
        "_pump",
        "_spawn",
        "_started",
        "_was_sent_kill",
        "content",
        "duration_ms",
        "ended_by",
        "exited",
        "finished",
        "finished_at_ms",
        "id",
        "is_background",
        "log",
        "on_finish",
        "on_release",
        "oom_killed",
        "remaining_processes",
        "session_id",
        "start_error",
        "start_failure",
        "started_at_ms",
        "state_saved",
        "status",
    )

    def __init__(
        self, execution_id: str, request: CommandRequest, output: OutputLog, *, session_id: str | None = None
    ) -> None:
        self.id = execution_id
        self.session_id = session_id
        self.content = _content_of(request)[:MAX_CONTENT_CHARACTERS]
        self.is_background = request.background
        self.log = output
        self.started_at_ms = now_ms()
        self.finished_at_ms: int | None = None
        self.duration_ms = 0
        self.status: int | None = None
        self.ended_by: EndReason | None = None
        self.start_error: str | None = None
        self.start_failure: StartFailure | None = None
        self.oom_killed = False
        self.remaining_processes: int | None = None
        self.exited = asyncio.Event()
        self.finished = asyncio.Event()
        self.state_saved: bool | None = None
        self.on_finish: Callable[[], None] | None = None
        self.on_release: Callable[[], None] | None = None
        self._kills_leftovers = request.kill_leftovers
        self._is_kept = request.kept
        self._started = time.monotonic()
        self._was_sent_kill = False
        self._processes: CommandProcesses | None = None
        self._pump: Pump | None = None
        self._kill: asyncio.Task[None] | None = None
        self._clients: list[Position] = []
        output.needed_from = self._needed_from

    @property
    def exit_code(self) -> int | None:
        """What the main process returned; None while it runs or if a signal ended it."""
        if self.status is None or not os.WIFEXITED(self.status):
            return None
        return os.WEXITSTATUS(self.status)

    @property
    def signal(self) -> int | None:
        """The signal that ended the main process."""
        if self.status is None or not os.WIFSIGNALED(self.status):
            return None
        return os.WTERMSIG(self.status)

    @property
    def reason(self) -> EndReason | None:
        """Why it ended; None while it runs."""
        if self.start_error is not None:
            return EndReason.START_FAILED
        if not self.exited.is_set():
            return None
        if self.status is None and self.ended_by is not EndReason.TIMEOUT:
            return EndReason.LOST
        if self.ended_by:
            return self.ended_by
        was_killed = self.signal == SIGKILL or self.exit_code == _KILLED_EXIT_CODE
        if self.oom_killed and was_killed and not self._was_sent_kill:
            return EndReason.OOM
        return EndReason.SIGNAL if self.signal is not None else EndReason.EXIT

    def begin(self, launched: Launched, origin: Origin, families: Families, spawn: Spawn, pump: Pump) -> None:
        """Take over the processes and the reading of their output."""
        self._processes = CommandProcesses(launched, origin, families, self.exited)
        self._pump = pump
        self._spawn = spawn

    def fail_to_start(self, message: str, kind: StartFailure) -> None:
        """End before the beginning."""
        self.start_error = message
        self.start_failure = kind
        self.remaining_processes = 0
        self.finished_at_ms = now_ms()
        self.exited.set()
        self.finish()

    def kill(self, reason: EndReason, *, grace_seconds: float = 0.0) -> None:
        """Begin ending the whole family: SIGTERM if there is a grace, then SIGKILL. The first reason stays.

        A later call without grace cuts short the grace of an earlier one.
        """
        if self._processes is None:
            return
        if self.status is None and self.ended_by is None:
            self.ended_by = reason
        if self._kill is None or self._kill.done() or grace_seconds == 0:
            previous = self._kill
            self._kill = self._spawn(self._processes.end(grace_seconds))
            if previous is not None:
                previous.cancel()

    async def killed(self) -> None:
        """Wait for a kill under way, if there is one."""
        while self._kill is not None and not self._kill.done():
            await asyncio.wait([self._kill])

    def send_signal(self, number: Signals) -> None:
        """Signal the process group."""
        if self._processes is not None:
            self._was_sent_kill |= number == SIGKILL
            self._processes.signal_group(number)

    def on_exit(self, status: int) -> None:
        """Take the wait status of the main process."""
        self.status = status
        if self._processes is not None:
            self._processes.note_exit(status)
            # A kill under way ends them as well.
            if self._kills_leftovers and (self._kill is None or self._kill.done()):
                self._kill = self._spawn(self._processes.end_leftovers())
        self.exited.set()

    async def ended(self) -> None:
        """Wait until the main process, and whoever was to be killed with it, is gone; the pump then ends, too."""
        await self.exited.wait()
        self.finished_at_ms = now_ms()
        await self.killed()
        self.duration_ms = round((time.monotonic() - self._started) * 1000)
        if self._pump is not None:
            self._pump.note_end()

    @property
    def has_all_output(self) -> bool:
        """Whether all outputs have come to their ends, so that nothing is to be waited for once it ended."""
        return self._pump is not None and self._pump.has_all

    def count_remaining(self) -> None:
        """Look who outlived it."""
        if self._processes is not None:
            self.remaining_processes = self._processes.count()

    def finish(self) -> None:
        """Note that all output is in the log."""
        if self.on_finish is not None:
            self.on_finish()
        self.finished.set()
        self.log.finish()
        self._release_if_done()
        # A thousand of these are remembered: let go of what is of no more use.
        self._processes = self._pump = self._kill = self.on_finish = None
        self.exited = self.finished = _IS_SET

    def attach(self, client: Position) -> None:
        """Add a client for whom it runs: its end is the end of the command, and its pace is the command's."""
        self._clients = [each for each in self._clients if not isinstance(each, _Absence)]
        self._clients.append(client)

    def detach(self, client: Position) -> None:
        """Take a client away. When the last has gone, a command that still runs is killed, tree and all.

        One that is kept goes on, and waits for the next client before it is too far ahead.
        """
        if client not in self._clients:
            return
        self._clients.remove(client)
        has_told_all = self.finished.is_set() and client.position >= self.log.end
        if not self._clients and self._is_kept and not has_told_all:
            self._clients.append(_Absence(client.position))
        elif not self._clients and not self.exited.is_set():
            self.kill(EndReason.KILLED_BY_CLIENT)
        self.reader_moved()
        self._release_if_done()

    def pacemaker(self) -> Position | None:
        """Give the reader the command waits for: the client that came first."""
        return self._clients[0] if self._clients else None

    def reader_moved(self) -> None:
        """Note that a reader has passed something on."""
        if self._pump is not None:
            self._pump.wake()

    def _needed_from(self) -> int | None:
        if not self._clients:
            return None
        position = self._clients[0].position
        return max(0, position - REREAD_BYTES) if self._is_kept else position

    def _release_if_done(self) -> None:
        if self.on_release is not None and self.finished.is_set() and not self._clients:
            release, self.on_release = self.on_release, None
            release()


def _content_of(request: CommandRequest) -> str:
    return request.command if request.command is not None else " ".join(request.argv or ())
