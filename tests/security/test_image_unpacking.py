"""Images are made by strangers: T34 and T35 of the threat model for what is unpacked, and T3 for what stays of it."""

import os
import stat
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

from core.errors import BadImageError
from runtimes.local.images import ImageLimits, ImageStore
from tests.support.image_archives import (
    Layout,
    compress,
    device,
    file,
    folder,
    hardlink,
    symlink,
    tar,
)

KINDS = [
    pytest.param(
        True, id="root", marks=pytest.mark.skipif(os.geteuid() != 0, reason="layers of root need root")
    ),
    pytest.param(False, id="user"),
]

SMALL_LIMITS = ImageLimits(
    max_layer_bytes=2 << 20,
    max_image_bytes=3 << 20,
    max_entries=50,
    max_depth=10,
    max_ratio=20,
    ratio_floor_bytes=1 << 20,
    max_layers=5,
    reserve_bytes=1 << 20,
)


@pytest.fixture(params=KINDS)
def as_root(request):
    return request.param


@pytest.fixture
def store(tmp_path, as_root):
    return ImageStore(tmp_path / "store", as_root=as_root, limits=SMALL_LIMITS, is_durable=False)


@pytest.fixture
def outside():
    """A folder that no image may change in any way; not as deep as tmp_path, for images may not be deep here."""
    with tempfile.TemporaryDirectory() as place_of_its_own:
        place = Path(place_of_its_own, "outside")
        (place / "folder").mkdir(parents=True)
        (place / "file").write_text("mine")
        (place / "folder" / "file").write_text("mine")
        before = state_of(place)
        yield place
        assert state_of(place) == before


@pytest.fixture
def add(store, tmp_path, outside):
    """Import an image of these layers."""

    def add(*layers: bytes, name: str = "hostile"):
        layout = Layout(tmp_path / "layout")
        return store.import_archive(layout.index(layout.manifest(*layers)), name=name)

    return add


def state_of(place: Path) -> dict[str, tuple]:
    paths = [place, *place.rglob("*")]
    facts = {str(path): path.lstat() for path in paths}
    return {
        path: (found.st_mode, found.st_uid, found.st_nlink, found.st_mtime_ns, found.st_size)
        for path, found in facts.items()
    }


def names_in(image) -> set[str]:
    return {str(path.relative_to(layer)) for layer in image.layers for path in layer.rglob("*")}


@pytest.mark.parametrize(
    "name", ["../x", "a/../../x", "..", "/../x", "./../x", "a/..", "a//../x", "x" * 256, "d/" * 11 + "x"]
)
def test_name_that_leads_out_or_is_none_is_refused(add, store, name):
    with pytest.raises(BadImageError, match=r"\.\.|longer|deep"):
        add(tar(file(name, b"x")))
    with pytest.raises(BadImageError, match=r"\.\.|longer|deep"):
        add(tar(file("a", b"x"), hardlink("b", name)))
    assert store.list() == []


def test_absolute_name_is_one_of_the_image(add, outside):
    assert names_in(add(tar(file(f"{outside}/file", b"x")))) >= {f"{outside}/file".lstrip("/")}


@pytest.mark.parametrize("target", ["{outside}", "../../../../../../../../../..{outside}"])
@pytest.mark.parametrize(
    "entries",
    [
        lambda link: [link, file("a/file", b"x")],
        lambda link: [link, folder("a/new")],
        lambda link: [link, symlink("a/new", "x")],
        lambda link: [link, hardlink("b", "a/file")],
        lambda link: [link, file("b"), hardlink("a/new", "b")],
        lambda link: [link, file("a/.wh.file")],
        lambda link: [link, file("a/.wh..wh..opq")],
        lambda link: [folder("d"), symlink("d/e", "../a"), link, file("d/e/file", b"x")],
    ],
    ids=["file", "folder", "link", "hard link to", "hard link", "whiteout", "opaque", "two links"],
)
def test_nothing_goes_through_a_link(add, outside, entries, target):
    with pytest.raises(BadImageError, match="is a link or a file"):
        add(tar(*entries(symlink("a", target.format(outside=outside)))))


@pytest.mark.parametrize(
    "entry", [file("a/file", b"x"), file("a/.wh.file"), file("a/.wh..wh..opq"), folder("a", mode=0o700)]
)
def test_nothing_goes_through_a_link_of_a_layer_below(add, outside, entry):
    image = add(tar(symlink("a", str(outside))), tar(entry), tar(folder("a"), file("a/mine", b"1")))
    assert "a/mine" in names_in(image)


@pytest.mark.parametrize(
    "entry", [file("a", b"x"), folder("a", mode=0o777), hardlink("a", "b"), symlink("a", "x")]
)
def test_what_takes_the_place_of_a_link_leaves_its_target_alone(add, outside, entry):
    for target in ("folder", "file"):
        image = add(tar(file("b", b"x"), symlink("a", f"{outside}/{target}"), entry))
        assert not (image.layers[0] / "a").is_symlink() or (image.layers[0] / "a").readlink() == Path("x")


@pytest.mark.parametrize("target", ["{outside}/file", "missing", "folder", ".", "a", "device"])
def test_hard_link_to_what_is_no_file_of_the_layer_is_refused(add, outside, target):
    with pytest.raises(BadImageError, match=r"no file of the same layer|link to itself"):
        add(tar(folder("folder"), device("device"), hardlink("a", target.format(outside=outside))))


def test_hard_link_to_a_link_is_one_to_the_link(add, outside):
    image = add(tar(symlink("a", f"{outside}/file"), hardlink("b", "a")))
    assert (image.layers[0] / "b").is_symlink()


@pytest.mark.parametrize("name", [".wh.", ".wh..", ".wh...", "a/.wh..", "a/.wh..."])
def test_whiteout_of_no_name_is_refused(add, name):
    with pytest.raises(BadImageError, match="whiteout of no name"):
        add(tar(folder("a"), file(name)))


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_devices_and_fifos_are_left_out(add, store, kind):
    image = add(tar(folder("dev"), device("dev/x", kind), device("y", kind, 0, 0)))
    assert names_in(image) == {"dev"}
    assert store._layers.record(image.layers[0].parent.name).dropped == 2


def test_device_of_an_image_hides_nothing_below(add, as_root):
    """To overlay a device 0:0 is a whiteout, and so it is to nobody else."""
    image = add(tar(file("a", b"1")), tar(device("a", tarfile.CHRTYPE, 0, 0), file("b")))
    assert names_in(image) == {"a", "b"}
    assert all(stat.S_ISREG(path.lstat().st_mode) for layer in image.layers for path in layer.iterdir())


@pytest.mark.parametrize(
    "attribute",
    [
        "security.capability",
        "trusted.overlay.opaque",
        "trusted.overlay.redirect",
        "user.overlay.opaque",
        "user.a",
    ],
)
def test_extended_attributes_are_left_out(add, as_root, attribute):
    data = tar(
        folder("d"),
        file("d/x", b"x", **{f"SCHILY.xattr.{attribute}": "y", f"LIBARCHIVE.xattr.{attribute}": "eQ"}),
    )
    image = add(data)
    for path in image.layers[0].rglob("*"):
        assert os.listxattr(path, follow_symlinks=False) == []


def test_set_user_id_programs_stay_behind_a_closed_door(add, store):
    """Mounts of sandboxes are nosuid, which makes the bit worthless there; here nobody but us gets at it."""
    image = add(tar(file("su", b"#!", mode=0o6755)))
    assert stat.S_IMODE((image.layers[0] / "su").lstat().st_mode) == 0o6755
    assert stat.S_IMODE(store._folder.stat().st_mode) == 0o700


@pytest.mark.parametrize(("uid", "gid"), [(65_536, 0), (0, 65_536), (2**31, 2**31), (2**40, 0)])
def test_owner_that_no_sandbox_has_is_refused(add, as_root, uid, gid):
    data = tar(file("a", uid=uid, gid=gid))
    if as_root:
        with pytest.raises(
            BadImageError, match=rf"belongs to {uid}:{gid}; sandboxes have the ids up to 65535"
        ):
            add(data)
    else:
        assert names_in(add(data)) == {"a"}


def test_unreadable_files_of_an_image_can_be_read_and_removed_by_us(add, store, as_root):
    image = add(tar(folder("d", mode=0), file("d/f", b"x", mode=0)), tar(file("d/.wh.f"), file("g")))
    if not as_root:
        assert all(path.lstat().st_mode & 0o400 for path in image.layers[0].rglob("*"))
    store.remove("hostile")
    assert not any((store._folder / "layers").iterdir())


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (tar(*[file(f"f{n}") for n in range(51)]), "more than 50 entries"),
        (tar(file("a", os.urandom(2 << 20))), "larger than 2097152 bytes unpacked"),
        (tar(file("a", bytes(2_000_000))), "looks like a bomb"),
        (tar(*[folder("/".join("d" * n)) for n in range(1, 13)]), "more than 10 folders deep"),
        (tar(symlink("a", "x" * 5000)), "longer than 4095"),
    ],
    ids=["entries", "size", "ratio", "depth", "target"],
)
def test_image_that_takes_too_much_is_stopped(add, store, layer, message):
    with pytest.raises(BadImageError, match=message):
        add(layer)
    assert not any((store._folder / "layers").iterdir())


def test_image_of_too_many_or_too_large_layers_is_stopped(add, store):
    with pytest.raises(BadImageError, match="has 6 layers, more than 5"):
        add(*[tar(file(f"f{n}")) for n in range(6)])
    with pytest.raises(BadImageError, match="layers are larger than 3145728"):
        add(*[tar(file("f", os.urandom(1_500_000))) for _ in range(3)])
    with pytest.raises(BadImageError, match="image is larger than 3145728 bytes unpacked"):
        add(*[tar(file("f", os.urandom(100_000) + bytes(900_000))) for _ in range(4)])
    assert not any((store._folder / "layers").iterdir())


def test_archive_in_an_archive_is_a_file(store, tmp_path):
    inner = compress(tar(file("../x")), "gzip")
    (tmp_path / "image").write_bytes(tar(folder("etc"), file("etc/inner.tar.gz", inner)))
    assert names_in(store.import_archive(tmp_path / "image", name="x")) == {"etc", "etc/inner.tar.gz"}


def test_names_in_any_bytes_are_kept(add):
    image = add(tar(file("é\udcff\n", b"x"), symlink("l", "\udcfe")))
    assert {os.fsencode(path.name) for path in image.layers[0].iterdir()} == {b"\xc3\xa9\xff\n", b"l"}


def test_layout_with_links_leads_nowhere_else(store, tmp_path, outside):
    layout = Layout(tmp_path / "layout")
    path = layout.index(layout.manifest(tar(file("a"))))
    blob = next(iter((path / "blobs" / "sha256").iterdir()))
    blob.unlink()
    blob.symlink_to(outside / "file")
    with pytest.raises(BadImageError, match="cannot be read"):
        store.import_archive(path, name="x")


def test_layer_named_by_a_path_in_docker_archive_is_looked_for_inside(store, tmp_path, outside):
    listing = b'[{"Config": "c.json", "RepoTags": null, "Layers": ["../outside/file"]}]'
    config = b'{"os": "linux", "rootfs": {"diff_ids": ["sha256:%s"]}}' % (b"0" * 64)
    name = "0" * 64 + ".json"
    (tmp_path / "save").write_bytes(
        tar(file("manifest.json", listing.replace(b"c.json", name.encode())), file(name, config))
    )
    with pytest.raises(BadImageError, match=r"\.\./outside/file is not in the archive"):
        store.import_archive(tmp_path / "save", name="x")


_MEASURE = """
import sys
from pathlib import Path
from runtimes.local.images import ImageStore
ImageStore(Path(sys.argv[1]), as_root=False, is_durable=False).import_archive(Path(sys.argv[2]), name="x")
print(next(line.split()[1] for line in Path("/proc/self/status").open() if line.startswith("VmHWM")))
"""


@pytest.mark.parametrize("kind", ["gzip", "zstd", "xz"])
def test_memory_stays_flat_whatever_is_unpacked(tmp_path, kind):
    content = bytes(100 << 20)
    (tmp_path / "image").write_bytes(compress(tar(folder("d"), file("d/large", content)), kind))
    argv = [sys.executable, "-c", _MEASURE, tmp_path / "store", tmp_path / "image"]
    done = subprocess.run(argv, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert int(done.stdout) < 95_000, "KiB, of which the interpreter and its modules are most"
