"""Processes on their way to be sandboxes: their making, and how they are told what to become."""

import os
import socket
from collections.abc import Sequence

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


class Forker:
    """Makes them, as forks of this process. hot_pages: memory that each copies at its start."""

    def __init__(self, prepared: Prepared, disks: Disks) -> None:
        self.hot_pages = HotPages(b"")
        self._prepared = prepared
        self._disks = disks
        # Nobody else ever holds the write end, so the read end tells a child whether this process is alive.
        self._parent_lives, self._alive = os.pipe2(os.O_CLOEXEC)
        self._daemon = Ahead()

    def fork(
        self, namespaces: frozenset[Namespace], cgroup: int | None = None, *, is_early: bool = False
    ) -> Fork:
        """Make one. is_early: before its order is known, so that no disk of another may be in its sight.

        cgroup: descriptor of the version 2 group to be born in. Raises OSError.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                pid, pidfd = linux.fork_into(birth_flags(namespaces), cgroup=cgroup)
            except BaseException:
                ours.close()
                raise
            if pid == 0:
                status = 1
                try:
                    status = self.live(
                        self._daemon, theirs, has_network="net" in namespaces, is_early=is_early
                    )
                finally:
                    os._exit(status)
        os.close(pidfd)
        return Fork(pid, ours)

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
        order = decode(read_memory(memory))
        os.close(memory)
        first = len(others) - len(order.descriptors)
        return child.become_sandbox(order, disk, others[:first], others[first:])
