"""What is known of running containers, kept on disk for other processes of this node: they need not ask the engine."""

import json
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from runtimes.processes import ProcessRef

__all__ = ["ContainerRecord", "ContainerRecords", "is_of_container", "upper_folder"]


@dataclass(frozen=True, slots=True)
class ContainerRecord:
    """A container that was seen running. name: of its sandbox. ref: its id. pid, started: its process 1 on this host.

    labels: the sandbox's own. oci_runtime: as the engine names it. volumes: those that go with it. upper: where the
    engine keeps what it writes.
    """

    name: str
    ref: str
    pid: int
    started: int
    oci_runtime: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    volumes: tuple[str, ...] = ()
    upper: str | None = None

    @property
    def process(self) -> ProcessRef:
        """Its process 1."""
        return ProcessRef(self.pid, self.started)


class ContainerRecords:
    """One small file each. What is read is held against the kernel: a record of what has ended is none."""

    def __init__(self, folder: Path) -> None:
        """folder: made with the first record, for root alone."""
        self._folder = folder

    def put(self, record: ContainerRecord) -> None:
        """Keep it. Not to be able to is no failure: then the engine is asked."""
        path = self._folder / record.name
        draft = self._folder / f".{record.name}.{os.getpid()}"
        if not _is_plain(record.name):
            return
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft.write_text(json.dumps(asdict(record)))
            draft.replace(path)

    def find(self, name: str) -> ContainerRecord | None:
        """Give the container of this name, if it was seen and runs."""
        if not _is_plain(name):
            return None
        try:
            kept = json.loads((self._folder / name).read_text())
            record = ContainerRecord(**{**kept, "volumes": tuple(kept["volumes"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None
        is_it = record.name == name and is_of_container(record.pid, record.ref) and record.process.is_alive
        return record if is_it else None

    def drop(self, name: str) -> None:
        """Forget it. Idempotent."""
        if _is_plain(name):
            with suppress(OSError):
                (self._folder / name).unlink(missing_ok=True)

    def sweep(self, names: Collection[str]) -> None:
        """Forget all but these."""
        with suppress(OSError):
            for path in self._folder.iterdir():
                if path.name not in names:
                    path.unlink(missing_ok=True)


def _is_plain(name: str) -> bool:
    """Whether a name is one of ours: others give their containers labels, too."""
    return bool(name) and "/" not in name and not name.startswith(".")


def is_of_container(pid: int, ref: str) -> bool:
    """Say whether a process is of a container: by its groups, or, of an OCI runtime without any, by its command."""
    folder = Path(f"/proc/{pid}")
    return ref in _read_text(folder / "cgroup") or ref in _read_text(folder / "cmdline")


def upper_folder(pid: int) -> str | None:
    """Give where what a process writes to its root file system is kept; None if that is none of two layers."""
    for line in _read_text(Path(f"/proc/{pid}/mountinfo")).splitlines():
        fields, _, tail = line.partition(" - ")
        kind, _, rest = tail.partition(" ")
        if fields.split(" ")[4:5] != ["/"] or kind != "overlay":
            continue
        options = rest.rpartition(" ")[2].split(",")
        upper = next((each.removeprefix("upperdir=") for each in options if each.startswith("upperdir=")), "")
        # The kernel writes unusual characters as numbers; and the engine may have named it from where it stood.
        return upper if upper.startswith("/") and "\\" not in upper else None
    return None


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
