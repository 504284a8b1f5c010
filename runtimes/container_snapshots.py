"""Snapshots of containers: the engine's images `sandmill-snapshot:NAME`, which sandboxes know as `snapshot:NAME`."""

import io
import json
import re
import tarfile
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from docker.errors import APIError, ImageLoadError, ImageNotFound, NotFound

from core.errors import DaemonError, ExecdUnreachableError, SpecInvalidError
from runtimes.engine import Engine
from runtimes.engine_errors import daemon_error

__all__ = [
    "SNAPSHOT_PREFIX",
    "collect_snapshots",
    "image_tag",
    "is_snapshot_image",
    "list_snapshots",
    "remove_snapshot",
    "save_snapshot",
]

SNAPSHOT_PREFIX = "snapshot:"
_REPOSITORY = "sandmill-snapshot"
_LABEL = "sandmill.snapshot"
_UNFINISHED_LABEL = "sandmill.unfinished-snapshot"
_STALE_SECONDS = 600.0
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
"""What a tag may be."""


def image_tag(name: str) -> str:
    """Give the engine's name for what a sandbox starts from."""
    if not name.startswith(SNAPSHOT_PREFIX):
        return name
    return f"{_REPOSITORY}:{name.removeprefix(SNAPSHOT_PREFIX)}"


def is_snapshot_image(facts: Mapping[str, Any]) -> bool:
    """Say whether an image, as the engine describes it, is one of ours, whole or not."""
    labels = (facts.get("Config") or {}).get("Labels") or {}
    return _LABEL in labels or _UNFINISHED_LABEL in labels


def save_snapshot(engine: Engine, container: str, name: str) -> None:
    """Keep a container's files under a name, with what its image says about how to start.

    The engine's own commit writes the container's environment into the image, secrets of the sandbox and execd's token
    included. So its layer alone is kept: a second image is loaded that names the same layers and has the configuration
    of the image below. It takes no copy, since the engine has the layers already. Raises SpecInvalidError,
    ExecdUnreachableError, and kinds of RunFailure.
    """
    if not _NAME.fullmatch(name):
        message = f"name: {name!r} is no name of a snapshot: it has to be {_NAME.pattern}"
        raise SpecInvalidError(message, field="name")
    if _exists(engine, name):
        raise SpecInvalidError(f"name: there is a snapshot {name!r} already", field="name")
    try:
        below = engine.image_facts(str(engine.inspect_container(container)["Image"]))
        made = engine.commit(container, changes=[f"LABEL {_UNFINISHED_LABEL}={name}"])
    except NotFound as error:
        raise ExecdUnreachableError(f"the sandbox of the snapshot {name!r} is gone") from error
    except APIError as error:
        raise daemon_error(f"the snapshot {name!r} could not be made", error) from error
    committed = str(made["Id"])
    try:
        engine.load(_archive(name, below, engine.image_facts(committed)))
    except (APIError, ImageLoadError) as error:
        raise DaemonError(f"the snapshot {name!r} could not be kept: {error}") from error
    finally:
        _remove(engine, committed)


def list_snapshots(engine: Engine) -> list[str]:
    """Names of all."""
    found = engine.images(name=_REPOSITORY, filters={"label": [_LABEL]})
    tags = [str(tag) for image in found for tag in image.get("RepoTags") or ()]
    return sorted(tag.removeprefix(f"{_REPOSITORY}:") for tag in tags if tag.startswith(f"{_REPOSITORY}:"))


def remove_snapshot(engine: Engine, name: str) -> None:
    """Delete one; sandboxes that run from it go on. Idempotent."""
    if _NAME.fullmatch(name) and _exists(engine, name):
        _remove(engine, f"{_REPOSITORY}:{name}")


def collect_snapshots(engine: Engine, *, now: float) -> int:
    """Delete what is left of snapshots: unfinished ones, and removed ones from which no sandbox runs any more.

    now: Unix time. What is younger than ten minutes may still be in the making. Gives how many would not go.
    """
    left = 0
    for label in (_LABEL, _UNFINISHED_LABEL):
        for image in engine.images(all=True, filters={"label": [label], "dangling": True}):
            if now - image["Created"] < _STALE_SECONDS:
                continue
            try:
                engine.remove_image(str(image["Id"]), noprune=True)
            except ImageNotFound:
                continue
            except APIError as error:
                # In use: its sandbox still runs.
                left += error.status_code != 409
    return left


def _exists(engine: Engine, name: str) -> bool:
    try:
        return _LABEL in (engine.image_facts(f"{_REPOSITORY}:{name}")["Config"].get("Labels") or {})
    except ImageNotFound:
        return False


def _remove(engine: Engine, image: str) -> None:
    with suppress(ImageNotFound):
        # Unpruned: the image below may have no name any more, and stays as long as its own sandboxes.
        engine.remove_image(image, force=True, noprune=True)


def _archive(name: str, below: Mapping[str, Any], committed: Mapping[str, Any]) -> bytes:
    """Give an archive of `docker save`'s form that names layers the engine has, and holds none."""
    layers = committed["RootFS"]["Layers"]
    config = dict(below.get("Config") or {})
    labels = {key: value for key, value in (config.get("Labels") or {}).items() if key != _UNFINISHED_LABEL}
    config["Labels"] = {**labels, _LABEL: name}
    image = {
        "architecture": committed["Architecture"],
        "os": committed["Os"],
        "created": committed["Created"],
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": layers},
        "history": [{"created": committed["Created"], "created_by": "sandmill"} for _ in layers],
    }
    paths = [f"{number}/layer.tar" for number, _ in enumerate(layers)]
    manifest = [{"Config": "config.json", "RepoTags": [f"{_REPOSITORY}:{name}"], "Layers": paths}]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, document in (("config.json", image), ("manifest.json", manifest)):
            content = json.dumps(document).encode()
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
