import io
import lzma
import os

import pytest

from core.errors import BadImageError
from runtimes.local.images import decompression
from runtimes.local.images.decompression import HashingSource, open_unpacked
from runtimes.local.images.limits import ImageLimits
from tests.support.image_archives import compress, zstd

KINDS = ["none", "gzip", "xz", "zstd"]


def unpack(data: bytes, limits: ImageLimits | None = None) -> bytes:
    file = io.BytesIO(data)
    source = open_unpacked(file, HashingSource(file), limits or ImageLimits())
    return b"".join(iter(lambda: source.read(10_000), b""))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [0, 1, 1_000_000])
def test_data_is_unpacked_by_what_it_begins_with(kind, size):
    data = os.urandom(size // 2) + bytes(size - size // 2)
    assert unpack(compress(data, kind)) == data


@pytest.mark.parametrize("kind", KINDS[1:])
def test_several_streams_and_padding_are_one(kind):
    assert unpack(compress(b"a", kind) + compress(b"b" * 300_000, kind) + bytes(600)) == b"a" + b"b" * 300_000


def test_frames_to_be_skipped_are():
    frame = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"toc!"
    assert unpack(frame + compress(b"a", "zstd") + frame) == b"a"


@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize("spoil", [lambda data: data[:-20], lambda data: data[:40] + b"\xff" * 9 + data[49:]])
def test_damaged_data_is_said_to_be(kind, spoil):
    with pytest.raises(BadImageError, match="damaged or cut short"):
        unpack(spoil(compress(os.urandom(100_000), kind)))


@pytest.mark.parametrize("kind", KINDS[1:])
def test_frames_without_content_are_not_read_for_ever(kind, monkeypatch):
    monkeypatch.setattr(decompression, "_MAX_FRAMES", 1000)
    with pytest.raises(BadImageError, match="more than 1000 frames"):
        unpack(compress(b"", kind) * 1001)


def test_bzip2_is_refused_with_the_way_out():
    with pytest.raises(BadImageError, match="gzip, zstd or xz"):
        unpack(b"BZh91AY")


def test_data_that_takes_too_much_memory_to_unpack_is_refused():
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 512 << 20}]
    with pytest.raises(BadImageError, match="damaged"):
        unpack(lzma.compress(b"a", filters=filters))


def test_window_that_takes_too_much_memory_is_refused():
    """As it is chosen by `zstd --ultra --long=31`."""
    compressor = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 30})
    data = compressor.compress(b"a" * 1000) + compressor.flush()
    with pytest.raises(BadImageError, match="damaged"):
        unpack(data)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_bomb_is_stopped_by_its_ratio(kind):
    limits = ImageLimits(ratio_floor_bytes=1 << 20, max_ratio=50)
    with pytest.raises(BadImageError, match="bomb"):
        unpack(compress(bytes(32 << 20), kind), limits)


@pytest.mark.parametrize("kind", KINDS)
def test_bomb_is_stopped_by_its_size(kind):
    with pytest.raises(BadImageError, match="larger than 1048576"):
        unpack(compress(bytes(2 << 20), kind), ImageLimits(max_layer_bytes=1 << 20))


def test_more_bytes_than_announced_are_refused():
    source = HashingSource(io.BytesIO(b"abc"), limit=2)
    with pytest.raises(BadImageError, match="more data than the 2 bytes"):
        source.read(10)
