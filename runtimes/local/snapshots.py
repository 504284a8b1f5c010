"""Kept copies of what sandboxes wrote, to start others from.

A snapshot is a folder with one layer or more, and a description. Its files have the owners of the image, so that any
sandbox can be started from it, whatever host users it has.
"""

import errno
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from core.errors import DaemonError, ImageNotFoundError, ImageStoreFullError, SpecInvalidError
from runtimes.local.images import ImageConfig
from runtimes.local.roots import Root

__all__ = ["SNAPSHOT_PREFIX", "SnapshotRecord", "Snapshots", "copy_layer"]

SNAPSHOT_PREFIX: Final = "snapshot:"
"""`snapshot:NAME` in the place of an image starts a sandbox from a snapshot."""

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
_CHUNK_BYTES: Final = 8 << 20


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

    def save(
        self, name: str, record: SnapshotRecord, layers: Sequence[tuple[Path, int]], *, as_root: bool
    ) -> None:
        """Copy layers, top first, each with the id on disk that is user 0. Whole or not at all.

        Raises SpecInvalidError for a bad name or one that is taken, ImageStoreFullError, DaemonError.
        """
        target = self._path(name)
        if target.exists():
            raise SpecInvalidError(
                f"name: there is a snapshot {name!r} already: remove it first", field="name"
            )
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self._folder / f".{name}.{os.getpid()}.{os.urandom(4).hex()}"
        draft.mkdir(mode=0o700)
        try:
            for number, (layer, owner) in enumerate(layers):
                copy_layer(layer, draft / str(number), first_id=owner if as_root else None)
            (draft / "snapshot.json").write_text(json.dumps(_to_json(record)))
            draft.rename(target)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise ImageStoreFullError(free_bytes=0, needed_bytes=1) from error
            raise DaemonError(f"the snapshot {name} could not be made: {error}") from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def find(self, name: str) -> tuple[SnapshotRecord, tuple[Path, ...]]:
        """Give a snapshot and its own layers, top first. Raises ImageNotFoundError that says what there is."""
        target = self._path(name)
        try:
            record = _from_json(json.loads((target / "snapshot.json").read_text()))
        except FileNotFoundError as error:
            known = ", ".join(self.list()[:20]) or "none"
            raise ImageNotFoundError(f"no snapshot {name!r}; there are: {known}") from error
        numbers = sorted(int(path.name) for path in target.iterdir() if path.name.isdigit())
        return record, tuple(target / str(number) for number in numbers)

    def list(self) -> list[str]:
        """All names."""
        return sorted(path.parent.name for path in self._folder.glob("[!.]*/snapshot.json"))

    def remove(self, name: str) -> None:
        """Delete a snapshot; sandboxes that run from it go on. Idempotent."""
        target = self._path(name)
        with suppress(FileNotFoundError):
            gone = self._folder / f".{name}.gone.{os.urandom(4).hex()}"
            target.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            message = f"{name!r} is no name of a snapshot: it does not match {_NAME.pattern}"
            raise SpecInvalidError(message, field="name")
        return self._folder / name


def copy_layer(source: Path, target: Path, *, first_id: int | None) -> None:
    """Copy a layer with everything overlay needs: links, hard links, holes for what was deleted, attributes.

    first_id: what is user 0 in the copy; None: owners cannot be kept. Nobody writes to the source meanwhile. Follows no
    link. Raises OSError.
    """
    own = (lambda uid: uid) if first_id is None else (lambda uid: uid - first_id if uid >= first_id else uid)
    linked: dict[int, Path] = {}
    pending = [(source, target)]
    folders: list[tuple[Path, Path]] = []
    while pending:
        here, there = pending.pop()
        there.mkdir(mode=0o700)
        folders.append((here, there))
        for entry in os.scandir(here):
            copy = there / entry.name
            if entry.is_dir(follow_symlinks=False):
                pending.append((Path(entry.path), copy))
                continue
            status = entry.stat(follow_symlinks=False)
            if status.st_nlink > 1 and status.st_ino in linked:
                os.link(linked[status.st_ino], copy, follow_symlinks=False)
                continue
            if status.st_nlink > 1:
                linked[status.st_ino] = copy
            _copy_entry(Path(entry.path), copy, status)
            _copy_facts(Path(entry.path), copy, own, can_own=first_id is not None)
    # Times of folders last, and from the bottom up: filling them changes them.
    for here, there in reversed(folders):
        _copy_facts(here, there, own, can_own=first_id is not None)


def _copy_entry(source: Path, target: Path, status: os.stat_result) -> None:
    if stat.S_ISLNK(status.st_mode):
        target.symlink_to(source.readlink())
    elif stat.S_ISREG(status.st_mode):
        _copy_content(source, target, status.st_size)
    elif stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:
        os.mknod(target, stat.S_IFCHR, os.makedev(0, 0))  # overlay's mark of what was deleted
    elif stat.S_ISFIFO(status.st_mode):
        os.mkfifo(target)
    # A socket is worth nothing without the program that listened.


def _copy_content(source: Path, target: Path, size: int) -> None:
    """Copy data and leave holes holes."""
    with source.open("rb", buffering=0) as reading, target.open("xb", buffering=0) as writing:
        os.truncate(writing.fileno(), size)
        position = 0
        while position < size:
            try:
                start = os.lseek(reading.fileno(), position, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # only a hole is left
                    return
                raise
            end = os.lseek(reading.fileno(), start, os.SEEK_HOLE)
            os.lseek(reading.fileno(), start, os.SEEK_SET)
            os.lseek(writing.fileno(), start, os.SEEK_SET)
            while start < end:
                count = os.sendfile(writing.fileno(), reading.fileno(), None, min(end - start, _CHUNK_BYTES))
                if count == 0:
                    return
                start += count
            position = end


def _copy_facts(source: Path, target: Path, own: Callable[[int], int], *, can_own: bool) -> None:
    status = source.lstat()
    with suppress(FileNotFoundError):
        if can_own:
            os.chown(target, own(status.st_uid), own(status.st_gid), follow_symlinks=False)
        for name in os.listxattr(source, follow_symlinks=False):
            if name.startswith(("trusted.overlay.", "user.")):
                os.setxattr(
                    target, name, os.getxattr(source, name, follow_symlinks=False), follow_symlinks=False
                )
        if not stat.S_ISLNK(status.st_mode):
            target.chmod(stat.S_IMODE(status.st_mode))
        os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns), follow_symlinks=False)


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
