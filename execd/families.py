"""Who belongs to whom: one register of all that execd started, whatever route asked for it.

A kill of one family must know all others, or an orphan of theirs would pass for its own.
"""

import os
from collections import OrderedDict
from dataclasses import replace
from typing import Final

from execd.processes import (
    Origin,
    ProcessTable,
    belonging_to,
    children_of,
    kill_until_gone,
    list_processes,
)

__all__ = ["Families"]

_MAX_ENDED: Final = 1024
_NO_PID: Final = -1
"""Of a main process that is gone: its number may pass to anyone."""


class Families:
    """Origins by execution id: those that run, and the latest of those that ended."""

    def __init__(self) -> None:
        self._running: dict[str, Origin] = {}
        self._ended: OrderedDict[str, Origin] = OrderedDict()

    def add(self, origin: Origin) -> None:
        """Begin a family. To be called before the loop runs again after its start."""
        self._running[origin.execution_id] = origin

    def lose_head(self, origin: Origin) -> None:
        """Note that the main process is gone while the family goes on."""
        self._running[origin.execution_id] = replace(origin, pid=_NO_PID)

    def discard(self, origin: Origin) -> None:
        """End a family; what is left of it may be taken for another's that ran beside it."""
        if self._running.pop(origin.execution_id, None) is not None:
            self._ended[origin.execution_id] = replace(origin, pid=_NO_PID)
            if len(self._ended) > _MAX_ENDED:
                self._ended.popitem(last=False)

    def besides(self, origin: Origin) -> list[Origin]:
        """Give the origins of all other families that run."""
        return [other for key, other in self._running.items() if key != origin.execution_id]

    def members(self, origin: Origin, table: ProcessTable) -> set[int]:
        """Pids in `table` of this family.

        Orphans that name an ended family are left to it: one that lives for hours would take in the background
        processes of every command that came and went beside it.
        """
        current = self._running.get(origin.execution_id, origin)
        others = [*self.besides(origin), *self._ended.values()]
        return belonging_to(current, others, table, adopter=os.getpid())

    def count(self, origin: Origin) -> int:
        """Say how many members are alive whose main process has ended. Cheap if there are none."""
        known = {other.pid for other in self.besides(origin)} | {pid for pid, _ in origin.predecessors}
        # Whoever outlived the main process has execd as parent, or a parent that has.
        if known.issuperset(children_of(os.getpid())):
            return 0
        return len(self.members(origin, list_processes()))

    async def kill(self, origin: Origin) -> bool:
        """SIGKILL all members until none is left; False if some outlive even that."""
        return await kill_until_gone(lambda table: self.members(origin, table))
