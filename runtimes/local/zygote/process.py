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

from execd.daemon import prepare_once
from execd.kernel import overwrite_arguments, set_process_name
from execd.warm import warm_up
from runtimes import linux
from runtimes.local.plan import ALL_NAMESPACES, Mount
from runtimes.local.zygote.compaction import fill_gaps, gather_code
from runtimes.local.zygote.disks import Disks, open_written_layers
from runtimes.local.zygote.forks import MAX_DESCRIPTORS, Fork, Forker
from runtimes.local.zygote.hot_pages import HotPages
from runtimes.local.zygote.orders import CGROUP, DROP, READY, Order, decode, read_memory
from runtimes.local.zygote.prepared import Prepared
from runtimes.local.zygote.rehearsals import Rehearsals

__all__ = ["main"]

MAX_MESSAGE_BYTES: Final = 1024
_SPARE_FORKS: Final = 8
_PAUSE_MS: Final = 8
"""Of silence before a fork is made ahead, while no sandbox is on its way: an order that comes meanwhile, or one that
waits for its ids, would have to wait for it; and its copying of memory takes processor time from those that start."""

_LONG_PAUSE_MS: Final = 50
"""The same while there are plenty: the second sandbox of a fork is ordered some ten milliseconds after the first."""

_PLENTY: Final = _SPARE_FORKS // 2
_PAUSE_AFTER_FAILURE_MS: Final = 1_000
_TRIALS: Final = 8
"""As often as Python runs code before it adapts it."""


def main(control_fd: int, rehearsal_fd: int, folder: str) -> None:
    """Serve orders until the control socket is closed; if that one listens, until there is no client and no sandbox.

    rehearsal_fd: memory with an order for a sandbox like most; see `Rehearsals`. folder: an empty one, to mount on.
    """
    control = socket.socket(fileno=control_fd)
    os.umask(0)
    linux.unshare(linux.CLONE_NEWNS)
    linux.make_private("/", receives=True)
    order = read_memory(rehearsal_fd)
    os.close(rehearsal_fd)
    prepared = Prepared(folder, decode(order).plan.mounts)
    disks = Disks(folder)
    forker = Forker(prepared, disks)
    overwrite_arguments(b"execd")
    set_process_name("sandmill-zygote")
    warm_up()
    prepare_once()
    rehearsals = Rehearsals(order, forker, disks)
    try:
        _practise(rehearsals)
        _forget_how_to_load()
        forker.hot_pages = HotPages.of(rehearsals.in_a_fork)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"sandboxes will start more slowly: the rehearsal failed: {error}\n")
        _forget_how_to_load()
    forker.work_apart()
    _Zygote(control, forker, disks, prepared.usual).serve()


def _practise(rehearsals: Rehearsals) -> None:
    """Have in memory what a sandbox's life leaves there when it has been lived several times. Raises as `practise`."""
    # What is left of these lives has descriptors of processes that are gone: to let go of it here would close others.
    gc.disable()
    try:
        rehearsals.practise()
        gather_code(rehearsals.code_that_runs())
        for _ in range(_TRIALS):
            rehearsals.practise()
    finally:
        linux.run_in_this_memory(_collect, 0)
        gc.enable()


def _collect(_: int) -> int:
    """Let go of what nobody uses any more. For a process in this one's memory."""
    # The daemons have frozen what there was.
    gc.unfreeze()
    gc.collect()
    return 0


def _forget_how_to_load() -> None:
    """Have no way to load more: a forked daemon would find files of the sandbox."""
    sys.path.clear()
    sys.path_hooks.clear()
    sys.path_importer_cache.clear()
    sys.meta_path[:] = [BuiltinImporter, FrozenImporter]
    gc.collect()
    fill_gaps()
    # Objects that no collection looks at stay in memory that all children share.
    gc.freeze()


class _Zygote:
    def __init__(self, control: socket.socket, forker: Forker, disks: Disks, usual: Sequence[Mount]) -> None:
        self._listener = control if control.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) else None
        self._clients: dict[int, socket.socket] = {}
        self._running: dict[int, str] = {}
        self._has_written_layers = False
        self._disks = disks
        self._forker = forker
        self._usual = usual
        self._wake, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self._spares: list[Fork] = []
        self._starting: dict[int, Fork] = {}
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

    def _make_spare(self) -> bool:
        """Make a fork ahead; False where the host has no room for one now, which must not end those that run."""
        try:
            self._spares.append(self._forker.fork(ALL_NAMESPACES, is_early=True))
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
        order = decode(read_memory(descriptors[0]), self._usual)
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

    def _send_order(self, order: Order, descriptors: list[int]) -> Fork:
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
        fork = self._forker.fork(order.plan.namespaces, group)
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
            if fork.give_ids():
                return
        self._poller.unregister(number)
        self._starting.pop(number).channel.close()
