"""Files of an image archive by name, whether it is a folder or a tar."""

import os
import posixpath
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from core.errors import BadImageError
from runtimes.local.images.tar_stream import TarEntry, TarKind, TarReader

__all__ = ["MAX_FILES", "Blobs", "FolderBlobs", "TarBlobs", "plain_name", "read_small", "seeking_reader"]

MAX_FILES = 10_000
"""In the archive of an image."""

_MAX_NAME_BYTES = 4096
_MAX_LINKS = 8


class Blobs(Protocol):
    """Read access by relative name, e.g. `index.json`."""

    def has(self, name: str) -> bool:
        """Say whether there is such a file."""

    def open(self, name: str) -> AbstractContextManager[BinaryIO]:
        """Open it for reading from its start, seekable. Raises BadImageError if it is not there."""


def read_small(blobs: Blobs, name: str, max_bytes: int) -> bytes:
    """Read a whole document. Raises BadImageError for one that is missing or larger."""
    with blobs.open(name) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise BadImageError(f"{name} in the archive is larger than {max_bytes} bytes")
    return data


class FolderBlobs:
    """Files of a folder on this host. Links are not followed: they could lead to any file of its reader."""

    def __init__(self, folder: Path) -> None:
        """folder: trusted as a place, not in what is in it."""
        self._folder = folder

    def has(self, name: str) -> bool:
        """See `Blobs`."""
        path = self._folder / name
        return path.is_file() and not path.is_symlink()

    @contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        """See `Blobs`."""
        try:
            descriptor = os.open(
                self._folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            )
        except OSError as error:
            raise BadImageError(f"{name} in the folder cannot be read: {error.strerror}") from error
        with os.fdopen(descriptor, "rb") as file:
            yield file


class TarBlobs:
    """Files of an unpacked tar archive, read in place."""

    def __init__(self, file: BinaryIO) -> None:
        """Read all headers. file: seekable, stays the caller's. Raises BadImageError for what is no tar."""
        self._file = file
        self._size = file.seek(0, os.SEEK_END)
        self._places: dict[str, tuple[int, int]] = {}
        self._links: dict[str, str] = {}
        file.seek(0)
        for entry in seeking_reader(file):
            self._note(entry)

    def _note(self, entry: TarEntry) -> None:
        if max(len(entry.name), len(entry.link)) > _MAX_NAME_BYTES:
            raise BadImageError(f"a name in the archive is longer than {_MAX_NAME_BYTES} bytes")
        name = plain_name(entry.name)
        if len(self._places) + len(self._links) >= MAX_FILES:
            raise BadImageError(f"the archive of an image has more than {MAX_FILES} files")
        if entry.kind is TarKind.FILE:
            start = self._file.tell()
            if start + entry.size > self._size:
                raise BadImageError(f"the archive is cut short, in {name}")
            self._places[name] = (start, entry.size)
        elif entry.kind is TarKind.SYMLINK:
            self._links[name] = posixpath.normpath(
                posixpath.join(posixpath.dirname(name), os.fsdecode(entry.link))
            )
        elif entry.kind is TarKind.HARDLINK:
            self._links[name] = plain_name(entry.link)

    def names(self) -> Iterator[str]:
        """Give the names of all files and links."""
        yield from self._places
        yield from self._links

    def has(self, name: str) -> bool:
        """See `Blobs`."""
        return self._resolve(name) is not None

    @contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        """See `Blobs`. One at a time is read."""
        place = self._resolve(name)
        if place is None:
            raise BadImageError(f"{name} is not in the archive")
        # A part of a file has of BinaryIO what its readers here use.
        yield cast("BinaryIO", _Part(self._file, *place))

    def _resolve(self, name: str) -> tuple[int, int] | None:
        """Follow links within the archive: older engines write a layer that occurs twice as one."""
        for _ in range(_MAX_LINKS):
            if name not in self._links:
                break
            name = self._links[name]
        return self._places.get(name)


class _Part:
    """A range of a file, read like a file."""

    def __init__(self, file: BinaryIO, start: int, size: int) -> None:
        self._file = file
        self._start = start
        self._size = size
        self._at = 0

    def read(self, size: int = -1, /) -> bytes:
        left = self._size - self._at
        self._file.seek(self._start + self._at)
        data = self._file.read(left if size < 0 else min(size, left))
        self._at += len(data)
        return data

    def seek(self, offset: int, /) -> int:
        self._at = offset
        return offset


def seeking_reader(file: BinaryIO) -> TarReader:
    """Read the headers of an unpacked tar without its content, which may end too early."""
    return TarReader(file, skip=lambda size: file.seek(size, os.SEEK_CUR))


def plain_name(name: bytes) -> str:
    """Give a name of an archive without `./` and slashes at the ends."""
    return os.fsdecode(name).removeprefix("./").strip("/")
