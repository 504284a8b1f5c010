"""Loader and C library of the bundle, made blind for what an image could put in their way."""

from pathlib import Path

import pytest

import execd
from execd.bundle_paths import blind_libc, blind_loader
from execd.elf import ElfError

FOLDERS = {
    "debian-x86-64": b"/lib/x86_64-linux-gnu/\0/usr/lib/x86_64-linux-gnu/\0/lib/\0/usr/lib/\0",
    "debian-aarch64": b"/lib/aarch64-linux-gnu/\0/usr/lib/aarch64-linux-gnu/\0/lib/\0/usr/lib/\0",
    "fedora": b"/lib64/\0/usr/lib64/\0",
}
PRELOAD = b"\0/etc/ld.so.preload\0"


@pytest.mark.parametrize("folders", FOLDERS.values(), ids=FOLDERS)
def test_loader_looks_nowhere_by_itself(folders: bytes) -> None:
    blind = blind_loader(b"code" + PRELOAD + folders + b"more\0" + folders + b"\x01")
    assert len(blind) == len(b"code" + PRELOAD + folders + b"more\0" + folders + b"\x01")
    assert b"lib" not in blind
    assert b"preload" not in blind
    # Each folder is the root and nothing more, where the loader's table of lengths says it begins.
    start = len(b"code" + PRELOAD)
    for path in folders.split(b"\0")[:-1]:
        assert blind[start : start + len(path) + 1] == b"/" + bytes(len(path))
        start += len(path) + 1


@pytest.mark.parametrize(
    "image", [b"code" + FOLDERS["fedora"], b"code" + PRELOAD], ids=["preload", "folders"]
)
def test_loader_that_hides_what_it_opens_is_refused(image: bytes) -> None:
    with pytest.raises(ElfError, match=r"where (it was|they were) expected"):
        blind_loader(image)


def test_libc_reads_no_configuration_or_data_of_the_image() -> None:
    names = [
        b"/etc/nsswitch.conf",
        b"/etc/localtime",
        b"/usr/share/zoneinfo",
        b"/usr/share/locale",
        b"/usr/lib/locale/locale-archive",
        b"/usr/lib/aarch64-linux-gnu/gconv/gconv-modules.cache",
        b"/usr/lib64/gconv",
    ]
    kept = [b"/etc/passwd", b"/etc/resolv.conf", b"/usr/lib/getconf", b"/usr/share/localedata", b"/dev/null"]
    image = b"\0" + b"\0".join([*names, *kept]) + b"\0"
    blind = blind_libc(image)
    assert len(blind) == len(image)
    found = blind.split(b"\0")[1:-1]
    assert all(name.startswith(b"/.sbx/") for name in found[: len(names)]), found
    assert found[len(names) :] == kept


def test_libc_that_hides_its_configuration_is_refused() -> None:
    with pytest.raises(ElfError, match="nsswitch"):
        blind_libc(b"\0/etc/passwd\0")


def test_execd_never_starts_itself_anew() -> None:
    """/proc/self/exe is the loader without its arguments, and sys.executable needs that loader."""
    sources = [
        path for path in Path(execd.__file__).parent.glob("*.py") if not path.name.startswith("bundle")
    ]
    assert len(sources) > 20
    for path in sources:
        text = path.read_text()
        assert "/self/exe" not in text, path
        assert "sys.executable" not in text, path
        assert "multiprocessing" not in text, path
