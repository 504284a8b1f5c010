"""What this host remembers of its local sandboxes, so that any later process can find and remove them.

One file per sandbox, `<name>@<slot>.json`: one listing of the folder tells all names and all slots in use. Slots give
each sandbox its own host user id.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from core.errors import DaemonError
from runtimes.processes import ProcessRef

__all__ = ["Record", "RecordExistsError", "Records"]

_SLOTS = 16_384
_ENDING = ".json"
_ATTACHED = ".kept"


class RecordExistsError(Exception):
    """There is a record of that name already."""


@dataclass(frozen=True, slots=True)
class Record:
    """One sandbox. owner: the process that created it. init: its process 1, None until that is known.

    disk: see `zygote.orders.Disk`.
    """

    name: str
    slot: int
    owner: ProcessRef
    init: ProcessRef | None = None
    is_ready: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    disk: str | None = None

    @property
    def is_alive(self) -> bool:
        """True while process 1 runs."""
        return self.init is not None and self.init.is_alive


class Records:
    """The folder of records. Safe for several threads and processes at once."""

    def __init__(self, folder: Path, *, slots: int = _SLOTS) -> None:
        """folder: made if missing, for its owner only. slots: how many sandboxes there can be at a time."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._next_slot = 0
        self._slots = slots

    def reserve(self, name: str, labels: Mapping[str, str]) -> Record:
        """Take the name and a free slot. Raises RecordExistsError; then `find` gives the one that is there."""
        owner = ProcessRef.of(os.getpid())
        if owner is None:
            message = "this process is not listed in /proc"
            raise RuntimeError(message)
        with self._locked():
            taken = self._slots_by_name()
            if name in taken:
                raise RecordExistsError(name)
            used = set(taken.values())
            # Round robin: a slot rests as long as possible before its user id is used again.
            numbers = (n % self._slots for n in range(self._next_slot, self._next_slot + self._slots))
            slot = next((number for number in numbers if number not in used), None)
            if slot is None:
                raise DaemonError(
                    f"this node has no room for more than {self._slots} sandboxes of its own users"
                )
            self._next_slot = slot + 1
            record = Record(name, slot, owner, labels=dict(labels))
            self._write(record)
            return record

    def update(self, record: Record, **changes: Any) -> Record:
        """Replace fields of a record, whole or not at all."""
        changed = replace(record, **changes)
        self._write(changed)
        return changed

    def find(self, name: str) -> Record | None:
        """Give the record of a name."""
        slot = self._slots_by_name().get(name)
        return None if slot is None else self._read(self._path(name, slot))

    def all(self) -> list[Record]:
        """All records, by name."""
        found = (self._read(self._path(name, slot)) for name, slot in sorted(self._slots_by_name().items()))
        return [record for record in found if record is not None]

    def attach(self, record: Record, text: str) -> None:
        """Keep a text beside a record, in the place of an earlier one; it is forgotten with the record."""
        path = f"{self._folder}/{record.name}@{record.slot}{_ATTACHED}"
        temporary = f"{path}.{os.getpid()}.tmp"
        with open(temporary, "wb", buffering=0) as file:  # noqa: PTH123 -- see _names
            file.write(text.encode())
        os.rename(temporary, path)  # noqa: PTH104 -- see _names

    def attached(self, record: Record) -> bytes | None:
        """Give the text beside a record, if there is one."""
        with suppress(FileNotFoundError):
            return Path(f"{self._folder}/{record.name}@{record.slot}{_ATTACHED}").read_bytes()
        return None

    def forget(self, record: Record) -> None:
        """Drop a record; its slot is free again."""
        own = f"{record.name}@{record.slot}."
        # The record last: while it is there, its slot is nobody else's, and neither are the leftovers of its writers.
        for name in sorted(self._names(), key=lambda name: name.endswith(_ENDING)):
            if name.startswith(own):
                with suppress(FileNotFoundError):
                    os.unlink(f"{self._folder}/{name}")  # noqa: PTH108 -- see _names

    def sweep(self) -> None:
        """Remove what processes left that were killed while they wrote a record."""
        for name in self._names():
            writer = name.removesuffix(".tmp").rpartition(".")[2]
            if name.endswith(".tmp") and (not writer.isdigit() or ProcessRef.of(int(writer)) is None):
                with suppress(FileNotFoundError):
                    os.unlink(f"{self._folder}/{name}")  # noqa: PTH108 -- see _names

    def _names(self) -> list[str]:
        """List the folder. By `os`, as all here: each start and each command looks at it, and it may be long."""
        return os.listdir(self._folder)  # noqa: PTH208

    def _slots_by_name(self) -> dict[str, int]:
        slots = {}
        for entry in self._names():
            name, mark, slot = entry.removesuffix(_ENDING).rpartition("@")
            if mark and entry.endswith(_ENDING):
                slots[name] = int(slot)
        return slots

    def _path(self, name: str, slot: int) -> str:
        return f"{self._folder}/{name}@{slot}{_ENDING}"

    def _read(self, path: str) -> Record | None:
        # Another process may remove a record while we look.
        with suppress(FileNotFoundError):
            try:
                with open(path, "rb", buffering=0) as file:  # noqa: PTH123 -- see _names
                    return _from_json(json.loads(file.read()))
            except (ValueError, KeyError, TypeError):
                # Cut short by a power loss: whatever it named has ended with it.
                os.unlink(path)  # noqa: PTH108 -- see _names
        return None

    def _write(self, record: Record) -> None:
        path = self._path(record.name, record.slot)
        temporary = f"{path.removesuffix(_ENDING)}.{os.getpid()}.tmp"
        with open(temporary, "wb", buffering=0) as file:  # noqa: PTH123 -- see _names
            file.write(json.dumps(_to_json(record)).encode())
        os.rename(temporary, path)  # noqa: PTH104 -- see _names

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the folder's lock; the kernel drops it if we die."""
        descriptor = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _to_json(record: Record) -> dict[str, Any]:
    return {
        "name": record.name,
        "slot": record.slot,
        "owner": [record.owner.pid, record.owner.started],
        "init": None if record.init is None else [record.init.pid, record.init.started],
        "is_ready": record.is_ready,
        "labels": dict(record.labels),
        "disk": record.disk,
    }


def _from_json(value: dict[str, Any]) -> Record:
    init = value["init"]
    return Record(
        name=value["name"],
        slot=value["slot"],
        owner=ProcessRef(*value["owner"]),
        init=None if init is None else ProcessRef(*init),
        is_ready=value["is_ready"],
        labels=value["labels"],
        disk=value.get("disk"),
    )
