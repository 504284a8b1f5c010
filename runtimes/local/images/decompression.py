"""Unpacks compressed streams with bounds on memory, output and ratio, and takes digests on the way."""

import hashlib
import lzma
import sys
import zlib
from collections.abc import Callable
from typing import BinaryIO, Protocol

from core.errors import BadImageError
from runtimes.local.images.limits import ImageLimits
from runtimes.local.images.tar_stream import ByteSource

__all__ = ["HashingSource", "UnpackedSource", "open_unpacked"]

_XZ_MEMORY_BYTES = 256 << 20
"""`xz -9` needs 65 MiB to unpack; what asks for more is made to hurt."""

_PIECE = 1 << 18

_FRAME_PIECE = 1 << 15
"""Small, since the end of each frame copies what is left of a piece."""

_MAX_FRAMES = 1_000_000
"""Some builders give each file a frame of its own; frames without content would cost time for ever."""


class _Frame(Protocol):
    """What decompresses one stream or frame, as those of lzma and zstd do."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class HashingSource:
    """Passes bytes on, counts them and takes their sha256. limit: more than so many bytes are an error."""

    def __init__(self, source: ByteSource, *, limit: int | None = None) -> None:
        """source: stays the caller's to close."""
        self._source = source
        self._limit = limit
        self._sha256 = hashlib.sha256()
        self.size = 0

    def read(self, size: int = -1, /) -> bytes:
        """Read on; a whole file is never read at once."""
        data = self._source.read(_PIECE if size < 0 else size)
        self.size += len(data)
        self._sha256.update(data)
        if self._limit is not None and self.size > self._limit:
            raise BadImageError(f"there is more data than the {self._limit} bytes announced")
        return data

    @property
    def digest(self) -> str:
        """Of all bytes so far: `sha256:<hex>`."""
        return f"sha256:{self._sha256.hexdigest()}"


class UnpackedSource:
    """The unpacked bytes of a stream that may be compressed, capped by size and by ratio to the packed bytes."""

    def __init__(
        self,
        unpacked: ByteSource,
        packed: HashingSource,
        limits: ImageLimits,
        *,
        errors: tuple[type[Exception], ...] = (),
    ) -> None:
        """unpacked: reads from packed, which counts. errors: say that the data is damaged."""
        self._errors: tuple[type[Exception], ...] = (zlib.error, lzma.LZMAError, EOFError, *errors)
        self._unpacked = unpacked
        self._packed = packed
        self._limits = limits
        self.size = 0

    @property
    def is_compressed(self) -> bool:
        """False if the bytes come as they are."""
        return self._unpacked is not self._packed

    def read(self, size: int, /) -> bytes:
        """Read on. Raises BadImageError for damaged data and beyond the caps."""
        try:
            data = self._unpacked.read(size)
        except self._errors as error:
            raise BadImageError(f"the compressed data is damaged or cut short: {error}") from error
        self.size += len(data)
        if self.size > self._limits.max_layer_bytes:
            raise BadImageError(f"it is larger than {self._limits.max_layer_bytes} bytes unpacked")
        if self.size > max(self._limits.ratio_floor_bytes, self._packed.size * self._limits.max_ratio):
            message = (
                f"it unpacks to more than {self._limits.max_ratio} times its size: this looks like a bomb"
            )
            raise BadImageError(message)
        return data


def open_unpacked(file: BinaryIO, packed: HashingSource, limits: ImageLimits) -> UnpackedSource:
    """Unpack by what the first bytes say: gzip, zstd, xz, or nothing.

    file: seekable, at its start; packed: reads from the same file. Both stay the caller's.
    """
    magic = file.read(6)
    file.seek(0)
    if magic.startswith(b"\x1f\x8b"):
        return UnpackedSource(_Frames(packed, _GzipFrame), packed, limits)
    if magic.startswith(b"\x28\xb5\x2f\xfd") or (magic[1:4] == b"\x2a\x4d\x18" and magic[0] & 0xF0 == 0x50):
        make, error = _zstd()
        return UnpackedSource(_Frames(packed, make), packed, limits, errors=(error,))
    if magic == b"\xfd7zXZ\0":
        return UnpackedSource(_Frames(packed, _xz_frame), packed, limits)
    if magic.startswith(b"BZh"):
        raise BadImageError("bzip2 is not read: compress it with gzip, zstd or xz")
    return UnpackedSource(packed, packed, limits)


class _Frames:
    """Reads one stream or frame after the other through objects such as lzma.LZMADecompressor."""

    def __init__(self, packed: ByteSource, make: Callable[[], _Frame]) -> None:
        self._packed = packed
        self._make = make
        self._frame: _Frame | None = None
        self._frames = 0
        self._rest = b""

    def read(self, size: int, /) -> bytes:
        while True:
            if not self._rest and (self._frame is None or self._frame.needs_input):
                self._rest = self._packed.read(_FRAME_PIECE)
                if not self._rest and self._frame is None:
                    return b""
                if not self._rest:
                    raise EOFError("it ends in the middle of a frame")
            if self._frame is None:
                # Padding between streams and after the last one is zeros.
                self._rest = self._rest.lstrip(b"\0")
                if not self._rest:
                    continue
                self._frame = self._make()
                self._frames += 1
                if self._frames > _MAX_FRAMES:
                    raise EOFError(f"it has more than {_MAX_FRAMES} frames")
            data, self._rest = self._frame.decompress(self._rest, size), b""
            if self._frame.eof:
                self._rest, self._frame = self._frame.unused_data, None
            if data:
                return data


class _GzipFrame:
    """One member of a gzip file; zlib checks its checksum."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(wbits=31)
        self._is_full = False

    @property
    def eof(self) -> bool:
        return self._zlib.eof

    @property
    def needs_input(self) -> bool:
        return not self._zlib.unconsumed_tail and not self._is_full

    @property
    def unused_data(self) -> bytes:
        return self._zlib.unused_data

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        unpacked = self._zlib.decompress(self._zlib.unconsumed_tail + data, max_length)
        # There may be more to come of what went in already.
        self._is_full = len(unpacked) == max_length
        return unpacked


def _xz_frame() -> _Frame:
    return lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)


def _zstd() -> tuple[Callable[[], _Frame], type[Exception]]:
    """Give what makes frames, and the error of damaged ones. Few images need it."""
    if sys.version_info >= (3, 14):
        from compression import zstd  # noqa: PLC0415
    else:
        from backports import zstd  # noqa: PLC0415
    # By itself it refuses windows of more than 128 MiB.
    return zstd.ZstdDecompressor, zstd.ZstdError
