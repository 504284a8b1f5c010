"""The file system of a sandbox, held while its processes end."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from runtimes.processes import ProcessRef

__all__ = ["root_held"]


@contextmanager
def root_held(init: ProcessRef | None) -> Iterator[None]:
    """Have the root file system of a sandbox taken apart behind the block, even if its process 1 ends within.

    The kernel lets go of each name and file of it that it has in memory: for a few thousand files, a processor is busy
    with it for as long as a start takes. What comes after the block does not wait for it.
    """
    held = -1
    if init is not None:
        with suppress(OSError):  # it has ended
            held = os.open(f"/proc/{init.pid}/root", os.O_PATH | os.O_CLOEXEC)
    try:
        yield
    finally:
        if held >= 0:
            _close_behind(held)


def _close_behind(descriptor: int) -> None:
    closing = threading.Thread(target=os.close, args=(descriptor,), name="sandbox-files")
    try:
        closing.start()
    except RuntimeError:  # the host has no room for a thread, or this program is about to end
        os.close(descriptor)
