"""The runtime's side of the zygote: starts it, sends orders, and starts it anew if it should ever die."""

import hashlib
import json
import os
import select
import socket
import subprocess
import sysconfig
import threading
import weakref
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from io import FileIO
from pathlib import Path

from core.build import SOURCE_ROOT, source_digest
from core.errors import CreateTimeoutError, DaemonError, RuntimeUnavailableError
from runtimes.bundle import Bundle
from runtimes.deadline import Deadline
from runtimes.local.executor import (
    StartRequest,
    await_execd,
    memory_file,
    new_messages,
    read_messages,
    start_failure,
)
from runtimes.local.images.locking import lock_file
from runtimes.local.plan_parts import Sources
from runtimes.local.unix_sockets import connect_in_packets, listen_at
from runtimes.local.zygote.disks import upper_of
from runtimes.local.zygote.orders import DROP, LISTENER, MESSAGES, READY, START, Disk, Order, encode
from runtimes.processes import KILL_TIMEOUT_SECONDS, ProcessRef, kill_and_wait

__all__ = ["Zygote"]

_READY_SECONDS = 30.0
"""Loading takes a tenth of a second; the rest is for a busy machine."""

_REPLY_BYTES = 1024
_LEAVE_SECONDS = 0.5
_DROP_SECONDS = 1.0
"""For as long as `remove` waits for space that comes back."""

_PROGRAM = """
import json, sys
sys.modules["ssl"] = None
control, rehearsal, folder, paths = sys.argv[1:]
own, *others = json.loads(paths)
sys.path[:] = [own, *others, *sys.path]
from runtimes.local.zygote.process import main
main(int(control), int(rehearsal), folder)
"""


@dataclass(slots=True)
class _Started:
    """A sandbox of the zygote. messages_fd: what its execd said."""

    init: ProcessRef | None
    messages_fd: int

    def poll(self) -> None:
        """Nothing to do: the zygote collects it."""

    def release(self) -> None:
        """Close what is kept for it."""
        os.close(self.messages_fd)


class Zygote:
    """An `Executor`. For root with CAP_SYS_ADMIN, on Linux 5.12 and later (mounts with mapped owners)."""

    def __init__(
        self,
        bundle: Bundle,
        sources: Sources,
        folder: Path,
        rehearsal: Order,
        *,
        meeting: Path | None = None,
    ) -> None:
        """Start the process. folder: an empty one of the host. rehearsal: see `process.main`.

        bundle: its interpreter runs the zygote, since its C library reads nothing of an image. meeting: a folder for
        our user alone, where a zygote of the same build that outlived another process is found again; it ends when it
        has neither sandboxes nor a client. None: it ends with this object.

        Raises RuntimeUnavailableError.
        """
        self.sources = sources
        self._folder = folder
        self._meeting = meeting
        self._program = _Program(bundle.interpreter, str(folder), rehearsal)
        self._lock = threading.Lock()
        self._connection: _Connection | None = None
        with self._lock:
            self._connect()

    def start(self, request: StartRequest) -> _Started:
        """Start one sandbox; see `Executor.start`."""
        with ExitStack() as descriptors:
            listener = descriptors.enter_context(listen_at(request.socket_path))
            messages = new_messages()
            passed = [(LISTENER, listener.fileno()), (MESSAGES, messages)]
            try:
                for kind, descriptor in request.cgroup.open_for_a_child():
                    descriptors.callback(os.close, descriptor)
                    passed.append((kind, descriptor))
                init = self._send(request, passed)
            except BaseException:
                os.close(messages)
                raise
        started = _Started(init, messages)
        try:
            await_execd(request, lambda: start_failure(request.name, read_messages(messages) or "no message"))
        except BaseException:
            kill_and_wait(init, timeout_seconds=KILL_TIMEOUT_SECONDS)
            started.release()
            raise
        return started

    def forget(self, disk: str) -> None:
        """Let go of what a sandbox wrote; see `Executor.forget`."""
        with self._lock:
            if self._connection is None or not self._connection.is_alive:
                return
            # One that is too slow will do it all the same.
            with suppress(OSError, CreateTimeoutError):
                self._connection.ask(f"{DROP} {disk}", [], Deadline(_DROP_SECONDS))

    def layer_of(self, disk: str, generation: int) -> str:
        """Give the path, for an `Overlay`, of what a sandbox of this zygote wrote in a generation."""
        return upper_of(str(self._folder), disk, generation)

    @property
    def pid(self) -> int:
        """Its number on this host; 0 if it has ended."""
        connection = self._connection
        return connection.pid if connection is not None and connection.is_alive else 0

    def close(self) -> None:
        """End the zygote, and with it every sandbox it started; one with a meeting place ends after its sandboxes."""
        with self._lock:
            self._disconnect()

    def _send(self, request: StartRequest, passed: list[tuple[str, int]]) -> ProcessRef:
        plan = request.plan(())
        order = Order(
            plan=replace(plan, argv=()),
            disk=Disk(request.disk, request.generation, request.device),
            first_id=request.first_id,
            flags=plan.argv,
            descriptors=tuple(kind for kind, _ in passed),
        )
        memory = memory_file("order", encode(order, self._program.rehearsal.plan.mounts))
        try:
            reply = self._exchange([memory, *(number for _, number in passed)], request.deadline)
        except OSError as error:
            raise DaemonError(f"the starter of sandboxes does not answer: {error}") from error
        finally:
            os.close(memory)
        if not reply.isdigit():
            raise start_failure(request.name, reply)
        init = ProcessRef.of(int(reply))
        if init is None:
            raise start_failure(request.name, read_messages(dict(passed)[MESSAGES]) or "it ended at once")
        return init

    def _exchange(self, descriptors: list[int], deadline: Deadline) -> str:
        """Send an order and give the answer: a process id, or an error in words. Raises OSError, CreateTimeoutError."""
        if not self._lock.acquire(timeout=max(0.0, deadline.remaining())):
            message = f"the sandbox was not started within {deadline.seconds:g} s: too many at once"
            raise CreateTimeoutError(message)
        try:
            if self._connection is None or not self._connection.is_alive:
                self._disconnect()
                self._connect()
            connection = self._connection
            if connection is None:
                raise BrokenPipeError
            reply = connection.ask(START, descriptors, deadline)
            if not reply:
                raise BrokenPipeError("it has ended")
        except OSError:
            self._disconnect()
            raise
        else:
            return reply
        finally:
            self._lock.release()

    def _connect(self) -> None:
        if self._meeting is not None:
            connection = _meet(self._meeting, self._program)
        else:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            connection = _Connection(ours, _start(self._program, ours, theirs), ends_with_us=True)
            connection.await_ready()
        # Whoever forgets to close this object, or leaves the program, still ends the process and its sandboxes.
        self._finalizer = weakref.finalize(self, connection.close)
        self._connection = connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._finalizer()
            self._connection = None


@dataclass(frozen=True, slots=True)
class _Program:
    """What a zygote is started with: one of another build, or with other mounts, is another zygote."""

    interpreter: tuple[str, ...]
    folder: str
    rehearsal: Order

    @property
    def name(self) -> str:
        """Tell programs apart, by their sources as well."""
        started_with = (self.interpreter, self.folder, self.rehearsal.plan.mounts)
        facts = repr((started_with, source_digest("core", "execd", "runtimes")))
        return hashlib.sha256(facts.encode()).hexdigest()[:16]


def _start(program: _Program, ours: socket.socket, theirs: socket.socket) -> "subprocess.Popen[bytes]":
    """Start the process on its socket, which is closed here; `ours` is closed if that fails."""
    paths = [str(SOURCE_ROOT), *_package_folders("h11", "wsproto")]
    library = sysconfig.get_path("stdlib")
    # The bundle has only what execd needs, and is of the same version as this interpreter.
    paths += [library, f"{library}/lib-dynload"]
    try:
        with theirs, FileIO(memory_file("rehearsal", encode(program.rehearsal))) as rehearsal:
            passed = [theirs.fileno(), rehearsal.fileno()]
            return subprocess.Popen(
                [*program.interpreter, "-c", _PROGRAM, *map(str, passed), program.folder, json.dumps(paths)],
                pass_fds=passed,
                stdin=subprocess.DEVNULL,
                env={},
                cwd="/",
                # Its own session: an interrupt typed at our terminal must not reach it.
                start_new_session=True,
            )
    except BaseException:
        ours.close()
        raise


def _meet(place: Path, program: _Program) -> "_Connection":
    """Connect to the zygote of this program that runs, else to a new one. Raises RuntimeUnavailableError.

    Whoever may enter the folder may give orders; it is made for our user alone.
    """
    place.mkdir(mode=0o700, exist_ok=True)
    with lock_file(place / "lock"):
        _forget_ended(place)
        path = place / f"{program.name}.socket"
        # Twice: it may be about to end, since it had nothing to do.
        for _ in range(2):
            with suppress(OSError, RuntimeUnavailableError):
                found = _Connection(connect_in_packets(path), None, ends_with_us=False)
                found.await_ready()
                return found
        listener = listen_at(path, socket.SOCK_SEQPACKET)
        # Before it runs: it ends by itself when it has had a client and has none.
        ours = connect_in_packets(path)
        made = _Connection(ours, _start(program, ours, listener), ends_with_us=False)
        made.await_ready()
        return made


def _forget_ended(place: Path) -> None:
    """Remove the sockets of zygotes that have ended. Those of other builds end after their last sandbox."""
    for path in place.glob("*.socket"):
        try:
            connect_in_packets(path).close()
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)


class _Connection:
    """The process, and the socket it serves."""

    def __init__(
        self, control: socket.socket, process: "subprocess.Popen[bytes] | None", *, ends_with_us: bool
    ) -> None:
        """process: None if somebody else has started it. ends_with_us: it ends when its socket is closed."""
        self._orders = 0
        self.control = control
        self._process = process
        self._ends_with_us = ends_with_us
        self._pidfd = -1
        self.pid = 0

    @property
    def is_alive(self) -> bool:
        """Whether the process still runs."""
        if self._process is not None:
            return self._process.poll() is None
        return not select.select([self._pidfd], [], [], 0)[0]

    def ask(self, message: str, descriptors: list[int], deadline: Deadline) -> str:
        """Send a message and give the answer; nothing if the process has ended. Raises OSError, CreateTimeoutError."""
        self._orders += 1
        number = str(self._orders)
        try:
            self.control.settimeout(max(0.001, deadline.remaining()))
            socket.send_fds(self.control, [f"{number} {message}".encode()], descriptors)
            while True:
                self.control.settimeout(max(0.001, deadline.remaining()))
                answered, _, reply = self.control.recv(_REPLY_BYTES).decode("utf-8", "replace").partition(" ")
                if answered in (number, ""):
                    return reply
                # The answer to an earlier message: nobody waits for that sandbox any more.
                self._end(reply)
        except (TimeoutError, BlockingIOError) as error:
            message = (
                f"the sandbox was not started within {deadline.seconds:g} s: its starter does not answer"
            )
            raise CreateTimeoutError(message) from error

    def _end(self, reply: str) -> None:
        """End a sandbox that was started too late."""
        late = ProcessRef.of(int(reply)) if reply.isdigit() else None
        if late is not None and late in (ProcessRef.of(self.pid) or late).children:
            kill_and_wait(late, timeout_seconds=KILL_TIMEOUT_SECONDS)

    def await_ready(self) -> None:
        """Return when it takes orders. Raises RuntimeUnavailableError; it is closed then."""
        self.control.settimeout(_READY_SECONDS)
        try:
            word, _, number = self.control.recv(_REPLY_BYTES).decode().partition(" ")
            self.pid = int(number)
            if self._process is None:
                self._pidfd = os.pidfd_open(self.pid)
        except (OSError, ValueError):
            word = ""
        if word != READY:
            self.close()
            message = "the starter of sandboxes did not start: see the lines above, or set executor to bwrap"
            raise RuntimeUnavailableError(message)

    def close(self) -> None:
        """End the process by the end of its orders, and wait for it; leave one alone that outlives us."""
        self.control.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        if self._process is None:
            return
        if not self._ends_with_us:
            # If it has no sandboxes it ends at once; else somebody else will collect it.
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_LEAVE_SECONDS)
            return
        try:
            self._process.wait(KILL_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(KILL_TIMEOUT_SECONDS)


def _package_folders(*names: str) -> list[str]:
    """Give the folders to import these from; one that is not installed is left out."""
    folders: dict[str, None] = {}
    for name in names:
        with suppress(ImportError):
            spec = find_spec(name)
            if spec is not None and spec.origin is not None:
                folders[str(Path(spec.origin).parents[1])] = None
    return list(folders)
