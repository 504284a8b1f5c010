"""The image store of a node: a folder that several processes use at once."""

import errno
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from core.errors import (
    BadImageError,
    ImageNotFoundError,
    ImageStoreFullError,
    RuntimeUnavailableError,
    SpecInvalidError,
)
from runtimes.local.images.archives import ImageSource, open_archive
from runtimes.local.images.catalogue import Catalogue
from runtimes.local.images.config import ImageConfig, ImageFacts
from runtimes.local.images.credentials import Credentials, saved_credentials
from runtimes.local.images.layers import LayerStore
from runtimes.local.images.leases import Leases
from runtimes.local.images.limits import DEFAULT_LIMITS, ImageLimits
from runtimes.local.images.locking import lock_file, remove_free_lock
from runtimes.local.images.names import ImageName, check_free
from runtimes.local.images.platforms import Platform
from runtimes.local.images.progress import ProgressListener
from runtimes.local.images.records import ImageRecord, StoredImage, write_durably
from runtimes.local.images.workspace import Workspace, dead_workspaces, open_workspace, pinned

__all__ = ["ImageStore"]

_FOLDERS = ("images", "layers", "trees", "leases", "staging", "trash", "locks", "empty")
_SUFFIXES = re.compile(r"(\.(tar|tgz|txz|tzst|gz|xz|zst|oci))+$")


class ImageStore:
    """Images by name, made of layers that they share.

    Thread-safe, and safe with other processes on the same folder. Whoever dies in the middle of anything leaves
    nothing that is seen; `collect` clears away what is left of it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        as_root: bool,
        limits: ImageLimits = DEFAULT_LIMITS,
        docker_config: Path | None = None,
        is_durable: bool = True,
    ) -> None:
        """folder: made if missing, for its owner only: images hold set-user-id programs of other people.

        as_root: layers are kept apart with the owners of the image, for overlay mounted by root; else each image is
        one folder owned by this user. docker_config: Docker's `config.json` with saved credentials of registries.
        is_durable: layers reach the disk before they are seen, as a loss of power demands; False for stores that are
        thrown away.
        Touches nothing yet.
        """
        self._folder = folder
        self._as_root = as_root
        self._limits = limits
        self._docker_config = docker_config
        self._lock = folder / "lock"
        self._layers = LayerStore(folder, limits, as_root=as_root, is_durable=is_durable)
        self._catalogue = Catalogue(folder / "images")
        self._leases = Leases(folder / "leases")
        self._is_ready = False

    def import_archive(self, path: Path, *, name: str | None = None) -> StoredImage:
        """Store an image from an OCI layout, a `docker save` archive or the tar of a root file system.

        path: a file or a folder; tars may be compressed with gzip, zstd or xz. name: without it the archive's own, else
        that of the file; it also chooses among several images in one archive. An image that has the name loses it.
        Raises BadImageError, SpecInvalidError for a name that is none or reserved, ImageStoreFullError. A failure
        leaves nothing.
        """
        wanted = None if name is None else _parse_new_name(name)
        try:
            with (
                self._working() as workspace,
                open_archive(path, workspace, self._limits, name=name) as source,
            ):
                target = wanted or _parse_new_name(source.name or _name_of_file(path))
                return self._store(source, target, workspace)
        except BaseException:
            with suppress(OSError, RuntimeUnavailableError):
                self.collect()
            raise

    def pull(
        self,
        reference: str,
        *,
        username: str | None = None,
        password: str | None = None,
        platform: str | None = None,
        progress: ProgressListener = lambda _: None,
        timeout_seconds: float = 3600.0,
    ) -> StoredImage:
        """Store an image from its registry; layers that are here already are not fetched again.

        username and password: else what `docker login` saved is used, else none. platform: e.g. `linux/arm64`; else
        that of this machine. progress: is called in this thread. Layers that came whole before a failure are kept for
        the next attempt until `collect`.
        Raises SpecInvalidError, ImageNotFoundError, PlatformNotFoundError, BadImageError, ImageStoreFullError, and the
        kinds of RegistryError.
        """
        # The HTTP library takes longer to import than a sandbox to start, and most processes never pull.
        from runtimes.local.images.connection import RegistryConnection  # noqa: PLC0415
        from runtimes.local.images.pulling import find_remote  # noqa: PLC0415

        name = ImageName.parse(reference)
        check_free(name, field="reference")
        wanted = Platform.parse(platform) if platform else Platform.of_this_machine()
        connection = RegistryConnection(
            name,
            self._credentials(name, username, password),
            deadline=time.monotonic() + timeout_seconds,
        )
        with closing(connection), self._working() as workspace:
            source = find_remote(
                name, wanted, connection, workspace, limits=self._limits, on_progress=progress
            )
            return self._store(source, name, workspace)

    def find(self, name_or_digest: str) -> StoredImage:
        """Give an image by name, by its digest, or by `repository@sha256:...`.

        Raises ImageNotFoundError that says what there is, and SpecInvalidError for what is no name.
        """
        self._prepare()
        return self._to_image(self._catalogue.find(name_or_digest))

    def list(self) -> list[StoredImage]:
        """All images, by name."""
        self._prepare()
        return [self._to_image(record) for record in self._catalogue.all()]

    def remove(self, name_or_digest: str) -> None:
        """Forget a name, or all names of a digest, and free what no other image and no sandbox uses.

        Layers of a running sandbox stay until its lease is gone. Raises ImageNotFoundError.
        """
        self._prepare()
        with lock_file(self._lock):
            for full_name in self._catalogue.names_of(name_or_digest):
                self._catalogue.forget(full_name)
        self.collect()

    def lease(self, image: StoredImage, holder: str) -> None:
        """Keep the image's layers until `release`, whatever is removed meanwhile.

        holder: name of a sandbox; a second lease of it replaces the first. Raises ImageNotFoundError if the image was
        removed since it was found.
        """
        self._prepare()
        with lock_file(self._lock, shared=True):
            if not all(layer.is_dir() for layer in image.layers):
                raise ImageNotFoundError(
                    f"the image {image.name} was removed meanwhile, or is damaged: pull or import it"
                )
            self._leases.write(holder, {layer.parent.name for layer in image.layers})

    def release(self, holder: str) -> None:
        """Give a lease back. Idempotent; frees nothing by itself, see `collect`."""
        self._leases.drop(holder)

    def holders(self) -> Sequence[str]:
        """Who has a lease, whether it runs or not: whoever removes leftovers of sandboxes releases theirs."""
        return self._leases.holders()

    def collect(self) -> None:
        """Delete layers that neither an image nor a lease nor an import under way uses, and what dead imports left."""
        self._prepare()
        with lock_file(self._lock):
            used = pinned(self._folder / "staging") | self._leases.names()
            for record in self._catalogue.all():
                used.update(record.chains)
            unused = [
                entry
                for kind in ("layers", "trees")
                for entry in (self._folder / kind).iterdir()
                if entry.name not in used
            ]
            for entry in (*unused, *dead_workspaces(self._folder / "staging")):
                # A rename is quick and needs no space; what is in the trash is deleted by us or by the next one.
                entry.rename(self._folder / "trash" / f"{entry.name[:40]}.{os.urandom(8).hex()}")
        for entry in (self._folder / "trash").iterdir():
            shutil.rmtree(entry, ignore_errors=True)
        for path in (self._folder / "locks").iterdir():
            remove_free_lock(path)

    def _store(self, source: ImageSource, name: ImageName, workspace: Workspace) -> StoredImage:
        """Unpack what is missing and write down the name."""
        layers = list(source.layers)
        config = ImageConfig(architecture=str(Platform.of_this_machine()).removeprefix("linux/"))
        if source.config is not None:
            facts = ImageFacts.parse(source.config)
            if facts.os != "linux":
                raise BadImageError(f"the image is made for {facts.os}, not for linux")
            if len(facts.diff_ids) != len(layers):
                message = (
                    f"the image's config names {len(facts.diff_ids)} layers, yet there are {len(layers)}"
                )
                raise BadImageError(message)
            config = facts.config
            layers = [
                replace(layer, diff_id=diff_id) for layer, diff_id in zip(layers, facts.diff_ids, strict=True)
            ]
        chains: list[str] = []
        size = 0
        for layer in layers:
            chains.append(self._layers.add(layer, chains, workspace))
            size += self._layers.record(chains[-1]).size_bytes
            if size > self._limits.max_image_bytes:
                raise BadImageError(f"the image is larger than {self._limits.max_image_bytes} bytes unpacked")
        visible = self._layers.visible(chains)
        self._layers.build_tree(visible, workspace)
        record = ImageRecord(
            full_name=name.full,
            name=name.familiar,
            digest=_digest(source.config, chains),
            manifest_digest=source.manifest_digest,
            chains=visible,
            config=config,
            size_bytes=size,
            created_at=datetime.now(UTC),
        )
        former = self._catalogue.read(name)
        with lock_file(self._lock, shared=True):
            self._catalogue.write(record)
        if former is not None and former.digest != record.digest:
            self.collect()
        return self._to_image(record)

    def _credentials(self, name: ImageName, username: str | None, password: str | None) -> Credentials | None:
        if (username is None) != (password is None):
            raise SpecInvalidError("a user name and a password go together", field="username")
        if username is not None and password is not None:
            return Credentials(username, password)
        return saved_credentials(self._docker_config, name.registry) if self._docker_config else None

    def _to_image(self, record: ImageRecord) -> StoredImage:
        return StoredImage(
            name=record.name,
            digest=record.digest,
            layers=self._layers.roots(record.chains),
            config=record.config,
            size_bytes=record.size_bytes,
            created_at=record.created_at,
        )

    @contextmanager
    def _working(self) -> Iterator[Workspace]:
        """Give a workspace; what the disk refuses becomes an error of ours."""
        self._prepare()
        try:
            with open_workspace(self._folder / "staging", self._folder / "trash", self._lock) as workspace:
                yield workspace
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise ImageStoreFullError(free_bytes=0, needed_bytes=self._limits.reserve_bytes) from error
            raise RuntimeUnavailableError(f"the image store in {self._folder} failed: {error}") from error

    def _prepare(self) -> None:
        """Make the folders at the first use. Raises RuntimeUnavailableError where that is impossible."""
        if self._is_ready:
            return
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._folder.chmod(0o700)
            for name in _FOLDERS:
                (self._folder / name).mkdir(mode=0o755, exist_ok=True)
            self._check_kind()
        except OSError as error:
            message = f"the image store has no place in {self._folder}: {error.strerror}"
            raise RuntimeUnavailableError(message) from error
        self._is_ready = True

    def _check_kind(self) -> None:
        """Refuse a store made in the other way: its layers would be read wrongly."""
        path = self._folder / "kind.json"
        kind = {"version": 1, "as_root": self._as_root}
        with lock_file(self._lock):
            found = None
            if not path.exists():
                write_durably(path, json.dumps(kind))
            with suppress(ValueError):
                found = json.loads(path.read_text(encoding="utf-8"))
            if found != kind:
                message = (
                    f"the image store in {self._folder} was made by another release, or "
                    f"{'by an ordinary user' if self._as_root else 'by root'}: remove it, and import the images again"
                )
                raise RuntimeUnavailableError(message)


def _parse_new_name(text: str) -> ImageName:
    name = ImageName.parse(text)
    check_free(name, field="name")
    return replace(name, digest=None, tag=name.tag or "latest")


def _name_of_file(path: Path) -> str:
    """Make a name out of that of a file: `alpine-3.20.tar.gz` is `alpine-3.20`."""
    stem = _SUFFIXES.sub("", path.resolve().name.lower())
    return re.sub(r"[^a-z0-9]+", "-", stem).strip("-") or "image"


def _digest(config: bytes | None, chains: Sequence[str]) -> str:
    """Give the digest of an image; one without a config is known by its only layer."""
    return f"sha256:{chains[-1] if config is None else hashlib.sha256(config).hexdigest()}"
