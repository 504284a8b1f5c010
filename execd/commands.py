"""Running commands: each is an `Execution`; the table starts, interrupts and kills them."""

import asyncio
import logging
import os
import time
from collections.abc import Coroutine
from enum import StrEnum
from signal import SIGCONT, SIGKILL, SIGTERM, Signals
from typing import Any, Final

from execd.accounts import Accounts
from execd.envs import CommandEnvironment
from execd.errors import NotRunningError, OverloadedError
from execd.families import Families
from execd.launch import Launched, launch
from execd.processes import (
    Origin,
    ProcessTable,
    adopted_by,
    belonging_to,
    descendants_of,
    kill_until_gone,
    list_processes,
    send_signal,
)
from execd.reaper import Reaper
from execd.requests import CommandRequest
from execd.stdin import StdinFeeder

__all__ = ["DEFAULT_GRACE_SECONDS", "EndReason", "Execution", "ExecutionTable", "new_execution_id"]

log = logging.getLogger("execd.commands")

DEFAULT_GRACE_SECONDS: Final = 3.0
"""Between SIGTERM and SIGKILL of an interrupt; fixed by the protocol."""

_GRACE_POLL_SECONDS: Final = 0.02
_EXIT_NOTICE_SECONDS: Final = 1.0


class EndReason(StrEnum):
    """Why a command ended; the terminal event's `reason`."""

    EXIT = "exit"
    SIGNAL = "signal"
    TIMEOUT = "timeout"
    KILLED_BY_CLIENT = "killed_by_client"
    START_FAILED = "start_failed"


def new_execution_id() -> str:
    """Make a random UUID in hexadecimal, without dashes."""
    raw = bytearray(os.urandom(16))
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    return raw.hex()


class Execution:
    """One started command and everything that descends from it.

    kills_leftovers: what the main process leaves running is killed when it ends.
    exited: set when the main process ended, or when not even SIGKILL could end it (status is None then).
    """

    def __init__(
        self, origin: Origin, launched: Launched, table: "ExecutionTable", *, kills_leftovers: bool
    ) -> None:
        self.id = origin.execution_id
        self.outputs = launched.outputs
        self.origin = origin
        self.status: int | None = None
        self.ended_by: EndReason | None = None
        self.exited = asyncio.Event()
        self.started_at = time.monotonic()
        self._kills_leftovers = kills_leftovers
        self._launched = launched
        self._table = table
        self._kill: asyncio.Task[None] | None = None

    @property
    def duration_ms(self) -> int:
        """Milliseconds since the start."""
        return round((time.monotonic() - self.started_at) * 1000)

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
    def reason(self) -> EndReason:
        """Why it ended; to be asked after the end."""
        if self.ended_by:
            return self.ended_by
        return EndReason.SIGNAL if self.signal is not None else EndReason.EXIT

    def kill(self, reason: EndReason, *, grace_seconds: float = 0.0) -> None:
        """Begin ending the whole family: SIGTERM if there is a grace, then SIGKILL. The first reason stays.

        A later call without grace cuts short the grace of an earlier one.
        """
        if self.status is None and self.ended_by is None:
            self.ended_by = reason
        if self._kill is None or self._kill.done() or grace_seconds == 0:
            previous = self._kill
            self._kill = self._table.spawn(self._end_family(grace_seconds))
            if previous is not None:
                previous.cancel()

    async def killed(self) -> None:
        """Wait for a kill under way, if there is one."""
        while self._kill is not None and not self._kill.done():
            await asyncio.wait([self._kill])

    def on_exit(self, status: int) -> None:
        """Take the wait status of the main process."""
        self.status = status
        self._launched.popen.returncode = os.waitstatus_to_exitcode(status)
        # A kill under way ends them as well.
        if self._kills_leftovers and (self._kill is None or self._kill.done()):
            self._kill = self._table.spawn(self._end_leftovers())
        self.exited.set()

    async def _end_family(self, grace_seconds: float) -> None:
        if grace_seconds > 0:
            self._signal_group(SIGTERM)
            self._signal_group(SIGCONT)  # a stopped process hears nothing before
            deadline = time.monotonic() + grace_seconds
            while time.monotonic() < deadline:
                if not self._family(list_processes()):
                    break
                await asyncio.sleep(_GRACE_POLL_SECONDS)
        self._signal_group(SIGKILL)
        await kill_until_gone(self._family)
        try:
            async with asyncio.timeout(_EXIT_NOTICE_SECONDS):
                await self.exited.wait()
        except TimeoutError:
            log.warning("command_survives_kill id=%s pid=%d", self.id, self.origin.pid)
            self.exited.set()

    async def _end_leftovers(self) -> None:
        if not await kill_until_gone(self._family):
            log.warning("leftovers_survive_kill id=%s", self.id)

    def _family(self, table: ProcessTable) -> set[int]:
        return belonging_to(self.origin, self._table.origins_besides(self), table, adopter=os.getpid())

    def _signal_group(self, number: Signals) -> None:
        if self.status is not None:
            return  # the group's number may have passed to someone else
        try:
            os.killpg(self.origin.pid, number)
        except ProcessLookupError:
            return
        except PermissionError:
            send_signal(self._family(list_processes()), number)


class ExecutionTable:
    """All commands that have not been closed."""

    def __init__(
        self,
        environment: CommandEnvironment,
        accounts: Accounts,
        reaper: Reaper,
        families: Families,
        *,
        max_running: int,
    ) -> None:
        self._environment = environment
        self._accounts = accounts
        self._reaper = reaper
        self._families = families
        self._max_running = max_running
        self._running: dict[str, Execution] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, request: CommandRequest, *, execution_id: str) -> Execution:
        """Start a command. Raises InvalidBodyError, StartFailedError, OverloadedError; nothing is left then."""
        if len(self._running) >= self._max_running:
            raise OverloadedError(f"{self._max_running} commands are running already")
        env = self._environment.compose(request.envs, execution_id=execution_id)
        predecessors = adopted_by(os.getpid())
        launched = launch(request, env, self._accounts)
        origin = Origin(launched.pid, launched.start_ticks, execution_id, predecessors)
        execution = Execution(origin, launched, self, kills_leftovers=request.kill_leftovers)
        self._running[execution_id] = execution
        self._families.add(origin)
        self._reaper.watch(launched.pid, execution.on_exit)
        if launched.stdin_fd is not None:
            feeder = StdinFeeder(launched.stdin_fd, (request.stdin or "").encode())
            self.spawn(feeder.run(until=execution.exited))
        if request.timeout_ms is not None:
            # A timer of its own: a reader that does not read must not keep a command alive.
            self.spawn(self._enforce_timeout(execution, request.timeout_ms / 1000))
        log.info("command_started id=%s pid=%d", execution_id, launched.pid)
        return execution

    async def interrupt(self, execution_id: str, *, grace_seconds: float) -> None:
        """End a command: SIGTERM to its group, the grace, SIGKILL to all of it. Returns when nothing is left.

        Raises NotRunningError.
        """
        execution = self._running.get(execution_id)
        if execution is None or execution.exited.is_set():
            raise NotRunningError("no running command has this id")
        execution.kill(EndReason.KILLED_BY_CLIENT, grace_seconds=grace_seconds)
        await execution.killed()

    async def close(self, execution: Execution) -> None:
        """Forget a command; one that still runs is killed first, tree and all."""
        if not execution.exited.is_set():
            execution.kill(EndReason.KILLED_BY_CLIENT)
        await execution.killed()
        self._running.pop(execution.id, None)
        self._families.discard(execution.origin)
        log.info(
            "command_ended id=%s reason=%s exit_code=%s signal=%s duration_ms=%d",
            execution.id,
            execution.reason,
            execution.exit_code,
            execution.signal,
            execution.duration_ms,
        )

    async def kill_all(self) -> None:
        """End every command and every process that descends from execd."""
        for execution in self._running.values():
            execution.kill(EndReason.KILLED_BY_CLIENT)
        await kill_until_gone(lambda table: descendants_of(os.getpid(), table))

    def origins_besides(self, execution: Execution) -> list[Origin]:
        """Give the origins of all else that runs: other commands, terminals."""
        return self._families.besides(execution.origin)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run in the background and keep it from being collected."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _enforce_timeout(self, execution: Execution, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await execution.exited.wait()
        except TimeoutError:
            execution.kill(EndReason.TIMEOUT)
