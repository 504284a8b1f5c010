"""What the two ways of starting a planned sandbox have in common: bwrap for everyone, the zygote for root."""

import fcntl
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from core.errors import BadImageError, CreateTimeoutError, DaemonError, ExecdUnreachableError, RunFailure
from runtimes.cgroups import SandboxCgroup
from runtimes.deadline import Deadline
from runtimes.local.plan import Plan
from runtimes.local.plan_parts import Sources
from runtimes.local.unix_sockets import connect_to
from runtimes.local.zygote.orders import BAD_IMAGE
from runtimes.processes import ProcessRef

__all__ = [
    "IDS_PER_SANDBOX",
    "Executor",
    "StartRequest",
    "Started",
    "await_execd",
    "can_change_user",
    "memory_file",
    "new_messages",
    "read_messages",
    "start_failure",
]

IDS_PER_SANDBOX = 65_536
"""Host user and group ids set aside for each sandbox that root starts."""

_MESSAGES_BYTES = 64 << 10
"""What a starter and execd may write to standard error: a fixed piece of memory; no pipe can fill up or be read dry."""

_PING = b"GET /ping HTTP/1.1\r\nHost: execd\r\nConnection: close\r\n\r\n"
_ANSWER_BYTES = 4096

_MESSAGE_CHARACTERS = 250
"""Kept of either end of what a failed start said: bwrap names its trouble first, an interpreter last."""


@dataclass(frozen=True, slots=True)
class StartRequest:
    """One sandbox to start.

    plan: given execd's flags (those that name its descriptors), gives what the sandbox sees; process 1 is its argv.
    first_id: host id of 0 inside, used as root only. socket_path: where execd shall listen.
    disk, generation, device: where it writes to, see `zygote.orders.Disk`.
    on_init: called with process 1 as soon as it is known, where it could outlive this process.
    """

    name: str
    disk: str
    first_id: int
    plan: Callable[[tuple[str, ...]], Plan]
    socket_path: Path
    cgroup: SandboxCgroup
    deadline: Deadline
    on_init: Callable[[ProcessRef], None]
    generation: int = 0
    device: str | None = None


class Started(Protocol):
    """A sandbox this process has started. init: its process 1."""

    init: ProcessRef | None

    def poll(self) -> None:
        """Take in its end, if it has ended."""

    def release(self) -> None:
        """Let go of what is kept for it, once process 1 is dead."""


class Executor(Protocol):
    """Starts planned sandboxes. Thread-safe. The sandboxes end when it is closed, or this process dies."""

    sources: Sources

    def start(self, request: StartRequest) -> Started:
        """Start one; returns when execd answers.

        Raises CreateTimeoutError, DaemonError, BadImageError for files of the image; no process is left then.
        """

    def forget(self, disk: str) -> None:
        """Let go of what a sandbox wrote. Idempotent."""

    def close(self) -> None:
        """End it."""


def can_change_user(uid: int) -> bool:
    """Say whether sandboxes can run as other host users from uid on: root, with these ids in its user namespace."""
    if os.geteuid() != 0:
        return False
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        first, _, count = (int(field) for field in line.split())
        if first <= uid < first + count:
            return True
    return False


def memory_file(name: str, data: bytes) -> int:
    """Make a file in memory that holds data and is read from its start."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def new_messages() -> int:
    """Make the memory for what a start says: it can be overwritten, and neither grow nor shrink."""
    descriptor = memory_file("messages", bytes(_MESSAGES_BYTES))
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return descriptor


def read_messages(descriptor: int) -> str:
    """Read what was said so far."""
    text = os.pread(descriptor, _MESSAGES_BYTES, 0).rstrip(b"\0")
    return text.decode("utf-8", "replace").strip()


def await_execd(request: StartRequest, failure: Callable[[], RunFailure]) -> None:
    """Ping execd. The socket listens since before it was started, so one question is enough.

    Raises CreateTimeoutError, or what `failure` gives if the sandbox has died.
    """
    deadline = request.deadline
    try:
        _ping(request.socket_path, deadline)
    except (ExecdUnreachableError, OSError) as error:
        if deadline.is_over:
            message = f"sandbox {request.name} was not ready within {deadline.seconds:g} s"
            raise CreateTimeoutError(message) from error
        raise failure() from error


def _ping(path: Path, deadline: Deadline) -> None:
    """Return when execd answers. By hand: a client of HTTP would take a tenth of a start to read one line.

    Raises ExecdUnreachableError, OSError.
    """
    answer = b""
    with connect_to(path, timeout_seconds=max(0.001, deadline.remaining())) as connection:
        connection.sendall(_PING)
        while b"\r\n" not in answer:
            connection.settimeout(max(0.001, deadline.remaining()))
            piece = connection.recv(_ANSWER_BYTES)
            if not piece or len(answer) > _ANSWER_BYTES:
                raise ExecdUnreachableError(f"execd broke off after {answer!r}")
            answer += piece
    if not answer.startswith(b"HTTP/1.1 200 "):
        raise ExecdUnreachableError(f"execd answered /ping with {answer!r}")


def start_failure(name: str, said: str) -> RunFailure:
    """Put what was said into an error: a BadImageError where that was the image's fault, else a DaemonError."""
    if said.startswith(BAD_IMAGE):
        return BadImageError(said[: 2 * _MESSAGE_CHARACTERS])
    if len(said) > 2 * _MESSAGE_CHARACTERS:
        said = f"{said[:_MESSAGE_CHARACTERS]} ... {said[-_MESSAGE_CHARACTERS:]}"
    return DaemonError(f"sandbox {name} did not start: {said}")
