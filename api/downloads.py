"""Sends stored bytes as an attachment that no browser will show or run."""

import os
from collections.abc import Iterator
from typing import Any, BinaryIO
from urllib.parse import quote

from fastapi.responses import StreamingResponse

from core.blobstore import BlobStore, StoredBlob

__all__ = ["DOWNLOAD_RESPONSE", "download"]

_PIECE_BYTES = 256 << 10

DOWNLOAD_RESPONSE: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The bytes.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


def download(store: BlobStore, blob: StoredBlob, *, name: str) -> StreamingResponse:
    """Stream a blob. name: what the client may call the file; any text. Raises NotFoundError if the bytes are lost."""
    file = store.open(blob.digest)
    return StreamingResponse(
        _pieces(file),
        media_type="application/octet-stream",
        headers={
            # Of the bytes themselves: a row that is wrong about them must not break the answer in the middle.
            "Content-Length": str(file.seek(0, os.SEEK_END)),
            # Percent-encoded (RFC 6266), so that no name can break out of the header.
            "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
            "Content-Security-Policy": "sandbox",
            "ETag": f'"{blob.digest}"',
        },
    )


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    with file:
        file.seek(0)
        while piece := file.read(_PIECE_BYTES):
            yield piece
