"""A sandbox like most, started before any that is ordered: to see what a start does, and to have practised it."""

import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import CodeType, FrameType
from typing import Any, Final, Self

from execd.ahead import Ahead
from execd.warm import PING, RUN_TRUE
from runtimes import linux
from runtimes.local.plan import ALL_NAMESPACES, Tmpfs
from runtimes.local.zygote.child import birth_flags
from runtimes.local.zygote.disks import Disks
from runtimes.local.zygote.forks import Fork, Forker
from runtimes.local.zygote.orders import Order, decode, encode

__all__ = ["Rehearsals"]

_SEALED: Final = "--sealed"
"""Of execd's flags: it would not end by a signal, and only a daemon that returns leaves Python's memory in order."""

_SECONDS: Final = 10.0
_MESSAGE_BYTES: Final = 1024
_ANSWER_BYTES: Final = 64 << 10
_COMMANDS: Final = 3
"""In each sandbox of a rehearsal; the first one is not like those that follow."""

_END_OF_ANSWER: Final = b"\r\n0\r\n\r\n"


class Rehearsals:
    """They leave nothing behind but what Python has learnt."""

    def __init__(self, order: bytes, forker: Forker, disks: Disks) -> None:
        """order: an encoded one; its descriptors are a listener and messages."""
        self._order = decode(order)
        self._forker = forker
        self._disks = disks

    def practise(self, note: Callable[[FrameType, str, Any], None] | None = None) -> None:
        """Have a whole sandbox begin, run commands and end in this process's own memory.

        What Python does at the first times, it has done then: it adapts code to what it works with, and remembers what
        it has looked up. note: a function for `sys.setprofile`. Raises OSError; ValueError if the sandbox fails.
        """
        order = replace(self._order, flags=tuple(flag for flag in self._order.flags if flag != _SEALED))
        with _Scene(order, self._disks) as scene:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            # By number: the other process closes its own of the same number, which no object must know of here.
            channel = theirs.detach()
            daemon = Ahead()
            number_read, number_write = os.pipe2(os.O_CLOEXEC)
            director = os.fork()
            if director == 0:
                scene.direct_and_end(ours, number_read, closing=(channel, number_write))
            ours.close()

            def live(number: int) -> int:
                os.write(number_write, b"%d" % number)
                sys.setprofile(note)
                try:
                    with socket.socket(fileno=channel) as mine:
                        return self._forker.live(daemon, mine, has_network=True, is_early=True)
                finally:
                    sys.setprofile(None)

            try:
                status = linux.run_in_this_memory(live, birth_flags(ALL_NAMESPACES))
            finally:
                for descriptor in (channel, number_read, number_write):
                    os.close(descriptor)
                daemon.drop()
                os.waitpid(director, 0)
            if os.WIFSIGNALED(status):
                raise SystemExit("a rehearsal was killed, and with it what this process had in memory")
            if status:
                raise ValueError(scene.messages())

    def code_that_runs(self) -> list[CodeType]:
        """Give all code that runs in a sandbox's life, but for that of commands. Raises as `practise`."""
        seen: dict[int, CodeType] = {}

        def note(frame: FrameType, event: str, _: Any) -> None:
            if event == "call":
                seen[id(frame.f_code)] = frame.f_code

        self.practise(note)
        return list(seen.values())

    @contextmanager
    def in_a_fork(self) -> Iterator[Callable[[], int]]:
        """Give what starts a sandbox, from a fork made ahead, and gives its number when it answers.

        Most of what this process has to do for that, it has done before. Both raise OSError, ValueError.
        """
        with _Scene(self._order, self._disks) as scene:

            def start() -> int:
                fork = self._forker.fork(ALL_NAMESPACES, is_early=True)
                scene.direct(fork)
                return fork.pid

            yield start


class _Scene:
    """All that is around the sandbox of one rehearsal: its disk, its messages, and a client that has sent a request."""

    def __init__(self, order: Order, disks: Disks) -> None:
        self._order = order
        self._disks = disks
        self._listener, self._client = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
        # The kernel makes up an address that nobody else has.
        self._listener.bind("")
        self._listener.listen(2)
        self._client.settimeout(_SECONDS)
        self._client.connect(self._listener.getsockname())
        self._client.sendall(PING)
        self._messages, self._memory = os.memfd_create("messages"), os.memfd_create("order")
        # In most orders the disks are of other sizes than in this one.
        usual = [None if isinstance(mount, Tmpfs) else mount for mount in order.plan.mounts]
        os.write(self._memory, encode(order, usual))
        self._disk = disks.open(order.disk, order.plan)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self._client.close()
        for descriptor in (self._messages, self._memory, self._disk):
            os.close(descriptor)
        self._disks.drop(self._order.disk.name)

    def messages(self) -> str:
        """Give what the sandbox said."""
        return os.pread(self._messages, _MESSAGE_BYTES, 0).decode("utf-8", "replace") or "it said nothing"

    def direct(self, fork: Fork) -> None:
        """Have a fork become the sandbox, and wait for its answer. Raises OSError, ValueError."""
        fork.channel.settimeout(_SECONDS)
        fork.send([self._memory, self._disk, self._listener.fileno(), self._messages], self._order.first_id)
        fork.give_ids()
        if not self._client.recv(1):
            raise ValueError(self.messages())

    def direct_and_end(self, channel: socket.socket, number: int, closing: tuple[int, ...]) -> None:
        """Do the same for one whose number is still to come, run commands in it, end it, and end this process."""
        pid = 0
        try:
            for descriptor in closing:
                os.close(descriptor)
            pid = int(os.read(number, 32))
            self.direct(Fork(pid, channel))
            self._run_commands()
        finally:
            with suppress(ProcessLookupError):
                if pid:
                    os.kill(pid, signal.SIGTERM)
            os._exit(0)

    def _run_commands(self) -> None:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(_SECONDS)
            client.connect(self._listener.getsockname())
            for _ in range(_COMMANDS):
                client.sendall(RUN_TRUE)
                answer = b""
                while not answer.endswith(_END_OF_ANSWER):
                    piece = client.recv(_ANSWER_BYTES)
                    if not piece:
                        return
                    answer += piece
