"""The runtimes of a node, as its settings say: the same for its worker and for whoever reaches its sandboxes."""

from typing import Any

from core.config import Settings
from runtimes.base import Runtime
from runtimes.registry import build_runtime

__all__ = ["docker_options", "node_runtimes"]


def node_runtimes(settings: Settings) -> dict[str, Runtime]:
    """Make what the node offers, by name. Nothing is started or checked yet."""
    folder = settings.home_path / "runtimes"
    # A worker may be killed, or replaced by a newer one: the next one goes on with what runs.
    local = {"executor": settings.local_executor, "disk": settings.local_disk, "outlives": True}
    docker = docker_options(settings)
    return {name: build_runtime(name, folder, docker=docker, **local) for name in settings.runtimes}


def docker_options(settings: Settings) -> dict[str, Any]:
    """Give what the settings say about the `docker` runtime, by the names of its config."""
    return {
        name.removeprefix("docker_"): getattr(settings, name)
        for name in Settings.model_fields
        if name.startswith("docker_")
    }
