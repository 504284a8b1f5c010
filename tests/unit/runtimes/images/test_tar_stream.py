import io
import tarfile
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import BadImageError
from runtimes.local.images.tar_stream import MAX_HEADER_BYTES, TarKind, TarReader
from tests.support.image_archives import device, file, folder, hardlink, symlink, tar


def read(data: bytes) -> list[tuple]:
    reader = TarReader(io.BytesIO(data))
    return [(entry, b"".join(reader.content())) for entry in reader]


def header(name: bytes = b"a", kind: bytes = b"0", size: bytes = b"0", **fields: bytes) -> bytes:
    """One header, whatever is in its fields."""
    block = bytearray(512)
    values = {
        0: name,
        100: b"644",
        108: b"0",
        116: b"0",
        124: size,
        136: b"0",
        156: kind,
        257: b"ustar\x0000",
    }
    values.update({{"mode": 100, "uid": 108, "mtime": 136}[key]: value for key, value in fields.items()})
    for at, value in values.items():
        block[at : at + len(value)] = value
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


NAMES = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=300
).filter(lambda name: name.strip("/") == name)


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT], ids=["pax", "gnu"])
@given(
    entries=st.lists(
        st.tuples(
            NAMES,
            st.binary(max_size=1500),
            st.integers(0, 2**40),
            st.integers(0, 0o7777),
            st.integers(0, 2**33),
        ),
        max_size=6,
    )
)
def test_archives_of_the_standard_library_are_read_as_written(form, entries):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for name, data, uid, mode, mtime in entries:
            info = tarfile.TarInfo(name)
            info.size, info.uid, info.mode, info.mtime = len(data), uid, mode, mtime
            archive.addfile(info, io.BytesIO(data))
    found = [
        (entry.name.decode(), data, entry.uid, entry.mode, entry.mtime)
        for entry, data in read(buffer.getvalue())
    ]
    assert found == entries


def test_kinds_and_targets_are_read():
    archive = tar(
        folder("d"),
        file("d/f", b"x"),
        symlink("s", "../x"),
        hardlink("h", "d/f"),
        device("n"),
        device("p", tarfile.FIFOTYPE),
    )
    found = [(entry.name, entry.kind, entry.link) for entry, _ in read(archive)]
    assert found == [
        (b"d/", TarKind.FOLDER, b""),
        (b"d/f", TarKind.FILE, b""),
        (b"s", TarKind.SYMLINK, b"../x"),
        (b"h", TarKind.HARDLINK, b"d/f"),
        (b"n", TarKind.SPECIAL, b""),
        (b"p", TarKind.SPECIAL, b""),
    ]


def test_attributes_are_noticed():
    archive = tar(file("a", **{"SCHILY.xattr.security.capability": "x"}), file("b"))
    assert [entry.has_attributes for entry, _ in read(archive)] == [True, False]


def test_content_that_is_not_asked_for_is_passed_over():
    archive = tar(file("a", b"x" * 5000), file("b", b"y"))
    assert [entry.name for entry in TarReader(io.BytesIO(archive))] == [b"a", b"b"]


@given(data=st.binary(max_size=2048))
def test_noise_is_refused_or_empty(data):
    try:
        read(data)
    except BadImageError:
        return
    assert data[:512].strip(b"\0") == b""


@given(at=st.integers(0, 511), value=st.integers(0, 255))
def test_changed_header_never_gives_another_kind_of_error(at, value):
    archive = bytearray(header(b"name", size=b"0000000001") + bytes(512))
    archive[at] = value
    with suppress(BadImageError):
        read(bytes(archive))


@pytest.mark.parametrize(
    ("archive", "reason"),
    [
        (b"x" * 512, "checksum"),
        (header(size=b"-1"), "size .* negative"),
        (header(size=b"\xff" * 12), "size .* negative"),
        (header(size=b"\x80" + b"\xff" * 11), "size .* not a possible"),
        (header(uid=b"x"), "uid .* no number"),
        (header(kind=b"S"), "sparse"),
        (header(kind=b"Z"), "of type b'Z'"),
        (header(kind=b"x", size=b"%o" % (MAX_HEADER_BYTES + 1)), "extended header"),
        (header(kind=b"L", size=b"77777777777"), "extended header"),
        (header(kind=b"x") * 100, "in a row"),
        (header(kind=b"x", size=b"12") + b"99 path=xxx\n".ljust(512, b"\0") + header(), "damaged"),
        (header(kind=b"x", size=b"20") + (b"1" * 20).ljust(512, b"\0") + header(), "damaged"),
        (header(kind=b"x", size=b"13") + b"11 size=-1\n".ljust(512, b"\0") + header(), "negative"),
        (header(kind=b"x", size=b"15") + b"13 mtime=inf\n".ljust(512, b"\0") + header(), "mtime"),
        (header(kind=b"x", size=b"15") + b"13 mtime=nan\n".ljust(512, b"\0") + header(), "mtime"),
    ],
)
def test_damaged_and_hostile_headers_are_refused(archive, reason):
    with pytest.raises(BadImageError, match=reason):
        read(archive + bytes(1024))


@pytest.mark.parametrize("size", [1, 300, 511, 513, 1000, 2511])
def test_archive_that_is_cut_short_is_refused(size):
    with pytest.raises(BadImageError, match="cut short"):
        read(tar(file("a", b"x" * 2000))[:size])


def test_global_headers_do_not_pile_up():
    value = b"x" * 300_000
    headers = b""
    for number in range(5):
        record = b"300011 k%04d=%s\n" % (number, value[: 300_011 - 14])
        assert len(record) == 300_011
        headers += header(kind=b"g", size=b"%o" % len(record)) + record + bytes(-len(record) % 512)
    with pytest.raises(BadImageError, match="global headers"):
        read(headers + header())


def test_header_of_many_digits_is_refused_at_once():
    """The standard library's expression for these takes minutes for it."""
    size = MAX_HEADER_BYTES - 512
    with pytest.raises(BadImageError, match="damaged"):
        read(header(kind=b"x", size=b"%o" % size) + b"1" * size + header())
