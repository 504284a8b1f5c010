"""What the store writes down, and the values it gives out."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from runtimes.local.images.config import ImageConfig
from runtimes.local.images.confined import PathParts
from runtimes.local.images.unpacking import UnpackedLayer

__all__ = ["ImageRecord", "LayerRecord", "StoredImage", "write_durably"]


@dataclass(frozen=True, slots=True)
class StoredImage:
    """An image, ready to be started from.

    name: as people write it. digest: of its config, `sha256:<hex>`, which stands for all of its content.
    layers: folders, top first, as overlay wants them; never empty. As an ordinary user it is one, with all in it.
    size_bytes: of its files, unpacked. created_at: when it came into the store, aware UTC.
    """

    name: str
    digest: str
    layers: tuple[Path, ...]
    config: ImageConfig
    size_bytes: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class ImageRecord:
    """A name in the store. full_name: see `ImageName.full`. chains: ids of its layers, lowest first.

    manifest_digest: what a registry knows it by; empty if it came from a file.
    """

    full_name: str
    name: str
    digest: str
    manifest_digest: str
    chains: tuple[str, ...]
    config: ImageConfig
    size_bytes: int
    created_at: datetime

    def to_json(self) -> str:
        """Text, read back by `from_json`."""
        return json.dumps(
            {
                "full_name": self.full_name,
                "name": self.name,
                "digest": self.digest,
                "manifest_digest": self.manifest_digest,
                "chains": self.chains,
                "config": self.config.to_json(),
                "size_bytes": self.size_bytes,
                "created_at": self.created_at.isoformat(),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` gave. Raises ValueError, KeyError, TypeError for anything else."""
        value = json.loads(text)
        return cls(
            **{
                **value,
                "chains": tuple(value["chains"]),
                "config": ImageConfig.from_json(value["config"]),
                "created_at": datetime.fromisoformat(value["created_at"]),
            }
        )


@dataclass(frozen=True)
class LayerRecord:
    """What is known of an unpacked layer. hidden, opaque: see `Whiteouts`."""

    diff_id: str
    size_bytes: int
    dropped: int
    hidden: frozenset[PathParts]
    opaque: frozenset[PathParts]

    @classmethod
    def of(cls, diff_id: str, layer: UnpackedLayer) -> Self:
        """Describe what was just unpacked."""
        whiteouts = layer.whiteouts
        return cls(
            diff_id, layer.size_bytes, layer.dropped, frozenset(whiteouts.hidden), frozenset(whiteouts.opaque)
        )

    @property
    def hides_all(self) -> bool:
        """True if nothing of the layers below is left."""
        return () in self.opaque

    def hidden_in(self, folder: PathParts) -> list[bytes]:
        """Give the names that are hidden directly in a folder."""
        return self._by_folder.get(folder, [])

    @cached_property
    def _by_folder(self) -> dict[PathParts, list[bytes]]:
        names: dict[PathParts, list[bytes]] = {}
        for path in self.hidden:
            names.setdefault(path[:-1], []).append(path[-1])
        return names

    def to_json(self) -> str:
        """Text, read back by `from_json`."""
        return json.dumps(
            {
                "diff_id": self.diff_id,
                "size_bytes": self.size_bytes,
                "dropped": self.dropped,
                "hidden": _to_text(self.hidden),
                "opaque": _to_text(self.opaque),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` gave."""
        value: Mapping[str, Any] = json.loads(text)
        return cls(
            value["diff_id"],
            value["size_bytes"],
            value["dropped"],
            _from_text(value["hidden"]),
            _from_text(value["opaque"]),
        )


def write_durably(path: Path, text: str) -> None:
    """Write a file whole or not at all, a loss of power included."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _to_text(paths: frozenset[PathParts]) -> list[str]:
    return sorted(os.fsdecode(b"/".join(path)) for path in paths)


def _from_text(paths: Sequence[str]) -> frozenset[PathParts]:
    return frozenset(tuple(os.fsencode(path).split(b"/")) if path else () for path in paths)
