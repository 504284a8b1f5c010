"""Makes an image at a registry a source for the store: layers come when, and only if, they are unpacked."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, Literal

from runtimes.local.images.archives import ImageSource
from runtimes.local.images.connection import RegistryConnection
from runtimes.local.images.layers import LayerSource
from runtimes.local.images.limits import ImageLimits
from runtimes.local.images.manifests import Descriptor, check_document, find_manifest
from runtimes.local.images.names import ImageName
from runtimes.local.images.platforms import Platform
from runtimes.local.images.progress import ProgressListener, PullProgress
from runtimes.local.images.registry import RegistryClient
from runtimes.local.images.workspace import Workspace

__all__ = ["find_remote"]


def find_remote(
    name: ImageName,
    platform: Platform,
    connection: RegistryConnection,
    workspace: Workspace,
    *,
    limits: ImageLimits,
    on_progress: ProgressListener,
) -> ImageSource:
    """Find an image at its registry. Its layers can be read as long as connection and workspace are open.

    Raises what `RegistryClient` raises, and PlatformNotFoundError.
    """
    client = RegistryClient(name, connection, limits)
    manifest = find_manifest(client.manifest(), client.manifest_of, platform, limits)
    config = check_document(client.config(manifest.config), manifest.config, "the config")
    layers = [
        _to_source(client, workspace, on_progress, layer=layer, number=number, count=len(manifest.layers))
        for number, layer in enumerate(manifest.layers, start=1)
    ]
    return ImageSource(config, layers, manifest_digest=manifest.digest)


def _to_source(
    client: RegistryClient,
    workspace: Workspace,
    on_progress: ProgressListener,
    *,
    layer: Descriptor,
    number: int,
    count: int,
) -> LayerSource:
    def say(stage: Literal["download", "unpack"], done_bytes: int) -> None:
        on_progress(PullProgress(stage, number, count, done_bytes, layer.size))

    @contextmanager
    def open_layer() -> Iterator[BinaryIO]:
        with workspace.new_file() as file:
            say("download", 0)
            client.download(layer, file, lambda done: say("download", done))
            say("unpack", layer.size)
            file.seek(0)
            yield file

    return LayerSource(open=open_layer, digest=layer.digest, size=layer.size)
