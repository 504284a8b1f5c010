"""Where an image is put together before anybody sees it, and what it needs of the store meanwhile."""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from runtimes.local.images.locking import is_locked, lock_file

__all__ = ["Workspace", "dead_workspaces", "open_workspace", "pinned"]

_LOCK = "lock"
_PINS = "pins"


class Workspace:
    """A folder of one import or pull; see `open_workspace`."""

    def __init__(self, folder: Path, store_lock: Path) -> None:
        """folder: exists and is empty but for its lock. store_lock: shared while something is pinned."""
        self.path = folder
        self._store_lock = store_lock

    def pin(self, name: str) -> None:
        """Keep a layer or tree of this name from being collected, whether it exists already or not."""
        with lock_file(self._store_lock, shared=True):
            pins = self.path / _PINS
            pins.mkdir(exist_ok=True)
            (pins / name).touch()

    def new_folder(self) -> Path:
        """Make an empty folder, for its owner only."""
        folder = self.path / uuid4().hex
        folder.mkdir(mode=0o700)
        return folder

    def new_file(self) -> BinaryIO:
        """Make an empty file to write and read back; it is gone once the caller closes it."""
        path = self.path / uuid4().hex
        file = path.open("x+b")
        path.unlink()
        return file


@contextmanager
def open_workspace(staging: Path, trash: Path, store_lock: Path) -> Iterator[Workspace]:
    """Make a workspace below staging, and remove it with all in it in the end, by way of the trash.

    If we die, `dead_workspaces` has it.
    """
    folder = staging / uuid4().hex
    with ExitStack() as held:
        with lock_file(store_lock, shared=True):
            folder.mkdir(mode=0o700)
            held.enter_context(lock_file(folder / _LOCK))
        try:
            yield Workspace(folder, store_lock)
        finally:
            # In one step, since a collector looks at its pins and its lock.
            gone = trash / folder.name
            with lock_file(store_lock, shared=True):
                folder.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)


def dead_workspaces(staging: Path) -> list[Path]:
    """Find those whose process is gone. The caller holds the store's lock alone."""
    return [folder for folder in staging.iterdir() if not is_locked(folder / _LOCK)]


def pinned(staging: Path) -> set[str]:
    """Names that living workspaces pin. The caller holds the store's lock alone."""
    return {
        name.name
        for folder in staging.iterdir()
        if (folder / _PINS).is_dir()
        for name in os.scandir(folder / _PINS)
    }
