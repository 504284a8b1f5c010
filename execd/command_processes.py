"""The processes of one command: the main one, and all that descend from it."""

import asyncio
import logging
import os
import time
from signal import SIGCONT, SIGKILL, SIGTERM, Signals
from typing import Final

from execd.families import Families
from execd.launch import Launched
from execd.processes import Origin, ProcessTable, belonging_to, kill_until_gone, list_processes, send_signal

__all__ = ["CommandProcesses"]

log = logging.getLogger("execd.command_processes")

_GRACE_POLL_SECONDS: Final = 0.02
_EXIT_NOTICE_SECONDS: Final = 1.0


class CommandProcesses:
    """The main process and its family."""

    def __init__(self, launched: Launched, origin: Origin, families: Families, exited: asyncio.Event) -> None:
        self._launched = launched
        self._origin = origin
        self._families = families
        self._exited = exited
        self._is_gone = False

    def note_exit(self, status: int) -> None:
        """Note that the number of the main process may pass to someone else."""
        self._is_gone = True
        self._launched.popen.returncode = os.waitstatus_to_exitcode(status)

    async def end(self, grace_seconds: float) -> None:
        """SIGTERM to each, the grace, SIGKILL until none is left."""
        if grace_seconds > 0:
            self._signal_everyone(SIGTERM)
            self._signal_everyone(SIGCONT)  # a stopped process hears nothing before
            deadline = time.monotonic() + grace_seconds
            while time.monotonic() < deadline:
                if not self._family(list_processes()):
                    break
                await asyncio.sleep(_GRACE_POLL_SECONDS)
        self.signal_group(SIGKILL)
        await kill_until_gone(self._family)
        try:
            async with asyncio.timeout(_EXIT_NOTICE_SECONDS):
                await self._exited.wait()
        except TimeoutError:
            log.warning("command_survives_kill id=%s pid=%d", self._origin.execution_id, self._origin.pid)
            self._exited.set()

    async def end_leftovers(self) -> None:
        """SIGKILL to all that the main process left."""
        if not await kill_until_gone(self._family):
            log.warning("leftovers_survive_kill id=%s", self._origin.execution_id)

    def count(self) -> int:
        """Say how many processes of the family are alive."""
        return self._families.count(self._origin)

    def signal_group(self, number: Signals) -> None:
        """Signal the process group of the main process while that lives, or the family if it is another user's."""
        if not self._is_gone and not self._reaches_group(number):
            send_signal(self._family(list_processes()), number)

    def _signal_everyone(self, number: Signals) -> None:
        """Signal the group, and once each who left it: they would not hear of it and cost the whole grace."""
        table = list_processes()
        family = self._family(table)
        if not self._is_gone and self._reaches_group(number):
            family = {pid for pid in family if table[pid].pgid != self._origin.pid}
        send_signal(family, number)

    def _reaches_group(self, number: Signals) -> bool:
        """Signal the process group in one step; False if it is another user's.

        Not when the main process is gone: the group's number may have passed to someone else.
        """
        try:
            os.killpg(self._origin.pid, number)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return True

    def _family(self, table: ProcessTable) -> set[int]:
        # Not `Families.members`: whoever hides behind the name of a command that has ended is killed, too.
        return belonging_to(self._origin, self._families.besides(self._origin), table, adopter=os.getpid())
