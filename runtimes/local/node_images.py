"""What sandboxes of this node can start from: the host, stored images, snapshots; and the disks they write to."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from core.errors import ImageNotFoundError, SpecInvalidError
from runtimes.base import SandboxSpec
from runtimes.local.config import LocalConfig
from runtimes.local.host_image import HOST_IMAGE
from runtimes.local.images import ImageConfig, ImageStore, StoredImage
from runtimes.local.roots import HOST_AS_ROOT, HOST_ROOT, Root, root_of_image
from runtimes.local.snapshots import SNAPSHOT_PREFIX, SnapshotRecord, Snapshots, root_of_snapshot
from runtimes.local.zygote.disks import DISKS

__all__ = ["Base", "Live", "NodeImages"]

_SNAPSHOT_HOLDER: Final = "snapshot"
"""Before the name, in the leases of snapshots; names of sandboxes have no dot."""

_ADVICE: Final = (
    "`sandmill-server image pull NAME` (in a clone `./run image pull NAME`) on this node fetches others"
)


@dataclass(frozen=True, slots=True)
class Base:
    """What a sandbox starts from. image: the stored one that is at the bottom; None: the host.

    root: all layers. written: how many of them, from the top, are no image's: a sandbox or a snapshot wrote them.
    """

    root: Root
    image: StoredImage | None = None
    written: int = 0

    @property
    def written_layers(self) -> list[tuple[str, int]]:
        """Those that are no image's, top first, each with the id on disk that is user 0."""
        return list(zip(self.root.layers, self.root.owners, strict=True))[: self.written]


@dataclass(frozen=True, slots=True)
class Live:
    """A sandbox this process has started. disk, generation: see `zygote.orders.Disk`."""

    spec: SandboxSpec
    base: Base
    disk: str
    generation: int = 0

    @property
    def entrypoint(self) -> tuple[str, ...]:
        """What to start in it; empty: nothing. A fork's original starts it anew, with all other processes gone."""
        if self.spec.entrypoint == "image":
            config = self.base.root.config
            return () if config is None else (*config.entrypoint, *config.cmd)
        return tuple(self.spec.entrypoint or ())

    def stands_on(self, disk: str) -> bool:
        """Whether what was written to a disk is a layer of this one."""
        return any(f"/{DISKS}/{disk}/" in layer for layer, _ in self.base.written_layers)


class NodeImages:
    """Images, snapshots and disk files of one node."""

    def __init__(self, config: LocalConfig, *, as_root: bool) -> None:
        """Touch nothing yet."""
        self._as_root = as_root
        self.store = ImageStore(config.state_dir / "images", as_root=as_root)
        self._snapshots = Snapshots(config.state_dir / "snapshots")

    def base_of(self, name: str, *, is_root: bool = False) -> Base:
        """Find what a job asks for. is_root: it is root in `host`. Raises ImageNotFoundError, BadImageError."""
        if name == HOST_IMAGE:
            return Base(HOST_AS_ROOT if is_root else HOST_ROOT)
        if name.startswith(SNAPSHOT_PREFIX):
            record, own = self._snapshots.find(name.removeprefix(SNAPSHOT_PREFIX))
            return Base(root_of_snapshot(record, own), _image_below(record), len(own))
        try:
            image = self.store.find(name)
        except ImageNotFoundError as error:
            message = f"{error}; besides there is {HOST_IMAGE!r}; {_ADVICE}"
            raise ImageNotFoundError(message) from error
        except SpecInvalidError as error:
            raise ImageNotFoundError(f"{error}; besides there is {HOST_IMAGE!r}") from error
        return Base(root_of_image(image), image)

    def lease(self, base: Base, sandbox: str) -> None:
        """Keep what a sandbox stands on: the layers of its image, and those of snapshots. Raises ImageNotFoundError."""
        if base.image is not None:
            self.store.lease(base.image, sandbox)
        snapshots = self._snapshots.names_in([layer for layer, _ in base.written_layers])
        if snapshots:
            self._snapshots.lease(snapshots, sandbox)

    def release(self, sandbox: str) -> None:
        """Give a lease back. Idempotent."""
        self.store.release(sandbox)
        self._snapshots.release(sandbox)

    def save_snapshot(self, name: str, base: Base, layers: Sequence[tuple[Path, int]]) -> None:
        """Copy what was written, top first, each layer with the id on disk that is user 0; see `Snapshots.save`."""
        root = base.root
        image = HOST_IMAGE if base.image is None else base.image.digest
        below = root.layers[base.written :]
        record = SnapshotRecord(image, below, root.config, root.uid, root.gid, root.home)
        with self._snapshots.held(name):
            if name not in self._snapshots.list() and base.image is not None:
                self.store.lease(base.image, _holder(name))
            try:
                self._snapshots.save(name, record, layers, as_root=self._as_root)
            finally:
                self._release_unless_kept(name)

    def snapshot_bytes(self, name: str) -> int | None:
        """Room that a snapshot takes beside the image below it."""
        return self._snapshots.size_bytes(name)

    def remove_snapshot(self, name: str) -> None:
        """Delete it, and free what it stood on."""
        with self._snapshots.held(name):
            self._snapshots.remove(name)
            self._release_unless_kept(name)

    def _release_unless_kept(self, name: str) -> None:
        if name not in self._snapshots.list():
            self.store.release(_holder(name))

    def sweep(self, sandboxes: Collection[str]) -> None:
        """Delete what those left who died while they made or removed a snapshot.

        Gives back the leases of all but these sandboxes and of snapshots there are, or are being made, and frees what
        nothing uses.
        """
        self._snapshots.sweep(sandboxes)
        # In this order: a snapshot that is being made is there before its maker lets go of it.
        holders = self.store.holders()
        under_way = {holder for holder in holders if self._is_under_way(holder)}
        known = {*sandboxes, *under_way, *(_holder(name) for name in self._snapshots.list())}
        lapsed = [holder for holder in holders if holder not in known]
        for holder in lapsed:
            self.store.release(holder)
        if lapsed:
            self.store.collect()

    def _is_under_way(self, holder: str) -> bool:
        kind, _, name = holder.partition(".")
        return kind == _SNAPSHOT_HOLDER and self._snapshots.is_held(name)

    def snapshots(self) -> list[str]:
        """All names."""
        return self._snapshots.list()


def _image_below(record: SnapshotRecord) -> StoredImage | None:
    """Give the image as a lease needs it; the store may have no name for it any more."""
    if record.image == HOST_IMAGE:
        return None
    layers = tuple(Path(layer) for layer in record.below)
    config = record.config or ImageConfig()
    return StoredImage(record.image, record.image, layers, config, 0, datetime.now(UTC))


def _holder(snapshot: str) -> str:
    return f"{_SNAPSHOT_HOLDER}.{snapshot}"
