"""An archive is one of an image by its documents, whatever its other names; a root file system may have such files."""

import hashlib
import json
import subprocess
from collections.abc import Sequence

import pytest

from core.errors import BadImageError
from runtimes.local.images import ImageLimits, ImageStore
from tests.support.image_archives import Layout, compress, file, folder, hardlink, tar

LAYER = tar(folder("data"), file("data/lower", b"lower"))
OTHER = tar(file("data/upper", b"upper"))


@pytest.fixture
def store(tmp_path):
    limits = ImageLimits(reserve_bytes=1 << 20)
    return ImageStore(tmp_path / "store", as_root=False, limits=limits, is_durable=False)


@pytest.fixture(params=["none", "gzip", "zstd"])
def put(request, tmp_path):
    """Write an archive, plain or compressed; gives its path."""

    def put(*entries):
        path = tmp_path / "archive"
        path.write_bytes(compress(tar(*entries), request.param))
        return path

    return put


def config_of(*layers: bytes) -> bytes:
    diff_ids = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
    return json.dumps({"os": "linux", "architecture": "amd64", "rootfs": {"diff_ids": diff_ids}}).encode()


def listing(config: str, names: Sequence[str]) -> bytes:
    return json.dumps([{"Config": config, "RepoTags": ["made:1"], "Layers": list(names)}]).encode()


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


PACKED = [compress(layer, "gzip") for layer in (LAYER, OTHER)]
NAMES = {
    "crane": (f"sha256:{digest(config_of(LAYER, OTHER))}", [f"{digest(layer)}.tar.gz" for layer in PACKED]),
    "jib": ("config.json", [f"{digest(layer)}.tar.gz" for layer in PACKED]),
    "numbered": ("c.json", ["1/layer.tar", "2/layer.tar"]),
    "flat": ("config.json", ["layer", "layer_2"]),
}


@pytest.mark.parametrize("is_first", [False, True], ids=["listing last", "listing first"])
@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_archive_of_docker_is_known_whatever_its_names(store, put, names, is_first):
    config, layers = names
    parts = [file(config, config_of(LAYER, OTHER))]
    parts += [file(name, layer) for name, layer in zip(layers, PACKED, strict=True)]
    parts.insert(0 if is_first else len(parts), file("manifest.json", listing(config, layers)))
    image = store.import_archive(put(*parts))
    assert image.name == "made:1"
    assert sorted(path.name for path in (image.layers[0] / "data").iterdir()) == ["lower", "upper"]


def test_uncompressed_archive_may_even_have_the_folders_of_a_root(store, tmp_path):
    path = tmp_path / "archive"
    parts = [folder("lib"), file("lib/1", LAYER), file("etc/c.json", config_of(LAYER))]
    path.write_bytes(tar(*parts, file("manifest.json", listing("etc/c.json", ["lib/1"]))))
    assert (store.import_archive(path).layers[0] / "data" / "lower").is_file()


def test_layout_with_other_files_is_known(store, tmp_path):
    layout = Layout(tmp_path / "layout")
    layout.index(layout.manifest(LAYER), name="tools:1")
    (layout.path / "README.md").write_text("how it was made")
    (layout.path / "manifest.json").write_text("{}")
    for flag in ("-cf", "-czf"):
        subprocess.run(["tar", "-C", layout.path, flag, tmp_path / "image", "."], check=True)
        assert store.import_archive(tmp_path / "image").name == "tools:1"


def test_archive_that_lacks_a_layer_is_refused(store, put):
    parts = [file("c.json", config_of(LAYER)), file("manifest.json", listing("c.json", ["1.tar.gz"]))]
    with pytest.raises(BadImageError, match=r"1\.tar\.gz is not in the archive"):
        store.import_archive(put(*parts))


@pytest.mark.parametrize(
    "content",
    [
        b"not ours",
        b"[]",
        b"{}",
        b'{"manifest_version": 3, "name": "an extension"}',
        b'[{"Config": "c.json"}]',
        b'[{"Config": 1, "Layers": []}]',
        b'[{"Config": "c.json", "Layers": [1]}]',
        b'[{"Config": "c.json", "Layers": "x"}]',
        listing("nowhere.json", ["nowhere.tar"]),
        b"[" * 100_000,
        b" " * (5 << 20),
    ],
    ids=range(11),
)
def test_root_file_system_may_have_a_file_of_the_same_name(store, put, content):
    documents = [file("manifest.json", content), file("oci-layout", b"ours"), file("index.json", b"[1]")]
    image = store.import_archive(put(*documents, file("app", b"x")), name="x")
    assert sorted(path.name for path in image.layers[0].iterdir()) == [
        "app",
        "index.json",
        "manifest.json",
        "oci-layout",
    ]


def test_listing_written_twice_counts_as_last_written(store, put):
    config = file("c.json", config_of(LAYER))
    good, bad = (file("manifest.json", text) for text in (listing("c.json", ["l"]), b"no"))
    assert store.import_archive(put(bad, config, file("l", LAYER), good)).name == "made:1"
    root = store.import_archive(put(good, config, file("l", LAYER), bad), name="x")
    assert (root.layers[0] / "manifest.json").read_bytes() == b"no"


def test_root_file_system_of_many_files_is_not_looked_through(store, put):
    many = [file(f"f{number}") for number in range(10_001)]
    listed = [
        file("c.json", config_of(LAYER)),
        file("l", LAYER),
        file("manifest.json", listing("c.json", ["l"])),
    ]
    assert (store.import_archive(put(*many, *listed), name="x").layers[0] / "f10000").is_file()


def test_compressed_root_file_system_is_known_by_its_first_folder(store, tmp_path):
    """Its content is unpacked once, since what would come to light later no longer matters."""
    listed = [
        file("c.json", config_of(LAYER)),
        file("l", LAYER),
        file("manifest.json", listing("c.json", ["l"])),
    ]
    path = tmp_path / "root.tar.gz"
    path.write_bytes(compress(tar(folder("usr"), *listed), "gzip"))
    assert (store.import_archive(path).layers[0] / "manifest.json").is_file()


def test_names_of_any_length_are_not_kept(store, tmp_path):
    path = tmp_path / "archive"
    parts = [file("c.json", config_of(LAYER)), hardlink("x" * 5000, "c.json")]
    path.write_bytes(tar(*parts, file("manifest.json", listing("c.json", []))))
    with pytest.raises(BadImageError, match="longer than 4096 bytes"):
        store.import_archive(path)
