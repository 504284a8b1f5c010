"""The executor for everyone: bwrap, from the first descriptor to an execd that answers; and taking all of it back."""

import json
import os
import select
import subprocess
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from io import FileIO

from core.errors import CreateTimeoutError, DaemonError, RunFailure
from runtimes.local.bwrap import arguments, disk_arguments
from runtimes.local.executor import StartRequest, await_execd, memory_file, start_failure
from runtimes.local.image_paths import without_links
from runtimes.local.plan import SANDBOX_UID, Plan, TextFile
from runtimes.local.spawner import BwrapCall, Spawner, Started
from runtimes.local.unix_sockets import listen_at
from runtimes.processes import ProcessRef

__all__ = ["BwrapExecutor"]

_MAX_INFO_BYTES = 64 << 10


class BwrapExecutor:
    """An `Executor` that needs no privilege. As root each sandbox is a host user of its own.

    Keep a reference while sandboxes run: they end with its thread, unless they outlive it.
    """

    def __init__(self, spawner: Spawner, disk: str, *, outlives: bool = False) -> None:
        """Own the spawner. disk: an empty folder, see `disk_arguments`. outlives: sandboxes live on without us."""
        self.sources = spawner.sources
        self._spawner = spawner
        self._disk = disk
        self._outlives = outlives

    def start(self, request: StartRequest) -> Started:
        """Start one sandbox; see `Executor.start`."""
        return _Launch(request, self._spawner, self._disk, outlives=self._outlives).start()

    def forget(self, disk: str) -> None:
        """Nothing to do: what it wrote went with its mount namespace."""

    def close(self) -> None:
        """End the thread, and with it every sandbox it started that does not outlive it."""
        self._spawner.close()


@dataclass(slots=True)
class _Launch:
    """One start."""

    request: StartRequest
    spawner: Spawner
    disk: str
    outlives: bool

    def start(self) -> Started:
        """Start it; see `Executor.start`."""
        request = self.request
        with ExitStack() as descriptors:
            listener = descriptors.enter_context(listen_at(request.socket_path))
            info_read, info_write = _pipe(descriptors)
            block_read, block_write = _pipe(descriptors)
            flags, passed = ["--listen-fd", str(listener.fileno())], [listener.fileno()]
            for name, descriptor in request.cgroup.open_accounts():
                descriptors.callback(os.close, descriptor)
                flags += ["--account", f"{name}={descriptor}"]
                passed.append(descriptor)
            plan = _without_root(without_links(request.plan(tuple(flags))))
            passed += [info_write.fileno(), block_read.fileno()]
            seccomp_fd = None
            if plan.seccomp is not None:
                seccomp_fd = memory_file("seccomp", plan.seccomp)
                descriptors.callback(os.close, seccomp_fd)
                passed.append(seccomp_fd)
            text_fds = {}
            for text in (mount for mount in plan.mounts if isinstance(mount, TextFile)):
                text_fds[text] = memory_file("text", text.text.encode())
                descriptors.callback(os.close, text_fds[text])
                passed.append(text_fds[text])
            call = BwrapCall(
                name=request.name,
                options=arguments(
                    plan,
                    seccomp_fd=seccomp_fd,
                    info_fd=info_write.fileno(),
                    block_fd=block_read.fileno(),
                    text_fds=text_fds,
                    disk=self.disk,
                    outlives=self.outlives,
                ),
                outer_options=disk_arguments(plan, self.disk, outlives=self.outlives),
                argv=plan.argv,
                uid=request.first_id + plan.uid,
                cgroup=request.cgroup,
                pass_fds=passed,
            )
            try:
                started = self.spawner.start(call, request.deadline)
            except OSError as error:
                raise DaemonError(f"bwrap could not be started: {error}") from error
            try:
                # Ours are closed at once: whoever waits on these then hears of a death at the other end.
                for theirs in (info_write, block_read, listener):
                    theirs.close()
                init = self._release(started, info_read, block_write)
                await_execd(request, lambda: self._failure(started))
                self._limit_files(init, plan)
            except BaseException:
                started.end()
                raise
            return started

    def _release(self, started: Started, info_read: FileIO, block_write: FileIO) -> ProcessRef:
        """Learn process 1 from bwrap, put it under its limits, then let it go on."""
        init = ProcessRef.of(self._read_child(started, info_read))
        if init is None:
            raise self._failure(started)
        try:
            self.request.cgroup.place(init.pid)
        except OSError as error:
            raise DaemonError(f"the sandbox could not be put under its limits: {error}") from error
        started.init = init
        self.request.on_init(init)
        with suppress(BrokenPipeError):  # it died: the ping will tell
            block_write.write(b"\0")
        return init

    def _read_child(self, started: Started, info_read: FileIO) -> int:
        """Read bwrap's report until it is complete; gives the host's number of process 1."""
        report = b""
        poller = select.poll()
        poller.register(info_read, select.POLLIN)
        while len(report) < _MAX_INFO_BYTES:
            if not poller.poll(self.request.deadline.remaining() * 1000):
                deadline = self.request.deadline
                message = f"sandbox {self.request.name} was not ready within {deadline.seconds:g} s"
                raise CreateTimeoutError(message)
            piece = info_read.read(_MAX_INFO_BYTES)
            if not piece:
                break
            report += piece
        try:
            return int(json.loads(report)["child-pid"])
        except (ValueError, KeyError, TypeError) as error:
            raise self._failure(started) from error

    def _limit_files(self, init: ProcessRef, plan: Plan) -> None:
        """Now that its mounts are there, and before anybody can run a command in it."""
        try:
            self.spawner.limit_files(init.pid, plan.mounts, self.request.deadline)
        except OSError as error:
            message = f"the number of files in sandbox {self.request.name} could not be limited: {error}"
            raise DaemonError(message) from error

    def _failure(self, started: Started) -> RunFailure:
        """Put what bwrap or execd said into an error."""
        with suppress(subprocess.TimeoutExpired):
            started.popen.wait(timeout=min(1.0, self.request.deadline.remaining()))
        said = started.messages() or f"exit status {started.popen.returncode}, no message"
        return start_failure(self.request.name, said)


def _without_root(plan: Plan) -> Plan:
    """Have an ordinary user where an image has root: to root of its user namespace the kernel gives execd's /proc/1.

    Nothing is lost: it would have no right that others lack, and all files are one user's here.
    """
    return replace(plan, uid=plan.uid or SANDBOX_UID, gid=plan.gid or SANDBOX_UID)


def _pipe(descriptors: ExitStack) -> tuple[FileIO, FileIO]:
    """Make a pipe: read end, write end. File objects, since closing a bare number twice can hit another thread's."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    return (
        descriptors.enter_context(FileIO(read_end, "r")),
        descriptors.enter_context(FileIO(write_end, "w")),
    )
