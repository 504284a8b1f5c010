import os

import pytest

from core.errors import BadImageError
from runtimes.local.images import ImageLimits, ImageStore, read_file
from tests.support.image_archives import Layout, file, folder, symlink, tar

KINDS = [
    pytest.param(
        True, id="root", marks=pytest.mark.skipif(os.geteuid() != 0, reason="layers of root need root")
    ),
    pytest.param(False, id="user"),
]

LOWER = tar(
    folder("etc"),
    file("etc/passwd", b"lower"),
    file("etc/group", b"group"),
    file("etc/gone", b"gone"),
    file("opaque/file", b"hidden"),
    symlink("link", "/etc/group"),
    symlink("etc/relative", "../../../etc/./group"),
    symlink("folder", "etc"),
    symlink("circle", "circle"),
    symlink("out", "/../../../../proc/self/status"),
)
UPPER = tar(file("etc/passwd", b"upper"), file("etc/.wh.gone"), file("opaque/.wh..wh..opq"))


@pytest.fixture(params=KINDS)
def layers(request, tmp_path):
    layout = Layout(tmp_path / "layout")
    store = ImageStore(
        tmp_path / "store", as_root=request.param, limits=ImageLimits(reserve_bytes=1 << 20), is_durable=False
    )
    return store.import_archive(layout.index(layout.manifest(LOWER, UPPER)), name="x").layers


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/etc/passwd", b"upper"),
        ("/etc/group", b"group"),
        ("/etc/gone", None),
        ("/opaque/file", None),
        ("/link", b"group"),
        ("/etc/relative", b"group"),
        ("/folder/passwd", b"upper"),
        ("/folder/../etc/group", b"group"),
        ("/etc", None),
        ("/etc/passwd/x", None),
        ("/missing/x", None),
        ("/out", None),
        ("/", None),
    ],
)
def test_file_is_read_as_a_sandbox_sees_it(layers, path, content):
    assert read_file(layers, path) == content


def test_link_in_circles_and_large_files_are_refused(layers):
    with pytest.raises(BadImageError, match="circles"):
        read_file(layers, "/circle")
    with pytest.raises(BadImageError, match="larger than 3 bytes"):
        read_file(layers, "/etc/passwd", max_bytes=3)
