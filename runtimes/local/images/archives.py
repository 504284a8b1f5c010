"""Recognises what somebody hands in as an image by what is in it, not by its name.

An OCI layout (a folder or a tar), what `docker save` and `podman save` write, or a tar of a root file system.
"""

import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from core.errors import BadImageError
from runtimes.local.images.blobs import Blobs, FolderBlobs, TarBlobs, read_small, seeking_reader
from runtimes.local.images.decompression import HashingSource, UnpackedSource, open_unpacked
from runtimes.local.images.layers import LayerSource
from runtimes.local.images.limits import ImageLimits
from runtimes.local.images.manifests import (
    Descriptor,
    check_document,
    find_manifest,
    parse_index,
    read_json,
)
from runtimes.local.images.platforms import Platform
from runtimes.local.images.recognition import is_image, is_layout, may_be_image
from runtimes.local.images.tar_stream import TarReader
from runtimes.local.images.unpacking import check_space
from runtimes.local.images.workspace import Workspace

__all__ = ["ImageSource", "open_archive"]

_NAME_ANNOTATIONS = ("io.containerd.image.name", "org.opencontainers.image.ref.name")


@dataclass(frozen=True, slots=True)
class ImageSource:
    """An image to be stored. config: its document; None for a mere root file system. layers: lowest first.

    name: what it calls itself, if it does. manifest_digest: empty if there is no manifest.
    """

    config: bytes | None
    layers: Sequence[LayerSource]
    name: str | None = None
    manifest_digest: str = ""


@contextmanager
def open_archive(
    path: Path, workspace: Workspace, limits: ImageLimits, *, name: str | None
) -> Iterator[ImageSource]:
    """Open a file or folder as an image, for as long as the block runs.

    name: chooses among several images of one archive. Raises BadImageError, also for what is no image.
    """
    if _is_folder(path):
        yield _read_image(FolderBlobs(path), limits, name)
        return
    try:
        file = path.open("rb")
    except OSError as error:
        raise BadImageError(f"{path} cannot be read: {error.strerror}") from error
    with file, _as_blobs(file, workspace, limits) as blobs:
        if blobs is not None and is_image(blobs, limits):
            yield _read_image(blobs, limits, name)
        else:
            yield ImageSource(None, [LayerSource(open=lambda: _rewound(file))])


def _is_folder(path: Path) -> bool:
    """Tell a folder from a file. Raises BadImageError for what is neither."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        raise BadImageError(f"{path}: no such file or folder") from error
    except OSError as error:
        raise BadImageError(f"{path} cannot be read: {error.strerror}") from error
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        raise BadImageError(f"{path} is neither a file nor a folder")
    return stat.S_ISDIR(mode)


@contextmanager
def _as_blobs(file: BinaryIO, workspace: Workspace, limits: ImageLimits) -> Iterator[TarBlobs | None]:
    """Give the files of a tar that looks like the archive of an image, unpacked if need be; else None."""
    unpacked = open_unpacked(file, HashingSource(file), limits)
    is_compressed = unpacked.is_compressed
    reader = TarReader(unpacked) if is_compressed else seeking_reader(file)
    if not may_be_image(reader, limits, is_compressed=is_compressed):
        yield None
    elif not is_compressed:
        yield TarBlobs(file)
    else:
        file.seek(0)
        with workspace.new_file() as spooled:
            _spool(open_unpacked(file, HashingSource(file), limits), spooled, limits)
            yield TarBlobs(spooled)


@contextmanager
def _rewound(file: BinaryIO) -> Iterator[BinaryIO]:
    file.seek(0)
    yield file


def _spool(source: UnpackedSource, target: BinaryIO, limits: ImageLimits) -> None:
    while data := source.read(1 << 20):
        if source.size % (64 << 20) < len(data):
            check_space(target.fileno(), limits)
        target.write(data)
    target.flush()


def _read_image(blobs: Blobs, limits: ImageLimits, name: str | None) -> ImageSource:
    has_layout = blobs.has("oci-layout") and blobs.has("index.json")
    # One that is damaged is read all the same if there is nothing else: the error says what is wrong with it.
    if has_layout and (is_layout(blobs, limits) or not blobs.has("manifest.json")):
        return _read_oci(blobs, limits, name)
    if blobs.has("manifest.json"):
        return _read_docker(blobs, limits, name)
    raise BadImageError("there is neither an OCI layout nor an archive of `docker save` in it")


def _read_oci(blobs: Blobs, limits: ImageLimits, name: str | None) -> ImageSource:
    def fetch(descriptor: Descriptor) -> bytes:
        return read_small(blobs, _blob_name(descriptor), limits.max_json_bytes)

    def open_layer(descriptor: Descriptor) -> LayerSource:
        blob = _blob_name(descriptor)
        return LayerSource(open=lambda: blobs.open(blob), digest=descriptor.digest, size=descriptor.size)

    index = read_small(blobs, "index.json", limits.max_json_bytes)
    entries = [entry for entry in parse_index(index) if not entry.platform or entry.platform.os != "unknown"]
    names = [_annotated_name(entry) for entry in entries]
    platform = Platform.of_this_machine()
    entry = entries[0] if entries else None
    if len(set(names)) > 1:
        entry = entries[_choose_by_name(names, name)]
        document = check_document(fetch(entry), entry, "a manifest")
    else:
        document = index
    manifest = find_manifest(document, fetch, platform, limits)
    config = check_document(fetch(manifest.config), manifest.config, "the config")
    return ImageSource(
        config,
        [open_layer(layer) for layer in manifest.layers],
        name=_whole_name(entry),
        manifest_digest=manifest.digest,
    )


def _read_docker(blobs: Blobs, limits: ImageLimits, name: str | None) -> ImageSource:
    listing = read_json(
        b'{"images": %s}' % read_small(blobs, "manifest.json", limits.max_json_bytes), "manifest.json"
    )
    images = listing["images"]
    try:
        tags: list[str | None] = [(image.get("RepoTags") or [None])[0] for image in images]
        image = images[0 if len(images) == 1 else _choose_by_name(tags, name)]
        config, layers = str(image["Config"]), [str(layer) for layer in image["Layers"] or ()]
    except (TypeError, KeyError, AttributeError) as error:
        raise BadImageError("manifest.json is not what `docker save` writes") from error
    if len(layers) > limits.max_layers:
        raise BadImageError(f"the image has {len(layers)} layers, more than {limits.max_layers}")
    return ImageSource(
        read_small(blobs, config, limits.max_json_bytes),
        [_layer_at(blobs, layer) for layer in layers],
        name=tags[images.index(image)],
    )


def _layer_at(blobs: Blobs, name: str) -> LayerSource:
    return LayerSource(open=lambda: blobs.open(name))


def _choose_by_name(names: Sequence[str | None], wanted: str | None) -> int:
    """Find the image meant among several. Raises BadImageError that lists them."""
    if wanted is not None and wanted in names:
        return names.index(wanted)
    known = ", ".join(sorted(name for name in names if name)) or "none of which has a name"
    raise BadImageError(f"there are {len(names)} images in it, say by name which one: {known}")


def _annotated_name(entry: Descriptor) -> str | None:
    annotations: dict[str, Any] = dict(entry.annotations or {})
    return next((annotations[key] for key in _NAME_ANNOTATIONS if key in annotations), None)


def _whole_name(entry: Descriptor | None) -> str | None:
    """Give the name of an image unless it is a tag alone, as many layouts have it."""
    name = _annotated_name(entry) if entry else None
    return name if name and (":" in name or "/" in name) else None


def _blob_name(descriptor: Descriptor) -> str:
    return f"blobs/sha256/{descriptor.digest.removeprefix('sha256:')}"
