"""The lease as other processes of the node see it: until when the worker is certain that nobody else runs its trials.

Little is imported here: the watchdog uses it.
"""

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["Lease", "LeaseFile"]


@dataclass(frozen=True, slots=True)
class Lease:
    """until: seconds of CLOCK_BOOTTIME, of the boot named. pid, started: the worker's, as `ProcessRef` has them."""

    boot: str
    session: str
    until: float
    pid: int
    started: int


class LeaseFile:
    """`lease.json` in the node's folder: written by the worker, read by the watchdog."""

    def __init__(self, folder: Path) -> None:
        """folder: the node's own; it must be there."""
        self._path = str(folder / "lease.json")

    def write(self, lease: Lease) -> None:
        """Replace it, whole or not at all."""
        temporary = f"{self._path}.tmp"
        with open(temporary, "w", encoding="ascii") as file:  # noqa: PTH123 -- at every heartbeat
            json.dump(asdict(lease), file)
        os.rename(temporary, self._path)  # noqa: PTH104 -- at every heartbeat

    def read(self) -> Lease | None:
        """Give the last one; None if there is none, or none that can be read: nothing is certain then."""
        try:
            with open(self._path, encoding="ascii") as file:  # noqa: PTH123 -- several times a second
                return Lease(**json.load(file))
        except (OSError, ValueError, TypeError):
            return None

    def remove(self) -> None:
        """Say that nothing of this node may run any more."""
        with suppress(FileNotFoundError):
            os.unlink(self._path)  # noqa: PTH108
