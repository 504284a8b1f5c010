"""Against the registry that most people run: Debian's `docker-registry`, with and without a password."""

import httpx
import pytest

from core.errors import ImageNotFoundError, RegistryAuthError, RegistryUnreachableError
from runtimes.local.images import ImageLimits, ImageStore
from tests.support.image_archives import Layout, file, tar
from tests.support.real_registry import needs_registry, running_registry

pytestmark = needs_registry

LOWER, UPPER = tar(file("lower", b"1" * 100_000)), tar(file("upper", b"2"))


def push(address: str, layout: Layout, manifest: dict, *, auth: tuple[str, str] | None = None) -> None:
    """Upload all blobs of a layout, and the manifest as `team/app:1`."""
    with httpx.Client(base_url=f"http://{address}", auth=auth, trust_env=False) as client:
        for blob in (layout.path / "blobs" / "sha256").iterdir():
            place = client.post("/v2/team/app/blobs/uploads/").headers["Location"]
            target = httpx.URL(place).copy_add_param("digest", f"sha256:{blob.name}")
            done = client.put(target, content=blob.read_bytes())
            assert done.status_code == 201, done.text
        document = layout.path / "blobs" / "sha256" / manifest["digest"].removeprefix("sha256:")
        headers = {"Content-Type": manifest["mediaType"]}
        done = client.put("/v2/team/app/manifests/1", content=document.read_bytes(), headers=headers)
        assert done.status_code == 201, done.text


@pytest.fixture
def store(tmp_path):
    return ImageStore(tmp_path / "store", as_root=False, limits=ImageLimits(reserve_bytes=1 << 20))


@pytest.fixture
def layout(tmp_path):
    return Layout(tmp_path / "layout")


def test_pull_without_a_password(tmp_path, store, layout):
    manifest = layout.manifest(LOWER, UPPER)
    with running_registry(tmp_path / "registry", with_password=False) as address:
        push(address, layout, manifest)
        image = store.pull(f"{address}/team/app:1")
        assert {path.name for path in image.layers[0].iterdir()} == {"lower", "upper"}
        assert store.pull(f"{address}/team/app@{manifest['digest']}").digest == image.digest
        for name in ("team/app:2", "team/other"):
            with pytest.raises(ImageNotFoundError, match=r"UNKNOWN"):
                store.pull(f"{address}/{name}")
    with pytest.raises(RegistryUnreachableError, match=address):
        store.pull(f"{address}/team/app:1")
    assert store.find(f"{address}/team/app:1") == image


def test_pull_with_a_password(tmp_path, store, layout):
    manifest = layout.manifest(LOWER)
    with running_registry(tmp_path / "registry", with_password=True) as address:
        push(address, layout, manifest, auth=("me", "secret"))
        with pytest.raises(RegistryAuthError, match=f"registry auth failed for {address}: it wants"):
            store.pull(f"{address}/team/app:1")
        with pytest.raises(RegistryAuthError, match=f"registry auth failed for {address}, as 'me'"):
            store.pull(f"{address}/team/app:1", username="me", password="wrong")
        assert store.pull(f"{address}/team/app:1", username="me", password="secret").size_bytes == 100_000
