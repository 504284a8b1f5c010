"""Collecting dead children: those execd started, and the orphans it adopted."""

import asyncio
import os
import signal
from collections.abc import Callable

__all__ = ["Reaper"]


class Reaper:
    """The only caller of wait in this process, so that no status is ever taken by someone else."""

    def __init__(self) -> None:
        self._watched: dict[int, Callable[[int], None]] = {}

    def start(self) -> None:
        """Begin collecting; needs the running loop of the main thread."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self.collect)

    def watch(self, pid: int, on_exit: Callable[[int], None]) -> None:
        """Call on_exit with the wait status once the child is dead. To be called before the loop runs again."""
        self._watched[pid] = on_exit

    def collect(self) -> None:
        """Take in all children that are dead."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            on_exit = self._watched.pop(pid, None)
            if on_exit is not None:
                on_exit(status)
