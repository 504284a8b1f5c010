"""Kept copies of what sandboxes wrote, to start others from.

A snapshot is a folder with one layer or more, and a description. Its files have the owners of the image, so that any
sandbox can be started from it, whatever host users it has. Sandboxes that run from it have its layers mounted, and what
is made of them copies these by their path: so the folder of a removed one stays until the last of them is gone.
"""

import errno
import json
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from core.errors import DaemonError, ImageNotFoundError, ImageStoreFullError, SpecInvalidError
from runtimes.local.images import ImageConfig
from runtimes.local.images.locking import is_locked, lock_file, remove_free_lock
from runtimes.local.layer_copy import copy_layer
from runtimes.local.roots import Root
from runtimes.local.trees import remove_tree, tree_bytes

__all__ = ["SNAPSHOT_PREFIX", "SnapshotRecord", "Snapshots"]

SNAPSHOT_PREFIX: Final = "snapshot:"
"""`snapshot:NAME` in the place of an image starts a sandbox from a snapshot."""

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
_USERS: Final = ".users"
"""Folder with a file for each sandbox that stands on snapshots: their names, a line each."""

_RECORD: Final = "snapshot.json"
_REMOVED: Final = "removed.json"
"""What the record is called once the snapshot is removed, but in use."""

_LEFTOVER: Final = re.compile(rf"\.({_NAME.pattern})\.(?:draft|gone)")


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    """What a snapshot stands on. image: `host`, or the digest of a stored image.

    below: that image's layers, top first; leased, so that they are there even if the image is forgotten.
    """

    image: str
    below: tuple[str, ...]
    config: ImageConfig | None
    uid: int
    gid: int
    home: str


class Snapshots:
    """The folder of snapshots of a node."""

    def __init__(self, folder: Path) -> None:
        """folder: made when the first snapshot is."""
        self._folder = folder

    @contextmanager
    def held(self, name: str) -> Iterator[None]:
        """Be the only one who makes or removes the snapshot of this name. Raises SpecInvalidError for a bad one."""
        lock = self._lock_of(name)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with lock_file(lock):
                yield
        finally:
            remove_free_lock(lock)

    def is_held(self, name: str) -> bool:
        """Whether somebody is at it now."""
        return is_locked(self._lock_of(name))

    def save(
        self, name: str, record: SnapshotRecord, layers: Sequence[tuple[Path, int]], *, as_root: bool
    ) -> None:
        """Copy layers, top first, each with the id on disk that is user 0. Whole or not at all. The caller holds it.

        Raises SpecInvalidError for a bad name or one that is taken, ImageStoreFullError, DaemonError.
        """
        target = self._path(name)
        if target.exists():
            raise SpecInvalidError(
                f"name: there is a snapshot {name!r} already: remove it first", field="name"
            )
        draft = self._folder / f".{name}.draft"
        try:
            draft.mkdir(mode=0o700)
            for number, (layer, owner) in enumerate(layers):
                # Only the host's image has nothing below what sandboxes wrote.
                is_lowest = number == len(layers) - 1 and record.config is None
                copy_layer(
                    layer, draft / str(number), first_id=owner if as_root else None, is_lowest=is_lowest
                )
            (draft / _RECORD).write_text(json.dumps(_to_json(record)))
            draft.rename(target)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise ImageStoreFullError(free_bytes=0, needed_bytes=1) from error
            raise DaemonError(f"the snapshot {name} could not be made: {error}") from error
        finally:
            with suppress(OSError):
                remove_tree(draft)

    def find(self, name: str) -> tuple[SnapshotRecord, tuple[Path, ...]]:
        """Give a snapshot and its own layers, top first. Raises ImageNotFoundError that says what there is."""
        target = self._path(name)
        try:
            record = _from_json(json.loads((target / _RECORD).read_text()))
        except FileNotFoundError as error:
            known = ", ".join(self.list()[:20]) or "none"
            raise ImageNotFoundError(f"no snapshot {name!r}; there are: {known}") from error
        numbers = sorted(int(path.name) for path in target.iterdir() if path.name.isdigit())
        return record, tuple(target / str(number) for number in numbers)

    def list(self) -> list[str]:
        """All names."""
        return sorted(path.parent.name for path in self._folder.glob(f"[!.]*/{_RECORD}"))

    def size_bytes(self, name: str) -> int | None:
        """Room that its own layers take on the disk; None if there is none of this name."""
        with suppress(FileNotFoundError):
            return tree_bytes(self._path(name))
        return None

    def names_in(self, layers: Sequence[str]) -> Sequence[str]:
        """Names of the snapshots that these layers are of."""
        folder = f"{self._folder}/"
        names = {layer.removeprefix(folder).partition("/")[0] for layer in layers if layer.startswith(folder)}
        return sorted(names)

    def lease(self, names: Sequence[str], sandbox: str) -> None:
        """Keep the layers of these while a sandbox stands on them. Raises ImageNotFoundError if one is gone."""
        users = self._folder / _USERS
        users.mkdir(mode=0o700, exist_ok=True)
        with ExitStack() as holding:
            for name in names:
                holding.enter_context(self.held(name))
            (users / sandbox).write_text("\n".join(names))
            gone = [name for name in names if not self._path(name).is_dir()]
            if gone:
                (users / sandbox).unlink()
                raise ImageNotFoundError(f"the snapshot {gone[0]!r} was removed")

    def release(self, sandbox: str) -> None:
        """Give a lease back, and delete what was removed meanwhile and nobody uses any more. Idempotent."""
        lease = self._folder / _USERS / sandbox
        try:
            names = lease.read_text().split()
        except FileNotFoundError:
            return
        lease.unlink(missing_ok=True)
        for name in names:
            with self.held(name):
                if (self._path(name) / _REMOVED).exists() and name not in self._used():
                    self._delete(name)

    def remove(self, name: str) -> None:
        """Delete a snapshot; sandboxes that run from it go on. Idempotent. The caller holds it. Raises DaemonError."""
        target = self._path(name)
        if name not in self._used():
            self._delete(name)
            return
        with suppress(FileNotFoundError):
            (target / _RECORD).rename(target / _REMOVED)

    def _used(self) -> set[str]:
        """Names of those that sandboxes stand on."""
        used: set[str] = set()
        for lease in (self._folder / _USERS).glob("*"):
            with suppress(FileNotFoundError):
                used.update(lease.read_text().split())
        return used

    def _delete(self, name: str) -> None:
        gone = self._folder / f".{name}.gone"
        try:
            remove_tree(gone)
            with suppress(FileNotFoundError):
                self._path(name).rename(gone)
                remove_tree(gone)
        except OSError as error:
            raise DaemonError(f"the snapshot {name} could not be removed: {error}") from error

    def sweep(self, sandboxes: Collection[str]) -> None:
        """Delete what those left who died while they made or removed a snapshot, and give back all other leases.

        sandboxes: those there are.
        """
        for lease in list((self._folder / _USERS).glob("*")):
            if lease.name not in sandboxes:
                self.release(lease.name)
        with suppress(FileNotFoundError):
            for path in list(self._folder.iterdir()):
                if path.name.startswith(".") and path.name.endswith(".lock"):
                    remove_free_lock(path)
                found = _LEFTOVER.fullmatch(path.name)
                if found is None or self.is_held(found[1]):
                    continue
                with self.held(found[1]), suppress(OSError):
                    remove_tree(path)

    def _lock_of(self, name: str) -> Path:
        return self._path(name).with_name(f".{name}.lock")

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            message = f"{name!r} is no name of a snapshot: it does not match {_NAME.pattern}"
            raise SpecInvalidError(message, field="name")
        return self._folder / name


def root_of_snapshot(record: SnapshotRecord, own: Sequence[Path]) -> Root:
    """Give the root that a snapshot and the image below it make. own: the snapshot's layers, top first."""
    layers = (*(str(layer) for layer in own), *record.below)
    return Root(layers, (0,) * len(layers), record.config, record.uid, record.gid, record.home)


def _to_json(record: SnapshotRecord) -> dict[str, Any]:
    return {
        "image": record.image,
        "below": record.below,
        "config": None if record.config is None else record.config.to_json(),
        "uid": record.uid,
        "gid": record.gid,
        "home": record.home,
    }


def _from_json(value: dict[str, Any]) -> SnapshotRecord:
    config = value["config"]
    return SnapshotRecord(
        **{
            **value,
            "below": tuple(value["below"]),
            "config": None if config is None else ImageConfig.from_json(config),
        }
    )
