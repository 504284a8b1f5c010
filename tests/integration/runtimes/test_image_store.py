import gzip
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from core.errors import (
    BadImageError,
    ImageNotFoundError,
    ImageStoreFullError,
    PlatformNotFoundError,
    RuntimeUnavailableError,
    SpecInvalidError,
)
from runtimes.local.images import ImageLimits, ImageStore, unpacking
from tests.support.image_archives import (
    Layout,
    docker_archive,
    file,
    folder,
    hardlink,
    symlink,
    tar,
)

BASE = tar(
    folder("tmp", mode=0o1777, uid=3, gid=4, mtime=1000),
    folder("etc"),
    file("etc/passwd", b"root:x:0:0::/:/bin/sh\n", mode=0o600, uid=7, gid=8),
    file("etc/old", b"old"),
    folder("data"),
    file("data/lower", b"lower"),
    file("data/both", b"lower"),
    symlink("lib", "usr/lib"),
)
TOP = tar(
    file("etc/.wh.old"),
    file("data/.wh..wh..opq"),
    file("data/both", b"upper"),
    file("tmp/new", b"new"),
    hardlink("tmp/same", "tmp/new"),
)

KINDS = [
    pytest.param(
        True, id="root", marks=pytest.mark.skipif(os.geteuid() != 0, reason="owners and whiteouts need root")
    ),
    pytest.param(False, id="user"),
]


@pytest.fixture(params=KINDS)
def as_root(request):
    return request.param


@pytest.fixture
def store(tmp_path, as_root):
    return ImageStore(
        tmp_path / "store", as_root=as_root, limits=ImageLimits(reserve_bytes=1 << 20), is_durable=False
    )


@pytest.fixture
def layout(tmp_path):
    return Layout(tmp_path / "layout")


def import_layers(store, layout, *layers, **manifest):
    return store.import_archive(layout.index(layout.manifest(*layers, **manifest), name="tools:1"))


def merged(image, as_root) -> dict[str, bytes]:
    """What a sandbox sees: files by path."""
    if not as_root:
        (tree,) = image.layers
        return contents(tree)
    seen: dict[str, bytes] = {}
    for layer in reversed(image.layers):
        for path, found in everything(layer).items():
            if stat.S_ISCHR(found.st_mode):
                seen = {
                    other: data for other, data in seen.items() if not (other + "/").startswith(path + "/")
                }
            elif stat.S_ISDIR(found.st_mode) and is_opaque(layer / path):
                seen = {other: data for other, data in seen.items() if not other.startswith(path + "/")}
        seen.update(contents(layer))
    return seen


def everything(tree: Path) -> dict[str, os.stat_result]:
    return {str(path.relative_to(tree)): path.lstat() for path in tree.rglob("*")}


def contents(tree: Path) -> dict[str, bytes]:
    return {
        name: (tree / name).read_bytes()
        for name, found in everything(tree).items()
        if stat.S_ISREG(found.st_mode)
    }


def is_opaque(path: Path) -> bool:
    return "trusted.overlay.opaque" in os.listxattr(path, follow_symlinks=False)


def leftovers(store) -> list[str]:
    """Entries of the store that stand for something kept."""
    kept = ("layers", "trees", "staging", "trash", "locks", "images")
    return [f"{name}/{entry.name}" for name in kept for entry in (store._folder / name).iterdir()]


def test_layers_are_laid_over_each_other(store, layout, as_root):
    image = import_layers(store, layout, BASE, TOP)
    assert merged(image, as_root) == {
        "etc/passwd": b"root:x:0:0::/:/bin/sh\n",
        "data/both": b"upper",
        "tmp/new": b"new",
        "tmp/same": b"new",
    }
    assert len(image.layers) == (2 if as_root else 1)
    assert store.find("tools:1") == image
    assert store.list() == [image]


def test_owners_modes_and_times_are_those_of_the_image(store, layout, as_root):
    image = import_layers(store, layout, BASE)
    (layer,) = image.layers
    for name, mode, owner in (("tmp", 0o1777, (3, 4)), ("etc/passwd", 0o600, (7, 8))):
        found = (layer / name).lstat()
        assert stat.S_IMODE(found.st_mode) == mode
        assert (found.st_uid, found.st_gid) == (owner if as_root else (os.geteuid(), os.getegid()))
    assert (layer / "tmp").lstat().st_mtime == 1000
    assert (layer / "lib").readlink() == Path("usr/lib")


def test_folder_that_a_layer_only_implies_is_as_it_is_below(store, layout, as_root):
    image = import_layers(store, layout, BASE, TOP)
    found = (image.layers[0] / "tmp").lstat()
    assert stat.S_IMODE(found.st_mode) == 0o1777
    if as_root:
        assert (found.st_uid, found.st_gid) == (3, 4)


def test_what_a_layer_hides_and_has_itself_stays(store, layout, as_root):
    over = tar(
        file(".wh.data"), folder("data"), file("data/mine", b"1"), file("etc/old", b"2"), file("etc/.wh.old")
    )
    assert (
        merged(import_layers(store, layout, BASE, over), as_root).items()
        >= {
            "data/mine": b"1",
            "etc/old": b"2",
        }.items()
    )
    assert "data/lower" not in merged(store.find("tools:1"), as_root)


def test_whiteout_below_a_whiteout_is_no_error(store, layout, as_root):
    image = import_layers(store, layout, BASE, tar(file(".wh.data"), file("data/.wh.both")), TOP)
    assert "data/lower" not in merged(image, as_root)


def test_folder_that_only_hides_hides(store, layout, as_root):
    image = import_layers(store, layout, BASE, tar(file("data/.wh..wh..opq")))
    assert set(merged(image, as_root)) == {"etc/passwd", "etc/old"}


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_overlay_shows_what_the_image_is(tmp_path, layout):
    store = ImageStore(
        tmp_path / "store", as_root=True, limits=ImageLimits(reserve_bytes=1 << 20), is_durable=False
    )
    over = tar(file(".wh.lib"), file("data/.wh..wh..opq"), file("etc/.wh.old"), file("tmp/new", b"new"))
    image = import_layers(store, layout, BASE, over, tar(folder("lib"), file("lib/a", b"1")))
    (tmp_path / "mnt").mkdir()
    options = "ro,lowerdir=" + ":".join(str(layer) for layer in image.layers)
    show = 'mount -t overlay overlay -o "$0" "$1" && cd "$1" && find . -printf "%p %y %m %U\n"'
    argv = ["unshare", "-m", "sh", "-c", show, options, tmp_path / "mnt"]
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    assert set(done.stdout.split("\n")) == {
        ". d 755 0",
        "./data d 755 0",
        "./etc d 755 0",
        "./etc/passwd f 600 7",
        "./lib d 755 0",
        "./lib/a f 644 0",
        "./tmp d 1777 3",
        "./tmp/new f 644 0",
        "",
    }


def test_whiteouts_that_hide_nothing_are_not_seen(store, layout, as_root):
    over = tar(file("etc/.wh.missing"), file("new/.wh.x"), file("data/.wh..wh..opq"), file("data/.wh.both"))
    image = import_layers(store, layout, BASE, over, tar(file("new/.wh.x")))
    found = [found for layer in image.layers for found in everything(layer).values()]
    assert not any(stat.S_ISCHR(entry.st_mode) for entry in found)


def test_layer_that_hides_all_ends_the_image(store, layout, as_root):
    image = import_layers(
        store, layout, BASE, tar(file(".wh..wh..opq"), file("only", b"1")), tar(file("x", b"2"))
    )
    assert merged(image, as_root) == {"only": b"1", "x": b"2"}
    assert len(image.layers) == (2 if as_root else 1)


def test_folder_takes_the_place_of_a_link_below(store, layout, as_root):
    image = import_layers(store, layout, BASE, tar(folder("lib"), file("lib/a", b"1")))
    assert merged(image, as_root)["lib/a"] == b"1"
    assert not (image.layers[0] / "usr").exists()


def test_image_without_layers_is_an_empty_folder(store, layout):
    (empty,) = import_layers(store, layout).layers
    assert list(empty.iterdir()) == []


@pytest.mark.parametrize("kind", ["none", "gzip", "zstd"])
def test_layers_may_be_compressed(store, layout, as_root, kind):
    assert merged(import_layers(store, layout, BASE, kind=kind), as_root)["etc/old"] == b"old"


def test_config_of_the_image_is_kept(store, layout):
    config = {
        "Env": ["PATH=/bin", "A=b=c", "EMPTY="],
        "Entrypoint": ["/init"],
        "Cmd": ["run", "it"],
        "WorkingDir": "/data",
        "User": "app:staff",
        "Labels": {"unknown": "key"},
    }
    import_layers(store, layout, BASE, config=config)
    found = store.find("tools:1").config
    assert found.env == {"PATH": "/bin", "A": "b=c", "EMPTY": ""}
    assert (found.entrypoint, found.cmd) == (("/init",), ("run", "it"))
    assert (found.workdir, found.user, found.architecture) == ("/data", "app:staff", "amd64")


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz"])
def test_archive_of_docker_save_is_recognised(store, tmp_path, as_root, suffix):
    archive = docker_archive({"app:2": [BASE, TOP]}, config={"User": "1000"})
    path = tmp_path / f"some{suffix}"
    path.write_bytes(gzip.compress(archive) if suffix == ".tar.gz" else archive)
    image = store.import_archive(path)
    assert (image.name, image.config.user) == ("app:2", "1000")
    assert merged(image, as_root)["data/both"] == b"upper"


@pytest.mark.parametrize("kind", ["plain", "gz"])
def test_layout_in_a_tar_is_recognised(store, layout, tmp_path, kind):
    layout.index(layout.manifest(BASE), name="tools:1")
    path = tmp_path / "image"
    subprocess.run(["tar", "-C", layout.path, "-cf" if kind == "plain" else "-czf", path, "."], check=True)
    assert store.import_archive(path).name == "tools:1"


@pytest.mark.parametrize("flag", ["-cf", "-czf", "-cJf"])
def test_root_file_system_is_named_after_its_file(store, tmp_path, flag):
    (tmp_path / "tree" / "bin").mkdir(parents=True)
    (tmp_path / "tree" / "manifest.json").write_text("not ours")
    path = tmp_path / "Alpine_Mini-3.20.tar.gz"
    subprocess.run(["tar", "-C", tmp_path / "tree", flag, path, "."], check=True)
    image = store.import_archive(path)
    assert image.name == "alpine-mini-3-20:latest"
    assert (image.layers[0] / "bin").is_dir()
    assert store.import_archive(path, name="other").digest == image.digest


@pytest.mark.parametrize("name", ["host", "host:1", "docker.io/library/host:2", "snapshot:mine"])
def test_name_that_means_something_else_is_refused(store, layout, tmp_path, name):
    path = layout.index(layout.manifest(BASE))
    with pytest.raises(SpecInvalidError, match="is reserved") as refused:
        store.import_archive(path, name=name)
    assert refused.value.field == "name"
    (tmp_path / "host.tar").write_bytes(BASE)
    with pytest.raises(SpecInvalidError, match="is reserved"):
        store.import_archive(tmp_path / "host.tar")
    with pytest.raises(SpecInvalidError, match="is reserved") as refused:
        store.pull(name)
    assert refused.value.field == "reference"
    assert store.list() == []
    assert store.import_archive(path, name="team/host:1").name == "team/host:1"


def test_same_layers_are_kept_once(store, layout, tmp_path, as_root):
    first = import_layers(store, layout, BASE, TOP)
    (tmp_path / "save.tar").write_bytes(docker_archive({"other:1": [BASE, tar(file("x", b"1"))]}))
    second = store.import_archive(tmp_path / "save.tar")
    assert len(list((store._folder / "layers").iterdir())) == 3
    if as_root:
        assert first.layers[-1] == second.layers[-1]
    else:
        assert (first.layers[0] / "etc/passwd").samefile(second.layers[0] / "etc/passwd")


def test_name_given_to_another_image_is_moved(store, layout):
    import_layers(store, layout, BASE)
    second = import_layers(store, layout, TOP)
    assert store.list() == [second]
    assert len(list((store._folder / "layers").iterdir())) == 1, "what nothing uses any more is gone"


def test_build_for_this_machine_is_chosen(store, layout, as_root):
    path = layout.index(
        {**layout.manifest(tar(file("arm"))), "platform": {"os": "linux", "architecture": "riscv64"}},
        {**layout.manifest(BASE), "platform": {"os": "linux", "architecture": os_architecture()}},
        {**layout.manifest(TOP), "platform": {"os": "unknown", "architecture": "unknown"}},
    )
    assert "etc/old" in merged(store.import_archive(path, name="many"), as_root)


def test_image_for_other_machines_alone_is_refused_with_their_names(store, layout):
    path = layout.index({**layout.manifest(BASE), "platform": {"os": "linux", "architecture": "riscv64"}})
    with pytest.raises(PlatformNotFoundError, match="it is for: linux/riscv64"):
        store.import_archive(path, name="x")


def test_one_of_several_images_is_chosen_by_name(store, tmp_path, as_root):
    path = tmp_path / "save.tar"
    path.write_bytes(docker_archive({"a:1": [BASE], "b:1": [TOP]}))
    assert "data/both" in merged(store.import_archive(path, name="b:1"), as_root)
    with pytest.raises(BadImageError, match="2 images in it, say by name which one: a:1, b:1"):
        store.import_archive(path)


def test_missing_image_is_refused_with_those_there_are(store, layout):
    with pytest.raises(ImageNotFoundError, match="there are: none"):
        store.find("nothing")
    import_layers(store, layout, BASE)
    for name in ("nothing:1", f"sha256:{'0' * 64}"):
        with pytest.raises(ImageNotFoundError, match=r"there are: tools:1"):
            store.find(name)
    with pytest.raises(ImageNotFoundError):
        store.remove("nothing")
    with pytest.raises(SpecInvalidError):
        store.find("../x")


def test_removed_image_leaves_nothing(store, layout):
    import_layers(store, layout, BASE, TOP)
    store.remove("tools:1")
    assert leftovers(store) == []
    assert store.list() == []


def test_digest_removes_all_its_names(store, layout):
    path = layout.index(layout.manifest(BASE))
    digest = store.import_archive(path, name="a").digest
    store.import_archive(path, name="b")
    assert store.find(digest).name == "a:latest"
    store.remove(digest)
    assert store.list() == []


def test_layers_of_a_running_sandbox_outlive_their_image(store, layout, as_root):
    image = import_layers(store, layout, BASE, TOP)
    store.lease(image, "sm-1-1")
    store.remove("tools:1")
    assert merged(image, as_root)["data/both"] == b"upper"
    assert store.holders() == ["sm-1-1"]
    store.release("sm-1-1")
    store.release("sm-1-1")
    store.collect()
    assert leftovers(store) == []


def test_damaged_lease_keeps_nothing(store, layout):
    store.lease(import_layers(store, layout, BASE), "sm-1-1")
    (store._folder / "leases" / "sm-1-1.json").write_bytes(b"")
    store.remove("tools:1")
    assert leftovers(store) == []


@pytest.mark.parametrize("missing", ["layer.json", "root", ""])
def test_damaged_layer_heals_when_it_comes_again(store, layout, missing):
    chain = import_layers(store, layout, BASE).layers[0].parent
    (chain / missing).rename(chain.with_name("away"))
    store.collect()
    image = import_layers(store, layout, BASE)
    assert (image.layers[0] / "etc" / "old").read_bytes() == b"old"


def test_damaged_record_of_an_image_is_none(store, layout):
    import_layers(store, layout, BASE)
    (record,) = (store._folder / "images").glob("*.json")
    record.write_bytes(record.read_bytes()[:50])
    assert store.list() == []
    with pytest.raises(ImageNotFoundError):
        store.find("tools:1")
    assert import_layers(store, layout, BASE).name == "tools:1"


def test_lease_of_what_was_removed_is_refused(store, layout):
    image = import_layers(store, layout, BASE)
    store.remove("tools:1")
    with pytest.raises(ImageNotFoundError, match="removed meanwhile"):
        store.lease(image, "sm-1-1")
    assert store.holders() == []


def test_holder_that_is_a_path_is_refused(store, layout):
    image = import_layers(store, layout, BASE)
    with pytest.raises(SpecInvalidError, match="holder"):
        store.lease(image, "../x")


@pytest.mark.parametrize(
    "second",
    [tar(file("a", b"1")) + b"more", BASE[:1500], tar(symlink("a", "/"), file("a/b"))],
    ids=["trailing", "cut short", "hostile"],
)
def test_failed_import_leaves_nothing(store, layout, second):
    descriptor = layout.manifest(TOP, second, diff_ids=["sha256:" + "0" * 64] * 2)
    with pytest.raises(BadImageError):
        store.import_archive(layout.index(descriptor), name="x")
    descriptor = layout.manifest(TOP, second[:-1] + b"\1")
    with pytest.raises(BadImageError):
        store.import_archive(layout.index(layout.manifest(TOP, BASE[:700])), name="x")
    assert leftovers(store) == []


def test_changed_layer_is_noticed(store, layout):
    path = layout.index(layout.manifest(BASE))
    digest = layout.manifest(BASE, kind="none")
    blob = max((path / "blobs/sha256").iterdir(), key=lambda entry: entry.stat().st_size)
    blob.write_bytes(blob.read_bytes().replace(b"root:x", b"ROOT:x"))
    with pytest.raises(BadImageError, match="digest"):
        store.import_archive(layout.index(digest), name="x")


@pytest.mark.parametrize("entry", ["config", "manifest"])
def test_changed_document_is_noticed(store, layout, entry):
    descriptor = layout.manifest(BASE)
    path = layout.index(descriptor)
    for blob in (path / "blobs/sha256").iterdir():
        if (blob.name in descriptor["digest"]) == (entry == "manifest"):
            blob.write_bytes(
                blob.read_bytes()
                .replace(b"linux", b"Linux")
                .replace(b'"schemaVersion": 2', b'"schemaVersion": 3')
            )
    with pytest.raises(BadImageError, match="digest"):
        store.import_archive(path, name="x")


def test_wrong_diff_id_is_noticed(store, layout):
    with pytest.raises(BadImageError, match="diff id"):
        import_layers(store, layout, BASE, diff_ids=["sha256:" + "1" * 64])
    with pytest.raises(BadImageError, match="names 0 layers, yet there are 1"):
        import_layers(store, layout, BASE, diff_ids=[])
    with pytest.raises(BadImageError, match="no sha256 digest"):
        import_layers(store, layout, BASE, diff_ids=["../../x"])


@pytest.mark.parametrize(
    "spoil",
    [b"", b"no image", b"x" * 2000, gzip.compress(b"no image", mtime=0), b"BZh9"],
)
def test_what_is_no_image_is_refused(store, tmp_path, spoil):
    (tmp_path / "file").write_bytes(spoil)
    if spoil:
        with pytest.raises(BadImageError):
            store.import_archive(tmp_path / "file")
    for path in (tmp_path / "missing", tmp_path, Path("/dev/null")):
        with pytest.raises(BadImageError):
            store.import_archive(path, name="x")


def test_full_disk_is_said_before_anything_is_unpacked(tmp_path, layout, as_root):
    store = ImageStore(
        tmp_path / "store", as_root=as_root, limits=ImageLimits(reserve_bytes=1 << 60), is_durable=False
    )
    with pytest.raises(ImageStoreFullError, match="remove images"):
        import_layers(store, layout, BASE)
    assert leftovers(store) == []


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 8 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", place], check=True)
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
@pytest.mark.parametrize(
    ("reserve_bytes", "size"), [(4 << 20, 6 << 20), (0, 9 << 20)], ids=["reserve", "all"]
)
def test_disk_that_fills_up_meanwhile_ends_the_import(small_disk, layout, monkeypatch, reserve_bytes, size):
    monkeypatch.setattr(unpacking, "_SPACE_CHECK_BYTES", 100_000)
    store = ImageStore(small_disk, as_root=True, limits=ImageLimits(reserve_bytes=reserve_bytes))
    # Compressed it is small, so that it seems to fit at first.
    with pytest.raises(ImageStoreFullError, match="remove images"):
        import_layers(store, layout, tar(file("a", bytes(size))))
    assert leftovers(store) == []
    assert import_layers(store, layout, tar(file("a", bytes(1 << 20)))).size_bytes == 1 << 20


def test_image_is_still_removed_from_a_full_disk(store, layout, tmp_path, as_root):
    import_layers(store, layout, BASE)
    full = ImageStore(
        tmp_path / "store", as_root=as_root, limits=ImageLimits(reserve_bytes=1 << 60), is_durable=False
    )
    full.remove("tools:1")
    assert leftovers(full) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="the other kind of store is one of root")
def test_store_of_another_kind_is_refused(store, layout, tmp_path, as_root):
    import_layers(store, layout, BASE)
    with pytest.raises(RuntimeUnavailableError, match="made by another release, or by"):
        ImageStore(tmp_path / "store", as_root=not as_root, is_durable=False).list()


def test_store_is_closed_to_other_users(store, layout):
    import_layers(store, layout, BASE)
    assert stat.S_IMODE(store._folder.stat().st_mode) == 0o700


def test_threads_that_import_at_once_all_find_the_image(store, layout, tmp_path):
    path = layout.index(layout.manifest(BASE, TOP))
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(3):
                image = store.import_archive(path, name=f"n{number}")
                store.lease(image, f"h{number}")
                if turn:
                    store.remove(f"n{number}")
                assert (image.layers[0] / "tmp" / "new").exists()
                store.release(f"h{number}")
        except BaseException as error:  # noqa: BLE001 -- told by the main thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.collect()
    assert failures == []
    assert leftovers(store) == []


_DIE = """
import os, sys
from pathlib import Path
from runtimes.local.images import ImageStore, ImageLimits
from runtimes.local.images import layers
def die(*arguments, **more):
    os.kill(os.getpid(), 9)
setattr(layers.LayerStore if sys.argv[4] == "_sync" else layers, sys.argv[4], die)
limits = ImageLimits(reserve_bytes=1 << 20)
store = ImageStore(Path(sys.argv[1]), as_root=sys.argv[2] == "True", limits=limits, is_durable=False)
store.import_archive(Path(sys.argv[3]), name="x")
"""


@pytest.mark.parametrize("step", ["_sync", "_check", "HashingSource"])
def test_killed_import_is_never_seen_and_cleared_away(store, layout, as_root, step):
    path = layout.index(layout.manifest(BASE, TOP))
    store.collect()
    done = subprocess.run(
        [sys.executable, "-c", _DIE, store._folder, str(as_root), path, step],
        check=False,
        cwd=Path(__file__).parents[3],
        timeout=60,
    )
    assert done.returncode == -9
    assert store.list() == []
    assert leftovers(store) != []
    store.collect()
    assert leftovers(store) == []
    assert store.import_archive(path, name="x").layers[0].is_dir()


def os_architecture() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
