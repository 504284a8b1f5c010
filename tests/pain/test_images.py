"""Faults of pulls and stores that users of similar services met, tried from the registry to a running sandbox.

Each cause of a failed pull, alone, is tried in `integration/runtimes/test_image_pull.py`.
"""

import json
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import pytest

from core.errors import (
    BadImageError,
    ImageNotFoundError,
    ImageStoreFullError,
    RegistryAuthError,
    RegistryUnreachableError,
    SpecInvalidError,
)
from runtimes.local.config import LocalConfig
from runtimes.local.images import ImageLimits, ImageStore, connection
from runtimes.local.runtime import LocalRuntime
from tests.support.image_archives import Layout, file, tar
from tests.support.registry import serve_registry
from tests.support.sandboxes import START_SECONDS
from tests.support.stored_images import busybox_entries

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def layout(tmp_path):
    layout = Layout(tmp_path / "layout")
    layers = (tar(*busybox_entries()), tar(file("pulled", b"pulled")))
    layout.index(layout.manifest(*layers, config={"Env": ["PATH=/bin"]}))
    return layout


@pytest.fixture
def registry(layout, monkeypatch):
    monkeypatch.setattr(connection, "_PAUSE_SECONDS", 0.001)
    with serve_registry(layout.path) as registry:
        yield registry


@pytest.fixture
def node(tmp_path, runtime_folder, local):
    """A local runtime of its own, whose store is empty."""
    config = LocalConfig(state_dir=tmp_path / "state", bundle_dir=runtime_folder / "bundles")
    with closing(LocalRuntime(config)) as runtime:
        yield replace(local, runtime=runtime)


def runs(node, name):
    with replace(node, image=name).box() as box:
        return box.sh("cat /pulled").out == "pulled"


@pytest.mark.parametrize("auth", ["basic", "bearer"])
def test_credentials_are_used_and_new_ones_at_once(node, registry, auth, caplog):
    """B-134: per pull; the old ones fail as soon as they are changed, and none is in a log."""
    caplog.set_level(logging.DEBUG)
    store, name = node.runtime.image_store, f"{registry.address}/team/app"
    registry.auth = auth
    store.pull(name, username="me", password="secret")
    registry.password = "rotated-secret"
    began = time.monotonic()
    with pytest.raises(RegistryAuthError, match=f"registry auth failed for {registry.address}"):
        store.pull(name, username="me", password="secret")
    assert time.monotonic() - began < 2
    store.pull(name, username="me", password="rotated-secret")
    assert "secret" not in caplog.text
    assert runs(node, name)


def test_layer_that_is_stuck_ends_by_the_deadline_and_the_next_pull_goes_on(node, registry):
    """B-136: the error says where it stood still; what came before is not fetched again."""
    released = threading.Event()

    def stick(handler):
        if "/blobs/" not in handler.path or not is_large(handler):
            return False
        handler.send_response(200)
        handler.send_header("Content-Length", "3000000")
        handler.end_headers()
        released.wait(20)
        return True

    store, name = node.runtime.image_store, f"{registry.address}/team/app"
    registry.faults = [stick]
    try:
        began = time.monotonic()
        with pytest.raises(RegistryUnreachableError, match=registry.address):
            store.pull(name, timeout_seconds=1)
        assert time.monotonic() - began < 5
    finally:
        released.set()
    registry.faults = []
    assert store.list() == []
    store.pull(name)
    assert runs(node, name)


def is_large(handler):
    path = handler.registry.blob_path(handler.path.rpartition("/")[2])
    return path.exists() and path.stat().st_size > 100_000


def test_damaged_layer_of_the_store_heals_when_it_is_pulled_again(node, registry):
    """B-136: retries must not meet the same bad entry for ever."""
    store, name = node.runtime.image_store, f"{registry.address}/team/app"
    registry.faults = [lambda handler: "/blobs/" in handler.path and is_large(handler) and spoil(handler)]
    with pytest.raises(BadImageError):
        store.pull(name)
    with pytest.raises(ImageNotFoundError):
        node.runtime.create(node.spec(image=name), timeout_seconds=START_SECONDS)
    registry.faults = []
    store.pull(name)
    assert runs(node, name)


def spoil(handler):
    data = bytearray(handler.registry.blob_path(handler.path.rpartition("/")[2]).read_bytes())
    data[len(data) // 2] ^= 1
    handler.answer(200, bytes(data))
    return True


def test_full_disk_is_said_and_leaves_no_half_image(node, registry, layout):
    """B-137: what is there goes on to work, what is not is named as missing."""
    digest = layout.manifest(tar(file("other", b"other")))["digest"]
    store, name = node.runtime.image_store, f"{registry.address}/team/app"
    store.pull(name)
    full = ImageStore(
        store._folder, as_root=store._as_root, limits=ImageLimits(reserve_bytes=1 << 60), is_durable=False
    )
    with pytest.raises(ImageStoreFullError, match="MiB are free"):
        full.pull(f"{registry.address}/team/app@{digest}")
    assert [image.name for image in store.list()] == [f"{name}:latest"]
    with pytest.raises(ImageNotFoundError, match=digest):
        node.runtime.create(node.spec(image=f"{registry.address}/team/app@{digest}"), timeout_seconds=5)
    assert runs(node, name)


def test_slow_pull_is_shared_by_those_who_wait_for_it(node, registry):
    """B-139: however long it takes, each layer is fetched once."""

    def delay(handler):
        if "/blobs/" in handler.path:
            threading.Event().wait(0.3)
        return False

    registry.faults = [delay]
    store, name = node.runtime.image_store, f"{registry.address}/team/app"
    with ThreadPoolExecutor(4) as pool:
        images = list(pool.map(lambda _: store.pull(name), range(4)))
    assert len({image.digest for image in images}) == 1
    blobs = sum(count for path, count in registry.seen.items() if "/blobs/" in path)
    assert blobs == 4 + 2, "four configs, two layers"
    assert runs(node, name)


def test_name_with_a_port_is_the_registrys(node, registry, layout):
    """B-140: with tag, digest, neither or both; a sandbox finds it by each that was pulled."""
    digest = json.loads((layout.path / "index.json").read_text())["manifests"][0]["digest"]
    for tail in ("", ":latest", f"@{digest}"):
        node.runtime.image_store.pull(f"{registry.address}/team/app{tail}")
        assert runs(node, f"{registry.address}/team/app{tail}")


@pytest.mark.parametrize(
    "name", ["HOST:5000/A/b", "host:99999999/a", "a@sha256:12", "[::1/x", "a/" * 150 + "b"]
)
def test_name_that_is_none_is_the_callers_error(node, name):
    """B-140."""
    with pytest.raises(SpecInvalidError) as caught:
        node.runtime.image_store.pull(name)
    assert caught.value.field == "image"
    with pytest.raises(ImageNotFoundError):
        node.runtime.create(node.spec(image=name), timeout_seconds=5)
