"""The runtimes there are, by name. A new one adds its config class and a case in `from_config`."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from core.errors import NotSupportedError
from runtimes.base import Runtime
from runtimes.docker import DockerConfig, DockerRuntime
from runtimes.fake import FakeConfig, FakeRuntime
from runtimes.local.config import LocalConfig
from runtimes.local.executor import can_change_user
from runtimes.local.images import ImageStore
from runtimes.local.modes import local_modes
from runtimes.local.runtime import LocalRuntime

__all__ = [
    "CGROUP_PARENT",
    "RUNTIME_NAMES",
    "RuntimeConfig",
    "build_runtime",
    "from_config",
    "local_state",
    "open_image_store",
    "runtime_modes",
]

RuntimeConfig = Annotated[LocalConfig | DockerConfig | FakeConfig, Field(discriminator="type")]

CGROUP_PARENT: str = LocalConfig.model_fields["cgroup_parent"].default
"""Of the groups of sandboxes of the `local` runtime that `build_runtime` makes."""

RUNTIME_NAMES = ("local", "docker", "fake")


def build_runtime(
    name: str, folder: Path, *, docker: Mapping[str, Any] | None = None, **local: Any
) -> Runtime:
    """Make a runtime. folder: where this node's runtimes keep what they need.

    docker, local: what `DockerConfig` or `LocalConfig` shall have instead of its defaults, e.g. disk.
    Nothing is started or checked yet; see `Runtime.check`. Raises NotSupportedError for a name that is none.
    """
    bundles = folder / "bundles"
    match name:
        case "local":
            return from_config(_local_config(folder, **local))
        case "docker":
            return from_config(
                DockerConfig(bundle_dir=bundles, state_dir=folder / "docker", **(docker or {}))
            )
        case "fake":
            return from_config(FakeConfig())
    raise NotSupportedError(f"there is no runtime {name!r}; there are: {', '.join(RUNTIME_NAMES)}")


def open_image_store(folder: Path, *, docker_config: Path | None = None) -> ImageStore:
    """Open the image store of the `local` runtime that `build_runtime` makes with the same folder.

    docker_config: Docker's `config.json`, from which pulls take the credentials that `docker login` saved.
    """
    config = _local_config(folder)
    as_root = can_change_user(config.uid_base)
    return ImageStore(config.state_dir / "images", as_root=as_root, docker_config=docker_config)


def local_state(folder: Path) -> Path:
    """Give the state folder of the `local` runtime that `build_runtime` makes with the same folder."""
    return _local_config(folder).state_dir


def runtime_modes(name: str, folder: Path) -> Iterator[tuple[str, Callable[[], str]]]:
    """Give the ways in which a runtime can start sandboxes, with their trials; see `local_modes`."""
    if name == "local":
        yield from local_modes(_local_config(folder))


def _local_config(folder: Path, **changes: Any) -> LocalConfig:
    return LocalConfig(state_dir=folder / "local", bundle_dir=folder / "bundles", **changes)


def from_config(config: LocalConfig | DockerConfig | FakeConfig) -> Runtime:
    """Make the runtime of a config."""
    match config:
        case LocalConfig():
            return LocalRuntime(config)
        case DockerConfig():
            return DockerRuntime(config)
        case FakeConfig():
            return FakeRuntime()
