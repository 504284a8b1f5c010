"""The layers of the store: each unpacked once, under an id that stands for it and all below it."""

import ctypes
import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from core.errors import BadImageError
from runtimes.local.images.decompression import HashingSource, open_unpacked
from runtimes.local.images.limits import ImageLimits
from runtimes.local.images.locking import lock_file
from runtimes.local.images.merging import merge_layer
from runtimes.local.images.records import LayerRecord
from runtimes.local.images.tar_stream import TarReader
from runtimes.local.images.unpacking import check_space, unpack_layer
from runtimes.local.images.workspace import Workspace

__all__ = ["LayerSource", "LayerStore"]

_EMPTY = "empty"
_ROOT = "root"
_RECORD = "layer.json"


@dataclass(frozen=True, slots=True)
class LayerSource:
    """Where the archive of one layer comes from.

    open: gives a seekable file, closed by its context; called only if the layer is not in the store yet.
    digest, size: of the archive as it is, compressed or not; None if nothing says so. diff_id: of the unpacked archive.
    """

    open: Callable[[], AbstractContextManager[BinaryIO]]
    digest: str | None = None
    size: int | None = None
    diff_id: str | None = None


class LayerStore:
    """Folders `layers/<chain id>` and `trees/<chain id>` of the store. Safe for several threads and processes.

    The id of the lowest layer is its diff id; that of another is made of the id of the one below and its own diff id,
    as containerd does it: what a folder that the archive only implies looks like depends on the layers below.
    """

    def __init__(self, folder: Path, limits: ImageLimits, *, as_root: bool, is_durable: bool) -> None:
        """folder: the store's. is_durable: see `ImageStore`."""
        self._is_durable = is_durable
        self._folder = folder
        self._limits = limits
        self._as_root = as_root

    def add(self, source: LayerSource, below: Sequence[str], workspace: Workspace) -> str:
        """Unpack a layer unless it is there, and give its chain id, pinned by the workspace.

        below: chain ids of the layers below, lowest first. Raises BadImageError, ImageStoreFullError, OSError, and what
        opening the source raises. Whoever else wants the same layer meanwhile waits and finds it.
        """
        if source.diff_id is None:
            return self._publish(*self._unpack(source, below, workspace), below, workspace)
        chain = _chain_id(below, source.diff_id)
        workspace.pin(chain)
        with lock_file(self._folder / "locks" / chain):
            if not self._is_whole(chain):
                self._discard(chain, workspace)
                self._publish(*self._unpack(source, below, workspace), below, workspace)
        return chain

    def has(self, chain: str) -> bool:
        """Say whether a layer is there."""
        return (self._folder / "layers" / chain).is_dir()

    def _is_whole(self, chain: str) -> bool:
        """Say whether a layer is there, with all that was written down about it."""
        try:
            self.record(chain)
        except (OSError, ValueError, KeyError, TypeError):
            return False
        return self._root(chain).is_dir()

    def _discard(self, chain: str, workspace: Workspace) -> None:
        """Move what is left of a damaged layer out of the way; sandboxes that have it mounted keep it."""
        with suppress(FileNotFoundError):
            (self._folder / "layers" / chain).rename(workspace.path / f"damaged-{chain}")

    def record(self, chain: str) -> LayerRecord:
        """Read what is known of a layer that is there."""
        return LayerRecord.from_json((self._folder / "layers" / chain / _RECORD).read_text(encoding="utf-8"))

    def visible(self, chains: Sequence[str]) -> tuple[str, ...]:
        """Leave out what a layer above hides altogether. Lowest first."""
        for index in range(len(chains) - 1, 0, -1):
            if self.record(chains[index]).hides_all:
                return tuple(chains[index:])
        return tuple(chains)

    def roots(self, chains: Sequence[str]) -> tuple[Path, ...]:
        """Give the folders to start from, top first: for root the layers, for others the one tree of `build_tree`."""
        if not chains:
            return (self._folder / _EMPTY,)
        if self._as_root or len(chains) == 1:
            return tuple(self._root(chain) for chain in reversed(chains))
        return (self._folder / "trees" / chains[-1] / _ROOT,)

    def build_tree(self, chains: Sequence[str], workspace: Workspace) -> None:
        """As an ordinary user, make one tree of several layers, unless it is there."""
        if self._as_root or len(chains) < 2:
            return
        target = self._folder / "trees" / chains[-1]
        workspace.pin(chains[-1])
        with lock_file(self._folder / "locks" / f"tree-{chains[-1]}"):
            if target.is_dir():
                return
            draft = workspace.new_folder()
            (draft / _ROOT).mkdir(mode=0o755)
            for chain in chains:
                check_space(draft, self._limits)
                merge_layer(self._root(chain), self.record(chain), draft / _ROOT)
            self._sync(draft)
            draft.rename(target)

    def _root(self, chain: str) -> Path:
        return self._folder / "layers" / chain / _ROOT

    def _unpack(
        self, source: LayerSource, below: Sequence[str], workspace: Workspace
    ) -> tuple[Path, LayerRecord]:
        """Unpack into the workspace, checking digest, size and diff id. Gives the folder to publish."""
        check_space(self._folder, self._limits, needed_bytes=source.size or 0)
        draft = workspace.new_folder()
        (draft / _ROOT).mkdir(mode=0o755)
        lowers = [self._root(chain) for chain in reversed(below)]
        with source.open() as file:
            packed = HashingSource(file, limit=source.size)
            unpacked = open_unpacked(file, packed, self._limits)
            hashed = HashingSource(unpacked)
            layer = unpack_layer(
                TarReader(hashed), draft / _ROOT, lowers, self._limits, as_root=self._as_root
            )
            # What follows the end of the archive belongs to the digests.
            for drained in (hashed, packed):
                while drained.read():
                    pass
        _check("digest", source.digest, packed.digest)
        _check("size", source.size, packed.size)
        _check("diff id", source.diff_id, hashed.digest)
        record = LayerRecord.of(hashed.digest, layer)
        (draft / _RECORD).write_text(record.to_json(), encoding="utf-8")
        return draft, record

    def _publish(self, draft: Path, record: LayerRecord, below: Sequence[str], workspace: Workspace) -> str:
        chain = _chain_id(below, record.diff_id)
        workspace.pin(chain)
        # Nothing of a layer may be missing after a loss of power: it is looked at by its name alone from here on.
        self._sync(draft)
        try:
            draft.rename(self._folder / "layers" / chain)
        except OSError:
            if not self.has(chain):
                raise
        return chain

    def _sync(self, folder: Path) -> None:
        """Write all of the folder's file system to disk: one call for many files."""
        if not self._is_durable:
            return
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if ctypes.CDLL(None, use_errno=True).syncfs(handle) != 0:
                raise OSError(ctypes.get_errno(), f"syncfs {folder}")
        finally:
            os.close(handle)


def _chain_id(below: Sequence[str], diff_id: str) -> str:
    """Give the id, as hexadecimal digits."""
    own = diff_id.removeprefix("sha256:")
    return hashlib.sha256(f"sha256:{below[-1]} sha256:{own}".encode()).hexdigest() if below else own


def _check(what: str, expected: object, found: object) -> None:
    if expected is not None and expected != found:
        raise BadImageError(
            f"a layer has the {what} {found}, not {expected} as the image says: it is damaged"
        )
