"""The body of an upload to execd, made while it is sent: no file is in memory as a whole."""

import json
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from runtimes.base import FileUpload

__all__ = ["multipart_body"]

_PIECE_BYTES = 256 << 10


def multipart_body(files: Sequence[FileUpload], boundary: str) -> Iterator[bytes]:
    """Give the body piece by piece: for each file its metadata, then its content."""
    for file in files:
        metadata = {"path": file.path, "mode": int(f"{file.mode & 0o7777:o}")}
        yield (
            f'--{boundary}\r\nContent-Disposition: form-data; name="metadata"; filename="metadata"\r\n'
            f"Content-Type: application/json\r\n\r\n{json.dumps(metadata)}\r\n"
            # The name comes from the metadata; this one only has to be there.
            f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="file"\r\n'
            "Content-Type: application/octet-stream\r\n\r\n"
        ).encode()
        yield from _pieces(file.data)
        yield b"\r\n"
    yield f"--{boundary}--\r\n".encode()


def _pieces(data: bytes | BinaryIO) -> Iterator[bytes]:
    """Give content in pieces that are never empty."""
    if isinstance(data, bytes):
        if data:
            yield data
        return
    while piece := data.read(_PIECE_BYTES):
        yield piece
