"""All commands: those that run, and those that ended, as long as there is room to remember them."""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from typing import Any, Final

from execd.accounts import Accounts
from execd.detached import DetachedOutputs
from execd.envs import CommandEnvironment
from execd.errors import CommandMissingError, NotRunningError, TooManyCommandsError
from execd.execution import EndReason, Execution, new_execution_id
from execd.families import Families
from execd.launch import Launched, ShellStart, StartFailedError, launch, start_failure
from execd.outputs import OutputBudget, OutputLog
from execd.processes import Origin, adopted_by, descendants_of, kill_until_gone
from execd.pump import Pace, Pump
from execd.reaper import Reaper
from execd.requests import CommandRequest
from execd.stdin import StdinFeeder

__all__ = ["DEFAULT_GRACE_SECONDS", "ExecutionTable"]

log = logging.getLogger("execd.commands")

DEFAULT_GRACE_SECONDS: Final = 3.0
"""Between SIGTERM and SIGKILL of an interrupt; fixed by the protocol."""

MAX_RUNNING: Final = 128
"""What the logs must keep of each of them at any rate is within the room for all."""

MAX_INPUT_BYTES: Final = 32 * 1024 * 1024
"""Of all commands together: what is to be fed to them is in memory until they take it."""

MAX_ENDED: Final = 1024
"""About two kilobytes each, without output."""


class ExecutionTable:
    """Starts, finds and ends commands."""

    def __init__(
        self,
        environment: CommandEnvironment,
        accounts: Accounts,
        reaper: Reaper,
        families: Families,
        *,
        max_running: int,
        oom_kills: Callable[[], int | None],
        splits_at_cr: bool = False,
    ) -> None:
        """oom_kills: how many processes of the sandbox were killed so far because its memory was used up.

        splits_at_cr: CR ends a line of output, too.
        """
        self._environment = environment
        self._accounts = accounts
        self._reaper = reaper
        self._families = families
        self._max_running = min(max_running, MAX_RUNNING)
        self._oom_kills = oom_kills
        self._splits_at_cr = splits_at_cr
        self._running: dict[str, Execution] = {}
        self._ended: dict[str, Execution] = {}
        self._input_bytes = 0
        self._budget = OutputBudget()
        self._pace = Pace()
        self._detached = DetachedOutputs()
        self._tasks: set[asyncio.Task[None]] = set()
        self._forget_listeners: list[Callable[[str], None]] = []

    def start(
        self,
        request: CommandRequest,
        *,
        session_id: str | None = None,
        prepare: Callable[[dict[str, str]], ShellStart] | None = None,
    ) -> Execution:
        """Start a command. One that could not be started has ended with a `start_error`.

        prepare: takes the environment, which it may change, and gives the shell to start; raises OSError.
        Raises InvalidBodyError, TooManyCommandsError; nothing is left then.
        """
        self._check_room(request)
        execution_id = new_execution_id()
        env = self._environment.compose(request.envs, execution_id=execution_id)
        predecessors = adopted_by(os.getpid())
        oom_kills = self._oom_kills()
        # Before the program runs: its time begins no later than it does.
        execution = self._new_execution(execution_id, request, session_id)
        try:
            shell = None if prepare is None else prepare(env)
            launched = launch(request, env, self._accounts, shell=shell)
        except (StartFailedError, OSError) as error:
            kind = start_failure(error) if isinstance(error, OSError) else error.kind
            execution.fail_to_start(str(error), kind)
            self._remember(execution)
            return execution
        origin = Origin(launched.pid, launched.start_ticks, execution_id, predecessors)
        self._running[execution_id] = execution
        self._families.add(origin)
        self._reaper.watch(launched.pid, execution.on_exit)
        pumping = self._begin(execution, request, launched, origin)
        self.spawn(self._supervise(execution, origin, pumping, oom_kills))
        # A short command has ended by now; its signal would be heard only two rounds of the loop later.
        asyncio.get_running_loop().call_soon(self._reaper.collect)
        log.info("command_started id=%s pid=%d", execution_id, launched.pid)
        return execution

    def find(self, execution_id: str) -> Execution:
        """Give a command that runs or is remembered. Raises CommandMissingError."""
        execution = self._running.get(execution_id) or self._ended.get(execution_id)
        if execution is None:
            raise CommandMissingError("no command has this id, or it was forgotten since")
        return execution

    def all(self) -> list[Execution]:
        """Give all that run or are remembered, the latest to have started first."""
        everyone = [*self._running.values(), *self._ended.values()]
        return sorted(everyone, key=_start_of, reverse=True)

    def on_forget(self, listener: Callable[[str], None]) -> None:
        """Call back with the id of each command that is forgotten."""
        self._forget_listeners.append(listener)

    async def interrupt(self, execution_id: str, *, grace_seconds: float) -> None:
        """End a command: SIGTERM to its group, the grace, SIGKILL to all of it. Returns when nothing is left.

        The id of a session stands for what it runs: its event stream shows no other.

        Raises NotRunningError.
        """
        execution = self._running.get(execution_id) or self._running_in(execution_id)
        if execution is None or execution.exited.is_set():
            raise NotRunningError("no running command has this id")
        execution.kill(EndReason.KILLED_BY_CLIENT, grace_seconds=grace_seconds)
        await execution.killed()

    async def kill_all(self) -> None:
        """End every command and every process that descends from execd."""
        for execution in self._running.values():
            execution.kill(EndReason.LOST)
        await kill_until_gone(lambda table: descendants_of(os.getpid(), table))
        self._detached.close()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run in the background and keep it from being collected."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _running_in(self, session_id: str) -> Execution | None:
        return next((each for each in self._running.values() if each.session_id == session_id), None)

    def _new_execution(self, execution_id: str, request: CommandRequest, session_id: str | None) -> Execution:
        output = OutputLog(self._budget, splits_at_cr=self._splits_at_cr)
        execution = Execution(execution_id, request, output, session_id=session_id)
        execution.on_release = lambda: self._budget.retire(output)
        return execution

    def _begin(
        self, execution: Execution, request: CommandRequest, launched: Launched, origin: Origin
    ) -> asyncio.Task[None]:
        pump = Pump(
            launched.outputs,
            execution.log,
            pace=self._pace,
            detached=self._detached,
            waits_for=execution.pacemaker,
        )
        execution.begin(launched, origin, self._families, self.spawn, pump)
        if launched.stdin_fd is not None:
            self.spawn(self._feed(launched.stdin_fd, request.stdin or b"", execution))
        if request.timeout_ms is not None:
            # A timer of its own: a reader that does not read must not keep a command alive.
            self.spawn(_enforce_timeout(execution, request.timeout_ms / 1000))
        return self.spawn(pump.run())

    def _check_room(self, request: CommandRequest) -> None:
        if len(self._running) >= self._max_running:
            raise TooManyCommandsError(f"{self._max_running} commands are running already")
        if self._input_bytes + len(request.stdin or b"") > MAX_INPUT_BYTES:
            raise TooManyCommandsError(
                f"stdin: {self._input_bytes} bytes wait for commands that do not read them"
            )

    async def _feed(self, fd: int, data: bytes, execution: Execution) -> None:
        self._input_bytes += len(data)
        try:
            await StdinFeeder(fd, data).run(until=execution.exited)
        finally:
            self._input_bytes -= len(data)

    async def _supervise(
        self, execution: Execution, origin: Origin, pumping: asyncio.Task[None], oom_kills: int | None
    ) -> None:
        """See a command to its end."""
        try:
            await execution.ended()
            kills_now = self._oom_kills()
            execution.oom_killed = oom_kills is not None and kills_now is not None and kills_now > oom_kills
            if not execution.has_all_output:
                await asyncio.wait([pumping])
            execution.count_remaining()
        finally:
            self._running.pop(execution.id, None)
            self._families.discard(origin)
            execution.finish()
            self._remember(execution)
        log.info(
            "command_ended id=%s reason=%s exit_code=%s signal=%s duration_ms=%d",
            execution.id,
            execution.reason,
            execution.exit_code,
            execution.signal,
            execution.duration_ms,
        )

    def _remember(self, execution: Execution) -> None:
        self._ended[execution.id] = execution
        while len(self._ended) > MAX_ENDED:
            oldest = next(iter(self._ended))
            self._budget.forget(self._ended.pop(oldest).log)
            for listener in self._forget_listeners:
                listener(oldest)


async def _enforce_timeout(execution: Execution, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await execution.exited.wait()
    except TimeoutError:
        execution.kill(EndReason.TIMEOUT)


def _start_of(execution: Execution) -> int:
    return execution.started_at_ms
