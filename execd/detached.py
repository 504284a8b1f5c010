"""The outputs of processes that live on after their command."""

import asyncio
import os
from typing import Final

__all__ = ["DetachedOutputs"]

_READ_BYTES: Final = 64 * 1024
_MAX_DETACHED: Final = 64
_DROP_PAUSE_SECONDS: Final = 0.01


class DetachedOutputs:
    """Reads and drops what background processes write after their command ended, so that they live on."""

    def __init__(self) -> None:
        self._fds: list[int] = []

    def take(self, fd: int) -> None:
        """Own the read end from now on; beyond 64 the oldest is closed, and its writers get SIGPIPE."""
        self._fds.append(fd)
        self._watch(fd)
        if len(self._fds) > _MAX_DETACHED:
            self._close(self._fds[0])

    def close(self) -> None:
        """Close all."""
        for fd in list(self._fds):
            self._close(fd)

    def _watch(self, fd: int) -> None:
        if fd in self._fds:
            asyncio.get_running_loop().add_reader(fd, self._drop, fd)

    def _drop(self, fd: int) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(fd)
        try:
            if not os.read(fd, _READ_BYTES):
                self._close(fd)
                return
        except BlockingIOError:
            pass
        # One who chatters without end is slowed down; it must not keep this process busy.
        loop.call_later(_DROP_PAUSE_SECONDS, self._watch, fd)

    def _close(self, fd: int) -> None:
        self._fds.remove(fd)
        asyncio.get_running_loop().remove_reader(fd)
        os.close(fd)
