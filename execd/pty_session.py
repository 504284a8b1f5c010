"""A terminal session: the program, what it prints, and the one client that may be connected to it."""

import asyncio
import logging
import os
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass
from signal import Signals
from typing import Final, Protocol

from execd.accounts import Accounts
from execd.envs import CommandEnvironment
from execd.families import Families
from execd.launch import Launched, StartFailedError, launch
from execd.processes import Origin, adopted_by, send_signal
from execd.pty_input import TerminalInput
from execd.pty_output import CHUNK_BYTES, TerminalOutput
from execd.pty_ring import ReplayRing
from execd.reaper import Reaper
from execd.requests import CommandRequest

__all__ = ["STDERR", "STDOUT", "Client", "Machinery", "PtySession"]

log = logging.getLogger("execd.pty")

STDOUT: Final = 1
STDERR: Final = 2
"""First bytes of the messages that carry output."""

_TERM: Final = "xterm-256color"
_COLUMNS, _ROWS = 80, 24
_CONTROL_D: Final = b"\x04"
_QUIET_SECONDS: Final = 0.2
"""After the program ended, output of those it left behind is awaited only this long since the last byte."""

_END_POLL_SECONDS: Final = 0.02
_PIPE_BYTES: Final = 64 * 1024
_DETACHED_PAUSE_SECONDS: Final = 0.005
"""After each 32 KiB that nobody sees: one who chatters without end must not keep execd busy."""

_EXIT_NOTICE_SECONDS: Final = 1.0


class Client(Protocol):
    """Who is connected."""

    @property
    def is_full(self) -> bool:
        """Whether it has to catch up before it gets more."""

    def push(self, kind: int, data: bytes) -> None:
        """Take output."""

    def finish(self) -> None:
        """Take notice that the session is over."""


@dataclass(frozen=True, slots=True)
class Machinery:
    """What starting and ending programs needs."""

    environment: CommandEnvironment
    accounts: Accounts
    reaper: Reaper
    families: Families


class PtySession:
    """One program on a terminal, or on pipes; it is started when the first client connects.

    mode: "pty" or "pipe" once it is. is_over: the program has ended and all it printed has been read.
    """

    def __init__(self, session_id: str, request: CommandRequest, machinery: Machinery) -> None:
        """request: cwd, and command; without one the shell itself runs."""
        self.id = session_id
        self.mode: str | None = None
        self.ring = ReplayRing()
        self.status: int | None = None
        self.is_over = False
        self.client: Client | None = None
        self.changed_at = time.monotonic()
        self._request = request
        self._machinery = machinery
        self._origin: Origin | None = None
        self._terminal: int | None = None
        self._outputs: list[TerminalOutput] = []
        self._input: TerminalInput | None = None
        self._exited = asyncio.Event()
        self._last_output_at = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._on_over: Callable[[], None] = lambda: None

    @property
    def is_running(self) -> bool:
        """Whether the program has been started and has not ended."""
        return self._origin is not None and self.status is None

    @property
    def exit_code(self) -> int | None:
        """What the program returned; -1 if a signal ended it; None before."""
        if self.status is None:
            return None
        return os.WEXITSTATUS(self.status) if os.WIFEXITED(self.status) else -1

    @property
    def signal(self) -> int | None:
        """The signal that ended the program."""
        return os.WTERMSIG(self.status) if self.status is not None and os.WIFSIGNALED(self.status) else None

    def start(self, *, on_terminal: bool, on_over: Callable[[], None]) -> None:
        """Start the program. on_over: called once when it is over. Raises StartFailedError, InvalidBodyError."""
        machinery = self._machinery
        requested = {"TERM": _TERM} if on_terminal else {}
        env = machinery.environment.compose(requested, execution_id=self.id)
        predecessors = adopted_by(os.getpid())
        launched = self._launch_on_terminal(env) if on_terminal else self._launch_on_pipes(env)
        self._on_over = on_over
        self.mode = "pty" if on_terminal else "pipe"
        self._origin = Origin(launched.pid, launched.start_ticks, self.id, predecessors)
        machinery.families.add(self._origin)

        def on_exit(status: int) -> None:
            launched.popen.returncode = os.waitstatus_to_exitcode(status)
            self._on_exit(status)

        machinery.reaper.watch(launched.pid, on_exit)
        self.resume()
        log.info("terminal_started id=%s pid=%d mode=%s", self.id, launched.pid, self.mode)

    def resume(self) -> None:
        """Go on reading, unless the client has to catch up first."""
        if self.client is None or not self.client.is_full:
            for output in self._outputs:
                output.resume()

    async def write(self, data: bytes) -> None:
        """Type. Waits while the program is far behind. Raises OSError if it takes no more."""
        if self._input is None:
            raise BrokenPipeError("the program has ended")
        await self._input.write(data)

    async def end_input(self) -> None:
        """Let the program see the end of its input. Raises as `write`."""
        if self._input is None:
            raise BrokenPipeError("the program has ended")
        await self._input.end()

    def resize(self, columns: int, rows: int) -> None:
        """Set the size of the terminal; pipes have none. Raises OSError."""
        if self._terminal is not None:
            _set_size(self._terminal, columns, rows)

    def send_signal(self, number: Signals) -> None:
        """Signal what a key would: the terminal's foreground processes. On pipes: the program's process group."""
        if self._origin is None or self.status is not None:
            return
        group = self._origin.pid
        if self._terminal is not None:
            try:
                group = os.tcgetpgrp(self._terminal)
            except OSError:
                group = self._origin.pid
        try:
            # 0 would be execd's own group, 1 everyone.
            os.killpg(group if group > 1 else self._origin.pid, number)
        except ProcessLookupError:
            return
        except PermissionError:
            send_signal({self._origin.pid}, number)

    async def kill(self) -> None:
        """End the program and everything that descends from it, and let go of its descriptors."""
        if self._origin is not None:
            await self._machinery.families.kill(self._origin)
            try:
                async with asyncio.timeout(_EXIT_NOTICE_SECONDS):
                    await self._exited.wait()
            except TimeoutError:
                log.warning("terminal_survives_kill id=%s pid=%d", self.id, self._origin.pid)
        self.close()

    def close(self) -> None:
        """Let go of the descriptors; what still runs is left to itself."""
        for task in self._tasks:
            task.cancel()
        self._terminal = None
        for output in self._outputs:
            output.close()
        self._close_input()
        if self._origin is not None:
            self._machinery.families.discard(self._origin)

    def _launch_on_terminal(self, env: dict[str, str]) -> Launched:
        try:
            master, slave = os.openpty()
        except OSError as error:
            raise StartFailedError(f"no terminal can be had: {error.strerror or error}") from error
        os.set_blocking(master, False)
        ours = [master]
        try:
            ours.append(os.dup(master))
            _set_size(master, _COLUMNS, _ROWS)
            launched = launch(self._request, env, self._machinery.accounts, terminal=slave)
        except BaseException as error:
            for fd in ours:
                os.close(fd)
            if isinstance(error, OSError):
                raise StartFailedError(f"no terminal can be had: {error.strerror or error}") from error
            raise
        finally:
            os.close(slave)
        self._terminal = master
        self._outputs = [TerminalOutput(STDOUT, master, self._take)]
        self._input = TerminalInput(ours[1], end_key=_CONTROL_D)
        return launched

    def _launch_on_pipes(self, env: dict[str, str]) -> Launched:
        launched = launch(self._request, env, self._machinery.accounts)
        kinds = {"stdout": STDOUT, "stderr": STDERR}
        self._outputs = [TerminalOutput(kinds[name], fd, self._take) for name, fd in launched.outputs.items()]
        if launched.stdin_fd is not None:
            self._input = TerminalInput(launched.stdin_fd, end_key=None)
        return launched

    def _take(self, output: TerminalOutput, data: bytes) -> None:
        self._last_output_at = time.monotonic()
        self.ring.add(data)
        if not output.is_open:
            self._terminal = None  # its number may pass to another file
        if self.client is not None:
            if data:
                self.client.push(output.kind, data)
            if self.client.is_full:
                for each in self._outputs:
                    each.pause()
        elif len(data) >= CHUNK_BYTES:
            output.pause()
            asyncio.get_running_loop().call_later(_DETACHED_PAUSE_SECONDS, self.resume)

    def _on_exit(self, status: int) -> None:
        self.status = status
        if self._origin is not None:
            self._machinery.families.lose_head(self._origin)
        for output in self._outputs:
            output.read_bytes = 0
        self._exited.set()
        self._close_input()
        task = asyncio.get_running_loop().create_task(self._read_the_rest())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read_the_rest(self) -> None:
        """Wait until all that the program printed itself has been read."""
        exited_at = time.monotonic()
        while not self._is_read(exited_at):  # noqa: ASYNC110  # that a pipe stays silent is no event
            await asyncio.sleep(_END_POLL_SECONDS)
        self.is_over = True
        self.changed_at = time.monotonic()
        log.info("terminal_ended id=%s exit_code=%s signal=%s", self.id, self.exit_code, self.signal)
        if self.client is not None:
            self.client.finish()
        self._on_over()

    def _is_read(self, exited_at: float) -> bool:
        outputs = [output for output in self._outputs if output.is_open]
        if not outputs:
            return True
        now = time.monotonic()
        if self.client is not None and self.client.is_full:
            return False
        if now - max(exited_at, self._last_output_at) >= _QUIET_SECONDS:
            return not any(output.has_more() for output in outputs)
        # One who was left behind may chatter for ever; what the program itself wrote was in the pipe when it ended.
        all_of_it = all(output.read_bytes >= _PIPE_BYTES or not output.has_more() for output in outputs)
        return all_of_it and now - exited_at >= _QUIET_SECONDS

    def _close_input(self) -> None:
        if self._input is not None:
            self._input.close()
            self._input = None


def _set_size(terminal: int, columns: int, rows: int) -> None:
    termios.tcsetwinsize(terminal, (rows, columns))
