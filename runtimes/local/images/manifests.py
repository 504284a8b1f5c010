"""What an image consists of, in JSON: the documents of OCI and Docker differ in their media types only."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from core.errors import BadImageError, PlatformNotFoundError
from runtimes.local.images.limits import ImageLimits
from runtimes.local.images.names import DIGEST
from runtimes.local.images.platforms import Platform

__all__ = [
    "INDEX_TYPES",
    "MANIFEST_TYPES",
    "Descriptor",
    "Manifest",
    "check_document",
    "find_manifest",
    "parse_index",
    "read_json",
]

MANIFEST_TYPES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
INDEX_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_CONFIG_TYPES = (
    "application/vnd.oci.image.config.v1+json",
    "application/vnd.docker.container.image.v1+json",
)
_LAYER_PREFIXES = (
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.docker.image.rootfs.diff.tar",
)
_MAX_INDEX_DEPTH = 3


class _Wire(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)


class _WirePlatform(_Wire):
    os: str = ""
    architecture: str = ""
    variant: str = ""


_Model = TypeVar("_Model", bound=_Wire)


class Descriptor(_Wire):
    """Points to a document or a layer by what is in it. size: bytes."""

    digest: str = Field(pattern=rf"^{DIGEST.pattern}$")
    size: int = Field(ge=0)
    media_type: str = Field(default="", alias="mediaType")
    platform: _WirePlatform | None = None
    annotations: dict[str, str] | None = None


class _WireManifest(_Wire):
    config: Descriptor
    layers: list[Descriptor] | None = None


class _WireIndex(_Wire):
    manifests: list[Descriptor]


@dataclass(frozen=True, slots=True)
class Manifest:
    """One build of an image. digest: of the manifest itself. layers: lowest first."""

    digest: str
    config: Descriptor
    layers: tuple[Descriptor, ...]


def find_manifest(
    document: bytes, fetch: Callable[[Descriptor], bytes], platform: Platform, limits: ImageLimits
) -> Manifest:
    """Go from a manifest or an index to the manifest of a platform.

    fetch: gives a document that the index points to, of which digest and size are checked here. Raises BadImageError,
    PlatformNotFoundError, and what fetch raises.
    """
    for _ in range(_MAX_INDEX_DEPTH):
        value = read_json(document, "the manifest")
        if "manifests" not in value:
            return _to_manifest(value, document, limits)
        document = _checked(_choose(value, platform), fetch, limits)
    raise BadImageError("the image's index points to an index of indexes")


def _choose(index: dict[str, Any], platform: Platform) -> Descriptor:
    """Give the entry of an index for a platform. Raises PlatformNotFoundError that names those there are."""
    # Attestations stand in indexes under a platform that no machine has.
    entries = [
        entry
        for entry in _parse(_WireIndex, index, "the index").manifests
        if entry.platform is None or entry.platform.os != "unknown"
    ]
    if len(entries) == 1 and entries[0].platform is None:
        return entries[0]
    builds = [
        Platform(entry.platform.os, entry.platform.architecture, entry.platform.variant)
        if entry.platform
        else Platform("", "")
        for entry in entries
    ]
    found = platform.choose(builds)
    if found is None:
        known = ", ".join(sorted({str(build) for build in builds if build.os})) or "none"
        raise PlatformNotFoundError(f"the image is not made for {platform}; it is for: {known}")
    return entries[found]


def parse_index(document: bytes) -> list[Descriptor]:
    """Read the entries of an index. Raises BadImageError."""
    return _parse(_WireIndex, read_json(document, "the index"), "the index").manifests


def read_json(document: bytes, what: str) -> dict[str, Any]:
    """Read an object. Raises BadImageError."""
    try:
        value = json.loads(document)
    except (ValueError, RecursionError) as error:
        raise BadImageError(f"{what} is not JSON") from error
    if not isinstance(value, dict):
        raise BadImageError(f"{what} is not a JSON object")
    return value


def check_document(document: bytes, descriptor: Descriptor, what: str) -> bytes:
    """Give the document back if it is the one the descriptor means. Raises BadImageError."""
    digest = f"sha256:{hashlib.sha256(document).hexdigest()}"
    if digest != descriptor.digest:
        raise BadImageError(f"{what} has the digest {digest}, not {descriptor.digest}: it is damaged")
    return document


def _checked(descriptor: Descriptor, fetch: Callable[[Descriptor], bytes], limits: ImageLimits) -> bytes:
    if descriptor.size > limits.max_json_bytes:
        raise BadImageError(f"a manifest of {descriptor.size} bytes is larger than {limits.max_json_bytes}")
    return check_document(fetch(descriptor), descriptor, "a manifest")


def _to_manifest(value: dict[str, Any], document: bytes, limits: ImageLimits) -> Manifest:
    if "fsLayers" in value or value.get("schemaVersion") == 1:
        raise BadImageError("the image has a manifest of version 1, from before 2017: build it anew")
    wire = _parse(_WireManifest, value, "the manifest")
    if wire.config.media_type and wire.config.media_type not in _CONFIG_TYPES:
        raise BadImageError(f"it is no container image but a {wire.config.media_type}")
    layers = wire.layers or []
    if len(layers) > limits.max_layers:
        raise BadImageError(f"the image has {len(layers)} layers, more than {limits.max_layers}")
    for layer in layers:
        if layer.media_type and not layer.media_type.startswith(_LAYER_PREFIXES):
            raise BadImageError(f"a layer is a {layer.media_type}, not a tar archive with its digest")
    if sum(layer.size for layer in layers) > limits.max_image_bytes:
        raise BadImageError(f"the layers are larger than {limits.max_image_bytes} bytes")
    return Manifest(f"sha256:{hashlib.sha256(document).hexdigest()}", wire.config, tuple(layers))


def _parse(model: type[_Model], value: dict[str, Any], what: str) -> _Model:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BadImageError(f"{what} of the image: {where}: {first['msg']}") from error
