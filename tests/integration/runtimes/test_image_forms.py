"""Both forms of the store show the same image: overlay as the kernel mounts it, and the one tree without root."""

import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.errors import BadImageError
from runtimes.local.images import ImageLimits, ImageStore
from tests.support.image_archives import Layout, file, folder, hardlink, symlink, tar

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")

NAMES = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3).map("/".join)
MODES = st.sampled_from([0o755, 0o700, 0o1777])


TARGETS = st.sampled_from(["a", "/b", "../c", "missing"])
ENTRIES = st.one_of(
    st.tuples(st.just("file"), NAMES, st.binary(max_size=3)),
    st.tuples(st.just("folder"), NAMES, MODES),
    st.tuples(st.just("symlink"), NAMES, TARGETS),
    st.tuples(st.just("hardlink"), NAMES, NAMES),
    st.tuples(st.just("hide"), NAMES, st.none()),
    st.tuples(st.just("hide all in"), st.one_of(NAMES, st.just(".")), st.none()),
)
LAYERS = st.lists(st.lists(ENTRIES, max_size=6), min_size=1, max_size=3)


def to_tar(entries: list[tuple[str, str, Any]]) -> bytes:
    return tar(*(to_entry(*entry) for entry in entries))


def to_entry(kind: str, name: str, value: Any) -> Any:
    match kind:
        case "file":
            return file(name, value)
        case "folder":
            return folder(name, mode=value)
        case "symlink":
            return symlink(name, value)
        case "hardlink":
            return hardlink(name, value)
        case "hide":
            parent, _, last = name.rpartition("/")
            return file(f"{parent}/.wh.{last}".lstrip("/"))
    return file(f"{name}/.wh..wh..opq")


_SHOW = (
    'cd "$0" && find . -printf "%P|%y|%m|%l|" \\( ! -type f -o -exec od -An -tx1 {} \\; \\) -printf ";\\n"'
)


def listing(place: Path) -> set[str]:
    """One line per path: kind, mode, target, content."""
    done = subprocess.run(["sh", "-c", _SHOW, place], check=True, capture_output=True, text=True)
    return {entry.strip() for entry in done.stdout.split(";\n")}


def mounted(layers: tuple[Path, ...], place: Path) -> set[str]:
    place.mkdir()
    # Overlay wants two folders; an empty one at the bottom changes nothing.
    (place.parent / "none").mkdir()
    options = "ro,lowerdir=" + ":".join(str(layer) for layer in (*layers, place.parent / "none"))
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, place], check=True)
    try:
        return listing(place)
    finally:
        subprocess.run(["umount", place], check=True)


def view(layers: list[list[tuple[str, str, Any]]], place: Path, *, as_root: bool) -> set[str] | None:
    """What a sandbox would see; None if the image is refused."""
    layout = Layout(place / "layout")
    limits = ImageLimits(reserve_bytes=1 << 20)
    store = ImageStore(place / "store", as_root=as_root, limits=limits, is_durable=False)
    try:
        image = store.import_archive(
            layout.index(layout.manifest(*map(to_tar, layers), kind="none")), name="x"
        )
    except BadImageError:
        return None
    return mounted(image.layers, place / "mnt") if as_root else listing(image.layers[0])


@pytest.mark.timeout(180)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(layers=LAYERS)
def test_both_forms_show_the_same(layers):
    with TemporaryDirectory() as name:
        place = Path(name)
        (place / "root").mkdir()
        (place / "user").mkdir()
        as_root = view(layers, place / "root", as_root=True)
        assert view(layers, place / "user", as_root=False) == as_root
