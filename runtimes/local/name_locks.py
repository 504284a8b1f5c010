"""Letting the changes of one sandbox follow one another, in the whole process."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

__all__ = ["locked_names"]

_LOCKS = tuple(threading.Lock() for _ in range(64))
"""By name, or rather by group of names."""


@contextmanager
def locked_names(*names: str) -> Iterator[None]:
    """Be the only one who creates, changes or removes the sandboxes of these names."""
    with ExitStack() as held:
        # In one order, and each once: two names may share a lock.
        for number in sorted({hash(name) % len(_LOCKS) for name in names}):
            held.enter_context(_LOCKS[number])
        yield
