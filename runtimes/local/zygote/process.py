"""The zygote: a process of one thread, root, that has execd in memory and makes a sandbox of a fork for each order.

Forks are made ahead of orders, in quiet moments. It ends, and all its sandboxes with it, when the other end of its
control socket is closed. One that listens for clients goes on without any as long as it has sandboxes. Started by
`client.Zygote`.
"""

import contextlib
import gc
import os
import select
import signal
import socket
import sys
from collections.abc import Sequence
from importlib.machinery import BuiltinImporter, FrozenImporter
from typing import Final

from execd.kernel import close_other_descriptors, overwrite_arguments, set_process_name
from execd.warm import PING, answer_once, warm_up
from runtimes import linux
from runtimes.local.plan import ALL_NAMESPACES, Namespace
from runtimes.local.zygote.child import Child, birth_flags
from runtimes.local.zygote.compaction import fill_gaps, gather_code
from runtimes.local.zygote.disks import Disks, open_written_layers
from runtimes.local.zygote.hot_pages import HotPages
from runtimes.local.zygote.ids import map_ids
from runtimes.local.zygote.orders import CGROUP, DROP, READY, Order, decode, read_memory
from runtimes.local.zygote.prepared import Prepared

__all__ = ["main"]

MAX_DESCRIPTORS: Final = 128
"""Of one order, with room to spare: some ten, and one for each layer that a sandbox wrote."""

MAX_MESSAGE_BYTES: Final = 1024
_SPARE_FORKS: Final = 8
_PAUSE_MS: Final = 8
"""Of silence before a fork is made ahead, while no sandbox is on its way: an order that comes meanwhile, or one that
waits for its ids, would have to wait for it; and its copying of memory takes processor time from those that start."""

_LONG_PAUSE_MS: Final = 50
"""The same while there are plenty: the second sandbox of a fork is ordered some ten milliseconds after the first."""

_PLENTY: Final = _SPARE_FORKS // 2
_PAUSE_AFTER_FAILURE_MS: Final = 1_000
_REHEARSAL_SECONDS: Final = 10.0
_TRIALS: Final = 8
"""As often as Python runs code before it adapts it."""

_MODULES_OF_A_START: Final = (
    "execd.daemon",
    "execd.kernel",
    "runtimes.linux",
    "runtimes.local.zygote.ahead",
    "runtimes.local.zygote.child",
    "runtimes.local.zygote.ids",
    "runtimes.local.zygote.orders",
    "runtimes.local.zygote.process",
    "runtimes.local.zygote.root",
)
"""All of these runs before a daemon answers, and cannot be tried out in this process."""


def main(control_fd: int, rehearsal_fd: int, folder: str) -> None:
    """Serve orders until the control socket is closed; if that one listens, until there is no client and no sandbox.

    rehearsal_fd: memory with an order for a sandbox like most. It is carried out once before any other, to see what a
    sandbox writes to in its memory; its descriptors are a listener and messages. folder: an empty one, to mount on.
    """
    control = socket.socket(fileno=control_fd)
    os.umask(0)
    linux.unshare(linux.CLONE_NEWNS)
    linux.make_private("/", receives=True)
    order = read_memory(rehearsal_fd)
    os.close(rehearsal_fd)
    rehearsal = decode(order)
    prepared = Prepared(folder, rehearsal.plan.mounts)
    disks = Disks(folder)
    _load_everything()
    overwrite_arguments(b"execd")
    set_process_name("sandmill-zygote")
    nobody, nothing = socket.socketpair()
    with nobody, nothing:
        hot_pages = HotPages.of(lambda: _Zygote(nobody, prepared, disks, HotPages([])).rehearse(order))
    disks.drop(rehearsal.disk.name)
    _Zygote(control, prepared, disks, hot_pages).serve()


def _load_everything() -> None:
    """Have all of execd in memory, and no way to load more: a forked daemon would find its files in the sandbox."""
    warm_up()
    gather_code(answer_once, _MODULES_OF_A_START)
    # New code has yet to adapt to what it works with.
    for _ in range(_TRIALS):
        answer_once()
    sys.path.clear()
    sys.path_hooks.clear()
    sys.path_importer_cache.clear()
    sys.meta_path[:] = [BuiltinImporter, FrozenImporter]
    gc.collect()
    fill_gaps()
    # Objects that no collection looks at stay in memory that all children share.
    gc.freeze()


class _Fork:
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

    def is_waiting_for_ids(self) -> bool:
        """Take its question; False if it asks no more."""
        return bool(self.channel.recv(16))


class _Zygote:
    def __init__(self, control: socket.socket, prepared: Prepared, disks: Disks, hot_pages: HotPages) -> None:
        self._listener = control if control.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) else None
        self._clients: dict[int, socket.socket] = {}
        self._running: dict[int, str] = {}
        self._has_written_layers = False
        self._disks = disks
        self._prepared = prepared
        self._hot_pages = hot_pages
        # Nobody else ever holds the write end, so the read end tells a child whether this process is alive.
        self._parent_lives, self._alive = os.pipe2(os.O_CLOEXEC)
        self._wake, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self._spares: list[_Fork] = []
        self._starting: dict[int, _Fork] = {}
        self._poller = select.poll()
        self._poller.register(self._wake, select.POLLIN)
        if self._listener is None:
            self._greet(control)
        else:
            self._poller.register(control, select.POLLIN)
            # Whoever started this process is there already.
            self._accept()

    def serve(self) -> None:
        has_room = True
        while self._clients or (self._listener is not None and self._running):
            is_short = len(self._spares) < _SPARE_FORKS and not self._starting
            pause = self._pause() if has_room else _PAUSE_AFTER_FAILURE_MS
            ready = {number for number, _ in self._poller.poll(pause if is_short else None)}
            # Taken now: what is closed and opened below may have the same numbers.
            clients = ready & self._clients.keys()
            # Those under way first: each has a client that waits.
            for number in ready & self._starting.keys():
                self._give_ids(number)
            if self._wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake, 4096)
                self._reap()
            # The new before the old: if the last one has left, they count.
            if self._listener is not None and self._listener.fileno() in ready:
                self._accept()
            for number in clients:
                self._serve_client(number)
            if not ready and is_short:
                has_room = self._make_spare()

    def _pause(self) -> int:
        return _PAUSE_MS if len(self._spares) < _PLENTY else _LONG_PAUSE_MS

    def rehearse(self, encoded: bytes) -> int:
        """Start a sandbox, as for an order that comes when there is a fork made ahead; give its number when it answers.

        Raises OSError, ValueError.
        """
        order = decode(encoded)
        with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
            # The kernel makes up an address that nobody else has.
            listener.bind("")
            listener.listen(1)
            client.settimeout(_REHEARSAL_SECONDS)
            client.connect(listener.getsockname())
            client.sendall(PING)
            messages, memory = os.memfd_create("messages"), os.memfd_create("order")
            os.write(memory, encoded)
            disk = self._disks.open(order.disk, order.plan)
            fork = self._fork(ALL_NAMESPACES, is_early=True)
            fork.channel.settimeout(_REHEARSAL_SECONDS)
            fork.send([memory, disk, listener.fileno(), messages], order.first_id)
            if fork.is_waiting_for_ids():
                map_ids(fork.pid, order.first_id)
                fork.channel.send(b"mapped")
            if not client.recv(1):
                os.lseek(messages, 0, os.SEEK_SET)
                raise ValueError(os.read(messages, MAX_MESSAGE_BYTES).decode("utf-8", "replace"))
        return fork.pid

    def _make_spare(self) -> bool:
        """Make a fork ahead; False where the host has no room for one now, which must not end those that run."""
        try:
            self._spares.append(self._fork(ALL_NAMESPACES, is_early=True))
        except OSError:
            return False
        return True

    def _accept(self) -> None:
        if self._listener is not None:
            client, _ = self._listener.accept()
            self._greet(client)

    def _greet(self, client: socket.socket) -> None:
        self._poller.register(client, select.POLLIN)
        self._clients[client.fileno()] = client
        # It may be killed at any moment: its socket will tell.
        with contextlib.suppress(OSError):
            client.send(f"{READY} {os.getpid()}".encode())

    def _serve_client(self, number: int) -> None:
        """Do what a client says; forget it when it says no more."""
        client = self._clients[number]
        with contextlib.suppress(OSError):
            if self._take_order(client):
                return
        self._poller.unregister(client)
        self._clients.pop(number).close()
        self._drop_unused()

    def _take_order(self, client: socket.socket) -> bool:
        """Start one sandbox and say its process id, or drop a disk; False at the end of orders."""
        message, descriptors, _, _ = socket.recv_fds(client, MAX_MESSAGE_BYTES, MAX_DESCRIPTORS)
        if not message:
            return False
        number, _, order = message.decode().partition(" ")
        word, _, name = order.partition(" ")
        try:
            if word == DROP:
                self._disks.drop(name)
                reply = "0"
            else:
                reply = str(self._start(descriptors))
        except (OSError, ValueError) as error:
            reply = f"error {error}"
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        try:
            client.send(f"{number} {reply}".encode()[:MAX_MESSAGE_BYTES])
        except OSError:
            if reply.isdigit() and int(reply) in self._running:
                # Nobody will ever know of this one.
                os.kill(int(reply), signal.SIGKILL)
            raise
        return True

    def _start(self, descriptors: list[int]) -> int:
        order = decode(read_memory(descriptors[0]))
        memory, *others = descriptors
        opened = [self._disks.open(order.disk, order.plan)]
        try:
            layers = open_written_layers(order.plan.mounts[0])
            opened += layers
            self._has_written_layers |= bool(layers)
            fork = self._send_order(order, [memory, *opened, *others])
        finally:
            for descriptor in opened:
                os.close(descriptor)
        number = fork.channel.fileno()
        self._starting[number] = fork
        self._running[fork.pid] = order.disk.name
        self._poller.register(number, select.POLLIN)
        return fork.pid

    def _send_order(self, order: Order, descriptors: list[int]) -> _Fork:
        """Give an order to one that was made ahead, unless it needs another sort, or all have died meanwhile."""
        while self._spares and self._suits_spares(order):
            # The oldest: the latest may still be at its preparations.
            fork = self._spares.pop(0)
            # Others may end it at any time: the kernel, for one, when memory is short.
            with contextlib.suppress(OSError):
                fork.send(descriptors, order.first_id)
                return fork
        group = None
        if CGROUP in order.descriptors:
            group = descriptors[order.descriptors.index(CGROUP) - len(order.descriptors)]
        fork = self._fork(order.plan.namespaces, group)
        fork.send(descriptors, order.first_id)
        return fork

    def _reap(self) -> None:
        """Collect those that have ended."""
        with contextlib.suppress(ChildProcessError):
            while pid := os.waitpid(-1, os.WNOHANG)[0]:
                if self._running.pop(pid, None) is not None:
                    self._drop_unused()

    def _drop_unused(self) -> None:
        """Let go of the disks of sandboxes that have ended while nobody is there who would say so.

        Where what one wrote has ever become a layer of another, all stay until this process ends.
        """
        if not self._clients and not self._has_written_layers:
            self._disks.keep(set(self._running.values()))

    def _suits_spares(self, order: Order) -> bool:
        # One made ahead is in no control group of version 2.
        return order.plan.namespaces == ALL_NAMESPACES and CGROUP not in order.descriptors

    def _give_ids(self, number: int) -> None:
        """Map the ids of a process that has made its user namespace; forget one that asks no more."""
        fork = self._starting[number]
        with contextlib.suppress(OSError):  # it has died: its starter will hear of that
            if fork.is_waiting_for_ids():
                map_ids(fork.pid, fork.first_id)
                fork.channel.send(b"mapped")
                return
        self._poller.unregister(number)
        self._starting.pop(number).channel.close()

    def _fork(
        self, namespaces: frozenset[Namespace], cgroup: int | None = None, *, is_early: bool = False
    ) -> _Fork:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                pid, pidfd = linux.fork_into(birth_flags(namespaces), cgroup=cgroup)
            except BaseException:
                ours.close()
                raise
            if pid == 0:
                self._wait_and_become(theirs, has_network="net" in namespaces, is_early=is_early)
        os.close(pidfd)
        return _Fork(pid, ours)

    def _wait_and_become(self, channel: socket.socket, *, has_network: bool, is_early: bool) -> None:
        """Wait for the order in the new process, and become what it says."""
        try:
            close_other_descriptors(keep={channel.fileno(), self._parent_lives})
            self._hot_pages.copy()
            if is_early:
                self._disks.leave()
            child = Child(self._prepared, self._parent_lives, channel, has_network=has_network)
            message, descriptors, _, _ = socket.recv_fds(channel, 64, MAX_DESCRIPTORS + 1)
            if message:
                memory, disk, *others = descriptors
                order = decode(read_memory(memory))
                os.close(memory)
                first = len(others) - len(order.descriptors)
                child.become_sandbox(order, disk, others[:first], others[first:])
        finally:
            os._exit(1)
