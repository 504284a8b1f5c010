"""What a later process of the node has to know of a sandbox to copy its files: kept in a file beside its record."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from runtimes.base import ResourceLimits, SandboxSpec
from runtimes.local.images import ImageConfig, StoredImage
from runtimes.local.node_images import Base, Live
from runtimes.local.roots import Root

__all__ = ["from_text", "to_text"]

_LEFT_OUT = frozenset({"image_auth", "volumes", "limits"})
"""Of a spec: secrets, what local sandboxes do not have, and what is written in another way."""


def to_text(live: Live) -> str:
    """Write it down. Registry credentials are left out: a sandbox that is there needs no pull."""
    spec, root = live.spec, live.base.root
    plain = {name: getattr(spec, name) for name in SandboxSpec.__dataclass_fields__ if name not in _LEFT_OUT}
    value = {
        "spec": {**plain, "env": dict(spec.env), "labels": dict(spec.labels), "limits": asdict(spec.limits)},
        "root": {**asdict(root), "config": None if root.config is None else root.config.to_json()},
        "image": None if live.base.image is None else live.base.image.digest,
        "written": live.base.written,
        "disk": live.disk,
        "generation": live.generation,
    }
    return json.dumps(value)


def from_text(text: str | bytes) -> Live:
    """Read what `to_text` wrote. Raises ValueError, KeyError or TypeError for anything else."""
    value = json.loads(text)
    spec = {**value["spec"], "limits": ResourceLimits(**value["spec"]["limits"])}
    root = _root(value["root"])
    base = Base(root, _image(value["image"], root, value["written"]), value["written"])
    return Live(SandboxSpec(**spec), base, value["disk"], value["generation"])


def _root(value: Mapping[str, Any]) -> Root:
    config = value["config"]
    lists = {name: tuple(value[name]) for name in ("layers", "owners")}
    return Root(**{**value, **lists, "config": None if config is None else ImageConfig.from_json(config)})


def _image(digest: str | None, root: Root, written: int) -> StoredImage | None:
    """Give the image as a lease needs it: all layers that no sandbox wrote are its."""
    if digest is None:
        return None
    layers = tuple(Path(layer) for layer in root.layers[written:])
    return StoredImage(digest, digest, layers, root.config or ImageConfig(), 0, datetime.now(UTC))
