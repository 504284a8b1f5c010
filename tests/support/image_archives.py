"""Image archives for tests, made entry by entry, so that they can also be what no builder would make."""

import gzip
import hashlib
import io
import json
import lzma
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = [
    "OCI_CONFIG",
    "OCI_INDEX",
    "OCI_MANIFEST",
    "Layout",
    "compress",
    "device",
    "docker_archive",
    "file",
    "folder",
    "hardlink",
    "pack",
    "symlink",
    "tar",
]

Entry = tuple[tarfile.TarInfo, bytes]

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"


def file(name: str, data: bytes = b"", *, mode: int = 0o644, uid: int = 0, gid: int = 0, **pax: str) -> Entry:
    return _entry(name, tarfile.REGTYPE, data, mode=mode, uid=uid, gid=gid, pax_headers=pax)


def folder(name: str, *, mode: int = 0o755, uid: int = 0, gid: int = 0, mtime: int = 0) -> Entry:
    return _entry(name, tarfile.DIRTYPE, mode=mode, uid=uid, gid=gid, mtime=mtime)


def symlink(name: str, target: str) -> Entry:
    return _entry(name, tarfile.SYMTYPE, linkname=target)


def hardlink(name: str, target: str) -> Entry:
    return _entry(name, tarfile.LNKTYPE, linkname=target)


def device(name: str, kind: bytes = tarfile.CHRTYPE, major: int = 1, minor: int = 3) -> Entry:
    return _entry(name, kind, devmajor=major, devminor=minor, mode=0o666)


def tar(*entries: Entry) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for info, data in entries:
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def compress(data: bytes, kind: str) -> bytes:
    match kind:
        case "gzip":
            return gzip.compress(data, 1, mtime=0)
        case "xz":
            return lzma.compress(data, preset=0)
        case "zstd":
            return zstd.compress(data, options={zstd.CompressionParameter.checksum_flag: 1})
    return data


@dataclass
class Layout:
    """An OCI layout in a folder. The documents it is made of can be spoilt between the steps."""

    path: Path

    def blob(self, data: bytes, media_type: str, **more: Any) -> dict[str, Any]:
        """Store a blob and describe it."""
        digest = hashlib.sha256(data).hexdigest()
        blobs = self.path / "blobs" / "sha256"
        blobs.mkdir(parents=True, exist_ok=True)
        (blobs / digest).write_bytes(data)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data), **more}

    def manifest(
        self,
        *layers: bytes,
        config: Mapping[str, Any] | None = None,
        kind: str = "gzip",
        architecture: str = "amd64",
        diff_ids: Sequence[str] | None = None,
    ) -> dict[str, Any]:
        """Store layers, config and manifest; gives the manifest's descriptor. layers: tars, lowest first."""
        hashes = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
        document = {
            "architecture": architecture,
            "os": "linux",
            "config": dict(config or {}),
            "rootfs": {"type": "layers", "diff_ids": list(hashes if diff_ids is None else diff_ids)},
        }
        suffix = "" if kind == "none" else f"+{kind}"
        value = {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": self.blob(json.dumps(document).encode(), OCI_CONFIG),
            "layers": [self.blob(compress(layer, kind), _LAYER + suffix) for layer in layers],
        }
        return self.blob(json.dumps(value).encode(), OCI_MANIFEST)

    def index(self, *manifests: Mapping[str, Any], name: str | None = None) -> Path:
        """Write the index and give the folder. name: of the only image."""
        entries = [dict(manifest) for manifest in manifests]
        if name:
            entries[0]["annotations"] = {"org.opencontainers.image.ref.name": name}
        value = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries}
        (self.path / "index.json").write_text(json.dumps(value))
        (self.path / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        return self.path


def pack(tree: Path) -> bytes:
    """Make a tar of a folder's content, with names from there on."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(tree, arcname=".")
    return buffer.getvalue()


def docker_archive(
    images: Mapping[str, Sequence[bytes]], *, config: Mapping[str, Any] | None = None
) -> bytes:
    """Make what `docker save` of engines before 25 writes. images: layers by name."""
    entries: list[Entry] = []
    listing = []
    for name, layers in images.items():
        hashes = [hashlib.sha256(layer).hexdigest() for layer in layers]
        document = {
            "architecture": "amd64",
            "os": "linux",
            "config": dict(config or {}),
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{value}" for value in hashes]},
        }
        data = json.dumps(document).encode()
        config_name = f"{hashlib.sha256(data).hexdigest()}.json"
        entries.append(file(config_name, data))
        for value, layer in zip(hashes, layers, strict=True):
            entries.append(file(f"{value}/layer.tar", layer))
        paths = [f"{value}/layer.tar" for value in hashes]
        listing.append({"Config": config_name, "RepoTags": [name], "Layers": paths})
    return tar(*entries, file("manifest.json", json.dumps(listing).encode()))


def _entry(name: str, kind: bytes, data: bytes = b"", **fields: Any) -> Entry:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(data)
    for key, value in fields.items():
        setattr(info, key, value)
    return info, data
