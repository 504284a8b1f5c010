"""The one thread that starts all sandboxes of a runtime object.

Sandboxes die with their parent, and to the kernel that is the thread that forked, not the process: a sandbox started
from a worker thread would be killed when that thread ends. This one lives until the process does.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.errors import CreateTimeoutError, RuntimeUnavailableError
from runtimes.cgroups import SandboxCgroup
from runtimes.deadline import Deadline
from runtimes.local.bwrap import BwrapProgram
from runtimes.local.executor import memory_file, new_messages, read_messages
from runtimes.local.inode_limits import limit_inodes
from runtimes.local.named_processes import NAME_VARIABLE, kill_with_children
from runtimes.local.plan import Mount
from runtimes.local.plan_parts import Sources
from runtimes.local.private_mounts import PRIVATE_FOLDER, enter_private_mounts
from runtimes.processes import KILL_TIMEOUT_SECONDS, ProcessRef

__all__ = ["BwrapCall", "Spawner", "Started"]


@dataclass(frozen=True, slots=True)
class BwrapCall:
    """One start. options: bwrap's, argv: what becomes process 1. uid: of the host, used as root only.

    outer_options: of a bwrap around that one, which is only needed where there are some.
    cgroup: where all of it is born, as far as that is possible. pass_fds: descriptors named in the options and argv.
    """

    name: str
    options: Sequence[str]
    outer_options: Sequence[str]
    argv: Sequence[str]
    uid: int
    cgroup: SandboxCgroup
    pass_fds: Sequence[int]


@dataclass(slots=True)
class Started:
    """A bwrap process. messages_fd: what it and its program said. init: process 1, once it is known."""

    popen: subprocess.Popen[bytes]
    messages_fd: int
    init: ProcessRef | None = None

    def messages(self) -> str:
        """Read what was said so far."""
        return read_messages(self.messages_fd)

    def poll(self) -> None:
        """Take in the end of bwrap, so that it leaves the process table."""
        self.popen.poll()

    def release(self) -> None:
        """Wait for bwrap, whose process 1 is dead, and close what is kept for it."""
        self.popen.wait(timeout=KILL_TIMEOUT_SECONDS)
        os.close(self.messages_fd)

    def end(self) -> None:
        """Kill bwrap and process 1, whatever they were doing, and wait for both."""
        process = ProcessRef.of(self.popen.pid)
        if self.popen.poll() is None and process is not None:
            kill_with_children(process)
        self.popen.wait(timeout=KILL_TIMEOUT_SECONDS)
        os.close(self.messages_fd)


class Spawner:
    """Starts bwrap processes; as root each under a host user of its own.

    Keep a reference while sandboxes run: they end with the thread.
    """

    def __init__(
        self, program: BwrapProgram, etc: Path, bundle: Path, extra: Sequence[Path], *, as_root: bool
    ) -> None:
        """etc, bundle, extra: folders of this host that sandboxes will see."""
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sandbox-spawner")
        self._as_root = as_root
        if not as_root:
            self._bwrap = program.path
            self.sources = Sources(
                etc=str(etc), bundle=str(bundle), extra={str(path): str(path) for path in extra}
            )
            return
        folders = {"etc": etc, "bundle": bundle} | {f"host-{i}": path for i, path in enumerate(extra)}
        try:
            self._bwrap, places = self._pool.submit(_enter, program, folders).result()
        except OSError as error:
            self._pool.shutdown()
            message = f"root here may not make a mount namespace ({error}): run it with CAP_SYS_ADMIN, or use docker"
            raise RuntimeUnavailableError(message) from error
        shown = {str(path): str(places[f"host-{i}"]) for i, path in enumerate(extra)}
        self.sources = Sources(etc=str(places["etc"]), bundle=str(places["bundle"]), extra=shown)

    def start(self, request: BwrapCall, deadline: Deadline) -> Started:
        """Start bwrap. Raises CreateTimeoutError, or OSError if the program cannot be started."""
        future = self._pool.submit(self._start, request)
        try:
            return future.result(timeout=deadline.remaining())
        except FutureTimeoutError as error:
            if not future.cancel():
                # Under way, which takes milliseconds: what it starts must end before we say that nothing is left.
                future.result().end()
            message = f"the sandbox was not started within {deadline.seconds:g} s: too many at once"
            raise CreateTimeoutError(message) from error

    def limit_files(self, pid: int, mounts: Sequence[Mount], deadline: Deadline) -> None:
        """Bound the number of files in a sandbox that was just started; as another user than root do nothing.

        pid: its process 1. In this thread, whose mount namespace is ours even where the host's is not. Raises OSError,
        CreateTimeoutError.
        """
        if not self._as_root:
            return
        try:
            self._pool.submit(limit_inodes, pid, mounts).result(timeout=deadline.remaining())
        except FutureTimeoutError as error:
            message = f"the sandbox had no limits within {deadline.seconds:g} s: too many at once"
            raise CreateTimeoutError(message) from error

    def close(self) -> None:
        """End the thread, and with it every sandbox it started."""
        self._pool.shutdown(wait=True)

    def _start(self, request: BwrapCall) -> Started:
        # Options go through memory: on a command line every user of the host could read the job's environment.
        options_fd = memory_file("options", "\0".join([*request.options, ""]).encode())
        messages_fd = new_messages()
        identity: dict[str, Any] = {}
        if self._as_root:
            identity = {"user": request.uid, "group": request.uid, "extra_groups": []}
        argv = [str(self._bwrap), "--args", str(options_fd), "--", *request.argv]
        if request.outer_options:
            argv = [str(self._bwrap), *request.outer_options, "--", *argv]
        try:
            with request.cgroup.entered_by_this_thread():
                popen = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=messages_fd,
                    stderr=messages_fd,
                    env={NAME_VARIABLE: request.name},
                    cwd="/",
                    pass_fds=(options_fd, *request.pass_fds),
                    # Its own session: an interrupt typed at our terminal must not reach it.
                    start_new_session=True,
                    **identity,
                )
        except BaseException:
            os.close(messages_fd)
            raise
        finally:
            os.close(options_fd)
        return Started(popen, messages_fd)


def _enter(program: BwrapProgram, folders: Mapping[str, Path]) -> tuple[Path, dict[str, Path]]:
    """Run in the spawner thread, once: gives bwrap's place and the folders' places in the private view."""
    places = enter_private_mounts(folders)
    return program.copy_into(PRIVATE_FOLDER / "program"), places
