"""Starting one planned sandbox, from the first descriptor to an execd that answers; and taking all of it back."""

import json
import os
import select
import subprocess
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from core.errors import CreateTimeoutError, DaemonError, ExecdUnreachableError
from runtimes.cgroups import SandboxCgroup
from runtimes.deadline import Deadline
from runtimes.execd_client import HttpExecutionClient
from runtimes.local.bwrap import arguments
from runtimes.local.plan import Plan
from runtimes.local.spawner import NAME_VARIABLE, Spawner, Started, StartRequest, memory_file
from runtimes.local.unix_sockets import connect_to, listen_at
from runtimes.processes import KILL_TIMEOUT_SECONDS, ProcessRef, kill_and_wait

__all__ = ["Launch", "kill_by_name"]

_MAX_INFO_BYTES = 64 << 10
_MESSAGE_CHARACTERS = 250
"""Kept of either end of what a failed start said: bwrap names its trouble first, an interpreter last."""


@dataclass(slots=True)
class Launch:
    """One start. plan: given the descriptor execd listens on, since that number goes into its command line."""

    name: str
    uid: int
    plan: Callable[[int], Plan]
    socket_path: Path
    cgroup: SandboxCgroup
    spawner: Spawner
    deadline: Deadline

    def start(self, on_init: Callable[[ProcessRef], None]) -> Started:
        """Start it; returns when execd answers. on_init: called with process 1 before that runs anything.

        Raises CreateTimeoutError, DaemonError; no process is left then.
        """
        with ExitStack() as descriptors:
            listener = descriptors.enter_context(listen_at(self.socket_path))
            info_read, info_write = _pipe(descriptors)
            block_read, block_write = _pipe(descriptors)
            plan = self.plan(listener.fileno())
            passed = [listener.fileno(), info_write.fileno(), block_read.fileno()]
            seccomp_fd = None
            if plan.seccomp is not None:
                seccomp_fd = memory_file("seccomp", plan.seccomp)
                descriptors.callback(os.close, seccomp_fd)
                passed.append(seccomp_fd)
            request = StartRequest(
                name=self.name,
                options=arguments(
                    plan, seccomp_fd=seccomp_fd, info_fd=info_write.fileno(), block_fd=block_read.fileno()
                ),
                argv=plan.argv,
                uid=self.uid,
                cgroup=self.cgroup,
                pass_fds=passed,
            )
            try:
                started = self.spawner.start(request, self.deadline)
            except OSError as error:
                raise DaemonError(f"bwrap could not be started: {error}") from error
            try:
                # Ours are closed at once: whoever waits on these then hears of a death at the other end.
                for theirs in (info_write, block_read, listener):
                    theirs.close()
                init = self._release(started, info_read, block_write, on_init)
                self._await_execd(started)
                self._limit_files(init, plan)
            except BaseException:
                started.end()
                raise
            return started

    def _release(
        self, started: Started, info_read: FileIO, block_write: FileIO, on_init: Callable[[ProcessRef], None]
    ) -> ProcessRef:
        """Learn process 1 from bwrap, put it under its limits, then let it go on."""
        init = ProcessRef.of(self._read_child(started, info_read))
        if init is None:
            raise self._failure(started)
        try:
            self.cgroup.place(init.pid)
        except OSError as error:
            raise DaemonError(f"the sandbox could not be put under its limits: {error}") from error
        on_init(init)
        with suppress(BrokenPipeError):  # it died: the ping will tell
            block_write.write(b"\0")
        return init

    def _read_child(self, started: Started, info_read: FileIO) -> int:
        """Read bwrap's report until it is complete; gives the host's number of process 1."""
        report = b""
        poller = select.poll()
        poller.register(info_read, select.POLLIN)
        while len(report) < _MAX_INFO_BYTES:
            if not poller.poll(self.deadline.remaining() * 1000):
                raise self._timeout()
            piece = info_read.read(_MAX_INFO_BYTES)
            if not piece:
                break
            report += piece
        try:
            return int(json.loads(report)["child-pid"])
        except (ValueError, KeyError, TypeError) as error:
            raise self._failure(started) from error

    def _await_execd(self, started: Started) -> None:
        """Ping execd. The socket listens since before it was started, so one question is enough."""
        client = HttpExecutionClient(
            lambda: connect_to(self.socket_path, timeout_seconds=max(0.001, self.deadline.remaining())),
            silence_seconds=max(0.001, self.deadline.remaining()),
        )
        try:
            client.ping()
        except ExecdUnreachableError as error:
            if self.deadline.is_over:
                raise self._timeout() from error
            raise self._failure(started) from error

    def _limit_files(self, init: ProcessRef, plan: Plan) -> None:
        """Now that its mounts are there, and before anybody can run a command in it."""
        try:
            self.spawner.limit_files(init.pid, plan.mounts, self.deadline)
        except OSError as error:
            message = f"the number of files in sandbox {self.name} could not be limited: {error}"
            raise DaemonError(message) from error

    def _timeout(self) -> CreateTimeoutError:
        return CreateTimeoutError(f"sandbox {self.name} was not ready within {self.deadline.seconds:g} s")

    def _failure(self, started: Started) -> DaemonError:
        """Put what bwrap or execd said into an error."""
        with suppress(subprocess.TimeoutExpired):
            started.popen.wait(timeout=min(1.0, self.deadline.remaining()))
        said = started.messages() or f"exit status {started.popen.returncode}, no message"
        if len(said) > 2 * _MESSAGE_CHARACTERS:
            said = f"{said[:_MESSAGE_CHARACTERS]} ... {said[-_MESSAGE_CHARACTERS:]}"
        return DaemonError(f"sandbox {self.name} did not start: {said}")


def kill_by_name(name: str) -> None:
    """Kill what an owner that died in the middle of a start may have left: processes that carry the sandbox's name."""
    mark = f"{NAME_VARIABLE}={name}".encode()
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdigit() and mark in (folder / "environ").read_bytes().split(b"\0"):
                process = ProcessRef.of(int(folder.name))
                if process is not None:
                    kill_and_wait(process, timeout_seconds=KILL_TIMEOUT_SECONDS)


def _pipe(descriptors: ExitStack) -> tuple[FileIO, FileIO]:
    """Make a pipe: read end, write end. File objects, since closing a bare number twice can hit another thread's."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    return (
        descriptors.enter_context(FileIO(read_end, "r")),
        descriptors.enter_context(FileIO(write_end, "w")),
    )
