"""Processes on their way to be sandboxes: their making, and how they are told what to become."""

import errno
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from execd.ahead import Ahead
from execd.kernel import close_other_descriptors
from runtimes import linux
from runtimes.local.plan import Namespace
from runtimes.local.zygote.child import Child, birth_flags
from runtimes.local.zygote.disks import Disks
from runtimes.local.zygote.hot_pages import HotPages
from runtimes.local.zygote.ids import map_ids
from runtimes.local.zygote.orders import decode, read_memory
from runtimes.local.zygote.prepared import Prepared

__all__ = ["MAX_DESCRIPTORS", "Fork", "Forker"]

MAX_DESCRIPTORS = 128
"""Of one order, with room to spare: some ten, and one for each layer that a sandbox wrote."""

_WORD_BYTES = 64
_FORKING_SECONDS = 10.0
"""It takes a millisecond; whoever has not done it by then never will."""


class Fork:
    """A process on its way to be a sandbox. channel: where it takes its order, and asks for its ids."""

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid = pid
        self.channel = channel
        self.first_id = -1

    def send(self, descriptors: Sequence[int], first_id: int) -> None:
        """Tell it what to become. Raises OSError if it has died, and lets go of it."""
        self.first_id = first_id
        try:
            socket.send_fds(self.channel, [b"order"], descriptors)
        except BaseException:
            self.channel.close()
            raise

    def give_ids(self) -> bool:
        """Map its ids when it asks for that; False if it asks no more. Raises OSError if it has died."""
        if not self.channel.recv(_WORD_BYTES):
            return False
        map_ids(self.pid, self.first_id)
        self.channel.send(b"mapped")
        return True


@contextmanager
def _channel() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Give both ends; the second is closed on the way out, and the first if something fails."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        try:
            yield ours, theirs
        except BaseException:
            ours.close()
            raise


class Forker:
    """Makes them, as forks of this process. hot_pages: memory that each copies at its start."""

    def __init__(self, prepared: Prepared, disks: Disks) -> None:
        self.hot_pages = HotPages(b"")
        self._prepared = prepared
        self._disks = disks
        # Nobody else ever holds the write end, so the read end tells a child whether this process is alive.
        self._parent_lives, self._alive = os.pipe2(os.O_CLOEXEC)
        self._daemon = Ahead()
        self._requests: socket.socket | None = None

    def fork(
        self, namespaces: frozenset[Namespace], cgroup: int | None = None, *, is_early: bool = False
    ) -> Fork:
        """Make one. is_early: before its order is known, so that no disk of another may be in its sight.

        cgroup: descriptor of the version 2 group to be born in. Raises OSError.
        """
        flags = birth_flags(namespaces)
        made = self._have_forked(flags, cgroup, is_early=is_early)
        if made is not None:
            return made
        with _channel() as (ours, theirs):
            return Fork(self._fork(theirs, flags, cgroup, is_early=is_early), ours)

    def work_apart(self) -> None:
        """Have another process do the forking, until it ends: one that hardly writes to its memory.

        Whatever this one does between two forks, the earlier would be left alone with pages that both could share.
        """
        requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            if os.fork() == 0:
                try:
                    linux.die_with_parent()
                    kept = {theirs.fileno(), self._parent_lives}
                    close_other_descriptors(keep=self._daemon.descriptors | kept)
                    self._fork_on_request(theirs)
                finally:
                    os._exit(1)
        requests.settimeout(_FORKING_SECONDS)
        self._requests = requests

    def _have_forked(self, flags: int, cgroup: int | None, *, is_early: bool) -> Fork | None:
        """Have one made apart; None if nobody is there who would do it. Raises OSError."""
        if self._requests is None:
            return None
        with _channel() as (ours, theirs):
            answer = b""
            with suppress(OSError):
                descriptors = [theirs.fileno(), *([] if cgroup is None else [cgroup])]
                socket.send_fds(self._requests, [b"%d %d" % (flags, is_early)], descriptors)
                answer = self._requests.recv(_WORD_BYTES)
            if answer:
                number = int(answer)
                if number < 0:
                    raise OSError(-number, os.strerror(-number))
                return Fork(number, ours)
            # One that it may still have made ends with its channel.
            ours.close()
        self._requests.close()
        self._requests = None
        return None

    def _fork_on_request(self, requests: socket.socket) -> None:
        while True:
            message, descriptors, _, _ = socket.recv_fds(requests, _WORD_BYTES, 2)
            if not message:
                return
            flags, is_early = map(int, message.split())
            channel, *group = descriptors
            with socket.socket(fileno=channel) as theirs:
                try:
                    answer = self._fork(theirs, flags, *group, is_early=bool(is_early), is_sibling=True)
                except OSError as error:
                    answer = -(error.errno or errno.EAGAIN)
            for descriptor in group:
                os.close(descriptor)
            requests.send(b"%d" % answer)

    def _fork(
        self,
        channel: socket.socket,
        flags: int,
        cgroup: int | None = None,
        *,
        is_early: bool,
        is_sibling: bool = False,
    ) -> int:
        pid, pidfd = linux.fork_into(flags, cgroup=cgroup, is_sibling=is_sibling)
        if pid == 0:
            status = 1
            try:
                has_network = bool(flags & linux.CLONE_NEWNET)
                status = self.live(self._daemon, channel, has_network=has_network, is_early=is_early)
            finally:
                os._exit(status)
        os.close(pidfd)
        return pid

    def live(self, daemon: Ahead, channel: socket.socket, *, has_network: bool, is_early: bool) -> int:
        """In the new process, wait for the order and become what it says; give the status to exit with."""
        close_other_descriptors(keep=daemon.descriptors | {channel.fileno(), self._parent_lives})
        self.hot_pages.copy()
        if is_early:
            self._disks.leave()
        child = Child(self._prepared, daemon, self._parent_lives, channel, has_network=has_network)
        message, descriptors, _, _ = socket.recv_fds(channel, _WORD_BYTES, MAX_DESCRIPTORS + 1)
        if not message:
            return 1
        memory, disk, *others = descriptors
        order = decode(read_memory(memory), self._prepared.usual)
        os.close(memory)
        first = len(others) - len(order.descriptors)
        return child.become_sandbox(order, disk, others[:first], others[first:])
