"""What a daemon has before it knows its options, and a process that forks daemons before it forks them."""

import asyncio
import os
import select
import selectors
import socket

from execd import kernel

__all__ = ["Ahead"]


class Ahead:
    """An event loop that runs nothing yet. descriptors: its own."""

    def __init__(self) -> None:
        """Raises OSError."""
        before = kernel.open_descriptors()
        self._selector = selectors.EpollSelector()
        self.loop = asyncio.SelectorEventLoop(self._selector)
        self.descriptors = frozenset(kernel.open_descriptors() - before)

    def renew(self) -> None:
        """In a fork of the process that made it, have a loop of one's own: what the kernel keeps for it was shared.

        The objects stay as they are, in memory that is shared as well, and find the new under the old numbers.
        Raises OSError.
        """
        # The loop watches nothing but one end of the pair of sockets by which it is woken.
        (read_end,) = (key.fd for key in self._selector.get_map().values())
        (write_end,) = self.descriptors - {read_end, self._selector.fileno()}
        with select.epoll() as epoll:
            for mine, number in zip(socket.socketpair(), (read_end, write_end), strict=True):
                with mine:
                    mine.setblocking(False)
                    os.dup2(mine.fileno(), number, inheritable=False)
            epoll.register(read_end, select.EPOLLIN)
            os.dup2(epoll.fileno(), self._selector.fileno(), inheritable=False)

    def drop(self) -> None:
        """Close its descriptors in this process; the loop may have been closed by another one in its memory."""
        if not self.loop.is_closed():
            self.loop.close()
            return
        for descriptor in self.descriptors:
            os.close(descriptor)
