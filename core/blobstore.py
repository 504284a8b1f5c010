"""Content-addressed files: the bytes behind blobs, big inputs and artifacts.

The folder holds `<first two hex digits>/<the other 62>` and is written by API and workers alike. Who may read a blob is
decided by the table `blobs`, never here. A file appears under its digest only when it is whole and on disk.
"""

import contextlib
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from core.errors import InvalidRequestError, NotFoundError, PayloadTooLargeError

__all__ = ["BlobStore", "BlobWriter", "StoredBlob", "check_digest"]

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_STALE_SECONDS = 86400.0
"""A temporary file of this age belongs to an upload that died with its process."""


@dataclass(frozen=True, slots=True)
class StoredBlob:
    """One file of the store. digest: `sha256:<hex>`."""

    digest: str
    size_bytes: int


def check_digest(digest: str) -> str:
    """Give the 64 hex digits of `sha256:<hex>`. Raises InvalidRequestError on any other text."""
    match = _DIGEST.fullmatch(digest)
    if match is None:
        raise InvalidRequestError("a digest is 'sha256:' and 64 lowercase hex digits", field="digest")
    return match[1]


class BlobStore:
    """A folder of blobs. Safe with many threads and processes at once; a blob never changes once stored."""

    def __init__(self, root: Path) -> None:
        """root: made on the first write if missing, readable by this user only."""
        self._root = root

    def writer(self, *, max_bytes: int, expected_digest: str | None = None) -> "BlobWriter":
        """Start a blob of at most max_bytes; the caller writes, then commits, inside a `with`."""
        if expected_digest is not None:
            check_digest(expected_digest)
        uploads = self._root / "uploads"
        # One by one: with `parents`, the mode would count for the last folder only.
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        uploads.mkdir(exist_ok=True, mode=0o700)
        return BlobWriter(self, uploads, max_bytes=max_bytes, expected_digest=expected_digest)

    def put(
        self, chunks: Iterable[bytes], *, max_bytes: int, expected_digest: str | None = None
    ) -> StoredBlob:
        """Store the bytes. Raises PayloadTooLargeError; InvalidRequestError if the digest is not the expected one."""
        with self.writer(max_bytes=max_bytes, expected_digest=expected_digest) as writer:
            for chunk in chunks:
                writer.write(chunk)
            return writer.commit()

    def open(self, digest: str) -> BinaryIO:
        """Open for reading; the caller closes. Raises NotFoundError."""
        try:
            return self.path(digest).open("rb")
        except FileNotFoundError as error:
            raise NotFoundError("blob", digest) from error

    def read(self, digest: str) -> bytes:
        """Read all of a blob that is known to be small. Raises NotFoundError."""
        with self.open(digest) as file:
            return file.read()

    def has(self, digest: str) -> bool:
        """Say whether the bytes are here."""
        return self.path(digest).is_file()

    def touch(self, digest: str) -> bool:
        """Keep the bytes anew, as if they had come now. False: they are not here."""
        try:
            os.utime(self.path(digest))
        except FileNotFoundError:
            return False
        return True

    def old_digests(self, prefix: str, *, age_seconds: float) -> list[str]:
        """Digests whose first two hex digits are `prefix` and whose bytes were last sent so long ago."""
        limit = time.time() - age_seconds
        found = []
        with contextlib.suppress(FileNotFoundError):
            for entry in os.scandir(self._root / prefix):
                with contextlib.suppress(FileNotFoundError):
                    if entry.stat().st_mtime < limit:
                        found.append(f"sha256:{prefix}{entry.name}")
        return found

    def remove_unused(self, digest: str, *, age_seconds: float, is_used: Callable[[], bool]) -> bool:
        """Remove old bytes; False if they turn out to be wanted. is_used: asked when nobody can find them any more.

        First they are put aside. Who sends them again before that has touched them, which is seen here, and they are
        put back; who sends them again after that finds nothing and writes them anew.
        """
        path, aside = self.path(digest), self._root / "aside" / check_digest(digest)
        aside.parent.mkdir(exist_ok=True, mode=0o700)
        try:
            path.rename(aside)
        except FileNotFoundError:
            return False
        if aside.stat().st_mtime < time.time() - age_seconds and not is_used():
            aside.unlink()
            return True
        self._put_back(aside)
        return False

    def path(self, digest: str) -> Path:
        """Say where the blob lies or would lie."""
        name = check_digest(digest)
        return self._root / name[:2] / name[2:]

    def sweep(self) -> int:
        """Remove what dead uploads left behind; gives the number of files."""
        limit = time.time() - _STALE_SECONDS
        removed = 0
        for path in (self._root / "uploads").glob("*"):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < limit:
                    path.unlink()
                    removed += 1
        # Of a collector that died before it had decided.
        for path in (self._root / "aside").glob("*"):
            self._put_back(path)
        return removed

    def _put_back(self, aside: Path) -> None:
        """Give a file its place again, unless it was written anew meanwhile: the bytes are the same."""
        with contextlib.suppress(FileNotFoundError):
            with contextlib.suppress(FileExistsError):
                self.path(f"sha256:{aside.name}").hardlink_to(aside)
            aside.unlink()


class BlobWriter:
    """One blob on its way in. Leaving the `with` without commit leaves nothing behind."""

    def __init__(
        self, store: BlobStore, folder: Path, *, max_bytes: int, expected_digest: str | None
    ) -> None:
        """Use BlobStore.writer."""
        self._store = store
        self._max_bytes = max_bytes
        self._expected = expected_digest
        self._hash = hashlib.sha256()
        self._size = 0
        handle, name = tempfile.mkstemp(dir=folder)
        self._file = os.fdopen(handle, "wb")
        self._temporary = Path(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._temporary.unlink(missing_ok=True)

    def write(self, chunk: bytes) -> None:
        """Add bytes. Raises PayloadTooLargeError beyond the limit."""
        self._size += len(chunk)
        if self._size > self._max_bytes:
            raise PayloadTooLargeError(f"a blob may have at most {self._max_bytes} bytes")
        self._hash.update(chunk)
        self._file.write(chunk)

    def commit(self) -> StoredBlob:
        """Make the blob visible under its digest; it survives a power cut from here on."""
        digest = f"sha256:{self._hash.hexdigest()}"
        if self._expected is not None and digest != self._expected:
            raise InvalidRequestError(f"the bytes have the digest {digest}", field="digest")
        target = self._store.path(digest)
        if not self._store.touch(digest):
            self._file.flush()
            os.fsync(self._file.fileno())
            target.parent.mkdir(exist_ok=True, mode=0o700)
            # Two uploads of the same bytes: the second replaces the first by an equal file, which no reader notices.
            self._temporary.replace(target)
            _sync_folder(target.parent)
        return StoredBlob(digest, self._size)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
