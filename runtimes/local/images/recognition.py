"""Tells archives of images from tars of a root file system, by the documents in them."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from core.errors import BadImageError
from runtimes.local.images.blobs import MAX_FILES, Blobs, TarBlobs, plain_name, read_small
from runtimes.local.images.limits import ImageLimits
from runtimes.local.images.tar_stream import TarKind, TarReader

__all__ = ["is_image", "is_layout", "may_be_image"]

_ARCHIVE_NAMES = re.compile(
    r"(|blobs(/.*)?|[0-9a-f]{64}(/.*|\.json|\.tar)?|sha256:.*|oci-layout|(index|manifest)\.json|repositories)"
)
"""All that engines write. An archive of nothing else is one of an image, however damaged its documents are."""

_ROOT_FOLDERS = frozenset(
    "bin boot dev etc home lib lib32 lib64 media mnt opt proc root run sbin srv sys tmp usr var".split()  # noqa: SIM905
)
"""What a root file system begins with, and no archive of an image holds."""


def may_be_image(reader: TarReader, limits: ImageLimits, *, is_compressed: bool) -> bool:
    """Say whether `is_image` is worth asking. reader: at the start of the archive.

    What is written last in most archives decides, so all headers are read, as many as an image's archive may have.
    Of a compressed one all content has to be unpacked for that: there the first folder of a root file system decides.
    """
    documents: set[str] = set()
    names: set[str] = set()
    is_known_form = True
    for count, entry in enumerate(reader):
        name = plain_name(entry.name)
        if name in _DOCUMENTS:
            # One that is written twice, or is a link, is only read later: hostile archives could hold thousands.
            is_deferred = name in names or entry.kind is not TarKind.FILE
            if is_deferred or _DOCUMENTS[name](_content(reader, limits)):
                documents.add(name)
            names.add(name)
        if "manifest.json" in documents or {"oci-layout", "index.json"} <= documents:
            return True
        is_root = is_compressed and name.partition("/")[0] in _ROOT_FOLDERS
        if is_root or count >= MAX_FILES:
            return False
        is_known_form = is_known_form and _is_archive_name(name)
    return is_known_form and bool(names & {"manifest.json", "index.json"})


def is_image(blobs: TarBlobs, limits: ImageLimits) -> bool:
    """Say whether an archive is one of an image: a root file system may hold documents of such names."""
    if is_layout(blobs, limits) or all(map(_is_archive_name, blobs.names())):
        return True
    listing = _document(blobs, "manifest.json", limits)
    if not _is_listing(listing):
        return False
    # One is enough: of a damaged archive the missing one is named later.
    return any(blobs.has(name) for image in listing for name in (image["Config"], *(image["Layers"] or ())))


def is_layout(blobs: Blobs, limits: ImageLimits) -> bool:
    """Say whether the two documents of an OCI layout are there, and are such."""
    return all(_DOCUMENTS[name](_document(blobs, name, limits)) for name in ("oci-layout", "index.json"))


def _is_archive_name(name: str) -> bool:
    return _ARCHIVE_NAMES.fullmatch("" if name == "." else name) is not None


def _is_listing(value: Any) -> bool:
    """Whether it is what `docker save` and those who imitate it write: images with the names of their parts."""
    return isinstance(value, list) and bool(value) and all(map(_is_listed_image, value))


def _is_listed_image(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("Config"), str) or "Layers" not in value:
        return False
    layers = value["Layers"]
    return layers is None or (isinstance(layers, list) and all(isinstance(layer, str) for layer in layers))


def _is_version(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("imageLayoutVersion"), str)


def _is_index(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("manifests"), list)


_DOCUMENTS: Mapping[str, Callable[[Any], bool]] = {
    "manifest.json": _is_listing,
    "oci-layout": _is_version,
    "index.json": _is_index,
}


def _document(blobs: Blobs, name: str, limits: ImageLimits) -> Any:
    """Read a document; None for one that is missing, too large, or none."""
    if not blobs.has(name):
        return None
    try:
        return _parsed(read_small(blobs, name, limits.max_json_bytes))
    except BadImageError:
        return None


def _content(reader: TarReader, limits: ImageLimits) -> Any:
    """Read the document at hand; None for one that is too large, or none."""
    data = b""
    for piece in reader.content():
        data += piece
        if len(data) > limits.max_json_bytes:
            return None
    return _parsed(data)


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
