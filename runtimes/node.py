"""The runtimes of a node, as its settings say: the same for its worker and for whoever reaches its sandboxes."""

from typing import Any

from core.config import Settings
from runtimes.base import Runtime
from runtimes.docker import DockerConfig
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
    """Give what the settings say about the `docker` runtime, by the names of its config.

    What that config does not know is left out as long as it has its default; else building the runtime fails.
    """
    return {
        config_name: getattr(settings, name)
        for name, field in Settings.model_fields.items()
        if (config_name := name.removeprefix("docker_")) != name
        and (config_name in DockerConfig.model_fields or getattr(settings, name) != field.default)
    }
