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


class RecordExistsError(Exception):
    """There is a record of that name already."""


@dataclass(frozen=True, slots=True)
class Record:
    """One sandbox. owner: the process that created it. init: its process 1, None until that is known."""

    name: str
    slot: int
    owner: ProcessRef
    init: ProcessRef | None = None
    is_ready: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)

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
            taken = [path.stem.partition("@") for path in self._folder.glob("*@*.json")]
            if any(known == name for known, _, _ in taken):
                raise RecordExistsError(name)
            used = {int(slot) for _, _, slot in taken}
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
        return next((record for record in self.all() if record.name == name), None)

    def all(self) -> list[Record]:
        """All records, by name."""
        found = []
        for path in sorted(self._folder.glob("*@*.json")):
            # Another process may remove a record while we look.
            with suppress(FileNotFoundError):
                try:
                    found.append(_from_json(json.loads(path.read_text())))
                except (ValueError, KeyError, TypeError):
                    # Cut short by a power loss: whatever it named has ended with it.
                    path.unlink()
        return found

    def forget(self, record: Record) -> None:
        """Drop a record; its slot is free again."""
        for leftover in self._folder.glob(f"{record.name}@{record.slot}.*.tmp"):
            leftover.unlink(missing_ok=True)
        self._path(record).unlink(missing_ok=True)

    def _path(self, record: Record) -> Path:
        return self._folder / f"{record.name}@{record.slot}.json"

    def _write(self, record: Record) -> None:
        path = self._path(record)
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(json.dumps(_to_json(record)))
        temporary.rename(path)

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
    )
