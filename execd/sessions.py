"""Bash sessions: commands that follow each other in what seems to be one shell."""

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from execd.commands import ExecutionTable
from execd.errors import ContextMissingError, ExecdError, SessionBusyError, TooManySessionsError
from execd.execution import EndReason, Execution, new_execution_id
from execd.launch import ShellStart, find_shell
from execd.requests import CommandRequest
from execd.session_shell import MAX_VALUE_CHARACTERS, main_line, read_saved, shell_input

__all__ = ["SessionTable"]

log = logging.getLogger("execd.sessions")

LIFE_SECONDS: Final = 24 * 3600.0
"""Fixed by the protocol."""

MAX_SESSIONS: Final = 64
MAX_STATE_BYTES: Final = 1024 * 1024
"""Of one session: a shell with all completions loaded has a quarter of it."""

MAX_STATES_BYTES: Final = 8 * 1024 * 1024
"""Of all sessions."""


@dataclass(slots=True, eq=False)
class _Session:
    """directory: where runs start as long as none has changed it; current: where the last one ended.

    state: what the last run left, in the words of its shell. carried: names of variables that the state decides on, so
    that the environment of a new run no longer does.
    """

    directory: str
    id: str = field(default_factory=new_execution_id)
    born: float = field(default_factory=time.monotonic)
    current: str | None = None
    state: bytes = b""
    carried: frozenset[str] = frozenset()
    execution: Execution | None = None


class SessionTable:
    """Sessions by id."""

    def __init__(self, executions: ExecutionTable, resolve: Callable[[str | None], str]) -> None:
        """resolve: gives the directory that a request means; raises InvalidBodyError."""
        self._executions = executions
        self._resolve = resolve
        self._sessions: dict[str, _Session] = {}

    def create(self, cwd: str | None) -> str:
        """Make a session and give its id. Raises InvalidBodyError, TooManySessionsError."""
        self._sweep()
        if len(self._sessions) >= MAX_SESSIONS:
            raise TooManySessionsError(f"there are {MAX_SESSIONS} sessions already: delete one")
        session = _Session(self._resolve(cwd))
        self._sessions[session.id] = session
        return session.id

    def run(self, session_id: str, request: CommandRequest) -> Execution:
        """Run code in a session. request: `command`, and `cwd` for this run only.

        Raises ExecdError, SessionBusyError, and as `ExecutionTable.start`.
        """
        self._sweep()
        session = self._sessions.get(session_id)
        if session is None:
            raise ExecdError("no session has this id")
        if session.execution is not None and not session.execution.finished.is_set():
            raise SessionBusyError("the session runs a command already: wait for its end, or interrupt it")
        run = _Run(session, request)
        with contextlib.ExitStack() as stack:
            stack.callback(run.close_input)
            stack.push(run.close_saved_on_error)
            execution = self._executions.start(request, session_id=session.id, prepare=run.prepare)
        session.execution = execution
        if execution.finished.is_set():
            run.close_saved()
            return execution
        execution.on_finish = lambda: self._collect(run, execution)
        return execution

    async def delete(self, session_id: str) -> None:
        """End a session and what it runs. Raises ContextMissingError."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            raise ContextMissingError("no session has this id")
        execution = session.execution
        if execution is not None and not execution.exited.is_set():
            execution.kill(EndReason.KILLED_BY_CLIENT)
            await execution.killed()

    def _collect(self, run: "_Run", execution: Execution) -> None:
        """Take the state that a run has left, if it has."""
        room = MAX_STATES_BYTES - sum(
            len(other.state) for other in self._sessions.values() if other is not run.session
        )
        execution.state_saved = run.collect(max_bytes=min(MAX_STATE_BYTES, room))

    def _sweep(self) -> None:
        latest = time.monotonic() - LIFE_SECONDS
        for session in [each for each in self._sessions.values() if each.born < latest]:
            if session.execution is None or session.execution.finished.is_set():
                del self._sessions[session.id]


class _Run:
    """The two files of one run."""

    def __init__(self, session: _Session, request: CommandRequest) -> None:
        self.session = session
        self._request = request
        self._token = new_execution_id()
        self._environment: dict[str, str] = {}
        self._input = os.memfd_create("session", os.MFD_CLOEXEC)
        self._saved = os.memfd_create("state", os.MFD_CLOEXEC)

    def prepare(self, env: dict[str, str]) -> ShellStart:
        """Give the shell to start. env: of the run; it loses what the state decides on."""
        self._environment = dict(env)
        name, executable = find_shell(env)
        session = self.session
        for carried in session.carried:
            env.pop(carried, None)
        cwd = None
        if self._request.cwd is None:
            cwd = next(
                (each for each in (session.current, session.directory) if each and os.path.isdir(each)), "/"
            )
            env["PWD"] = cwd
        code = self._request.command or ""
        _fill(self._input, shell_input(name, state=session.state, code=code, token=self._token))
        # The shell reads the token, and writes behind it, wherever that reading has left the file's position.
        fcntl.fcntl(self._saved, fcntl.F_SETFL, os.O_APPEND)
        _fill(self._saved, self._token.encode() + b"\0")
        argv = (name, "-c", main_line(name), name)
        return ShellStart(argv, executable, stdin=self._input, stderr=self._saved, cwd=cwd)

    def collect(self, *, max_bytes: int) -> bool:
        """Take over what the shell has written; False if it has not come to its end, or wrote too much."""
        try:
            is_small = os.fstat(self._saved).st_size <= max_bytes
            data = os.pread(self._saved, max_bytes, 0) if is_small else b""
        except OSError as error:  # no memory for it
            log.warning("state_not_read session=%s error=%s", self.session.id, error)
            return False
        finally:
            self.close_saved()
        saved = read_saved(data, token=self._token)
        if saved is None:
            return False
        directory, self.session.state = saved
        if self._request.cwd is None and directory.startswith(b"/"):
            self.session.current = os.fsdecode(directory)
        self.session.carried = frozenset(
            name for name, value in self._environment.items() if len(value) <= MAX_VALUE_CHARACTERS
        ) - {"SANDMILL_EXECUTION_ID"}
        return True

    def close_input(self) -> None:
        """Close what the shell has got its own copy of."""
        os.close(self._input)

    def close_saved(self) -> None:
        """Give up the state of this run."""
        os.close(self._saved)

    def close_saved_on_error(self, kind: type[BaseException] | None, *_: object) -> bool:
        """Give it up if the run did not begin."""
        if kind is not None:
            self.close_saved()
        return False


def _fill(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
