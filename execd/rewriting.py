"""Replacing text in files of any size."""

import os
from collections.abc import Iterator, Mapping
from typing import Final

from execd.downloads import CHUNK_BYTES, Download
from execd.errors import ExecdError, InvalidBodyError
from execd.file_requests import Replacement
from execd.identity import Identity
from execd.staging import Staging

__all__ = ["FileRewrites", "Rewriter"]

_PIECE_BYTES: Final = 1024 * 1024


class FileRewrites:
    """Stages the new content of the files of one request. counts: by path as it was asked for."""

    def __init__(self, identity: Identity, staging: Staging) -> None:
        self._identity = identity
        self._staging = staging
        self._seen: set[tuple[int, int]] = set()
        self.counts: dict[str, int] = {}

    def stage(self, replacements: Mapping[str, Replacement]) -> Iterator[None]:
        """Stage every file in which anything is to be replaced, step by step. Raises ExecdError."""
        for path, replacement in replacements.items():
            self.counts[path] = 0
            with self._identity:
                # Where a link leads: the renamed file would take the place of the link.
                target = os.path.realpath(path)
                download = Download(target)
            try:
                self._check_new(path, download)
                yield from self._stage_file(path, target, download, replacement)
            except EOFError as error:
                raise ExecdError(f"{path}: {error}") from error
            finally:
                download.close()

    def _check_new(self, path: str, download: Download) -> None:
        file = (download.status.st_dev, download.status.st_ino)
        if file in self._seen:
            raise InvalidBodyError(f"{path}: the same file as another one in the body")
        self._seen.add(file)

    def _stage_file(
        self, path: str, target: str, download: Download, replacement: Replacement
    ) -> Iterator[None]:
        # Not less than the text: or each chunk would be looked through with all of the unfinished text before it.
        chunk_bytes = max(CHUNK_BYTES, len(replacement.old))
        search = Rewriter(replacement)
        for _ in search.pieces(download.chunks(chunk_bytes=chunk_bytes)):
            yield
            if search.count:
                break
        else:
            return
        rewriter = Rewriter(replacement)
        self._staging.begin_rewrite(target, download.status)
        for piece in rewriter.pieces(download.chunks(chunk_bytes=chunk_bytes)):
            self._staging.write(piece)
            yield
        self._staging.end()
        self.counts[path] = rewriter.count


class Rewriter:
    """Replaces bytes in a stream. count: how often it has done so."""

    def __init__(self, replacement: Replacement) -> None:
        self._old = replacement.old
        self._new = replacement.new
        self.count = 0

    def pieces(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """Give what becomes of the chunks, each occurrence replaced from left to right, in pieces of about 1 MiB."""
        rest = b""
        for chunk in chunks:
            parts = (rest + chunk).split(self._old)
            self.count += len(parts) - 1
            # What may be the beginning of an occurrence waits for the next chunk.
            last = parts.pop()
            end = max(0, len(last) - len(self._old) + 1)
            rest = last[end:]
            parts.append(last[:end])
            yield from self._joined(parts)
        yield rest

    def _joined(self, parts: list[bytes]) -> Iterator[bytes]:
        pending = parts[:1]
        size = 0
        for part in parts[1:]:
            pending += (self._new, part)
            size += len(self._new) + len(part)
            if size >= _PIECE_BYTES:
                yield b"".join(pending)
                pending, size = [], 0
        yield b"".join(pending)
