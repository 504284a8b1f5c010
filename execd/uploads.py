"""Reading the parts of an upload into staged files."""

from typing import Final

from execd.errors import (
    InvalidFileContentError,
    InvalidFileError,
    InvalidFileMetadataError,
    PayloadTooLargeError,
)
from execd.exchange import Exchange
from execd.file_requests import MAX_METADATA_BYTES, parse_metadata
from execd.multipart import BrokenMultipartError, MultipartParser, PartBegin, PartData, PartEnd, boundary_of
from execd.staging import Staging

__all__ = ["receive_files"]

MAX_FILES_PER_UPLOAD: Final = 10_000
_MAX_WAITING_METADATA: Final = 256


async def receive_files(exchange: Exchange, staging: Staging) -> None:
    """Read a multipart body and stage its files. Raises ExecdError."""
    try:
        parser = MultipartParser(boundary_of(exchange.header("content-type")))
        receiver = _PairReceiver(staging)
        body = exchange.raw_body(max_bytes=exchange.limits.upload_bytes)
        try:
            while not body.is_complete:
                for start, end in await body.receive():
                    for event in parser.feed(body.buffer, start, end):
                        receiver.take(event)
        finally:
            body.close()
        parser.close()
    except BrokenMultipartError as error:
        raise InvalidFileContentError(str(error)) from error
    receiver.close()


class _PairReceiver:
    """Puts metadata parts and file parts together, in order."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._waiting: list[bytes] = []
        self._metadata: bytearray | None = None
        self._files = 0

    def take(self, event: PartBegin | PartData | PartEnd) -> None:
        """Take a parser event. Raises ExecdError."""
        if isinstance(event, PartBegin):
            self._begin(event)
        elif isinstance(event, PartData):
            self._data(event.data)
        elif self._metadata is not None:
            self._waiting.append(bytes(self._metadata))
            self._metadata = None
        else:
            self._staging.end()

    def close(self) -> None:
        """Check that every metadata part had its file, and that there was one. Raises ExecdError."""
        if self._waiting:
            raise InvalidFileMetadataError("metadata: a part has no file part after it")
        if not self._files:
            raise InvalidFileError("file: the request has no file part")

    def _begin(self, part: PartBegin) -> None:
        if part.name == "metadata":
            if len(self._waiting) >= _MAX_WAITING_METADATA:
                raise PayloadTooLargeError(
                    f"metadata: more than {_MAX_WAITING_METADATA} parts await their files"
                )
            self._metadata = bytearray()
        elif part.name == "file":
            self._files += 1
            if not self._waiting:
                raise InvalidFileMetadataError("file: a part has no metadata part before it")
            if self._files > MAX_FILES_PER_UPLOAD:
                raise PayloadTooLargeError(f"more than {MAX_FILES_PER_UPLOAD} files")
            metadata = parse_metadata(self._waiting.pop(0))
            self._staging.begin(metadata.path, metadata.permission)
        else:
            raise InvalidFileMetadataError(f"{part.name[:100]}: unknown part")

    def _data(self, data: bytes | memoryview) -> None:
        if self._metadata is None:
            self._staging.write(data)
            return
        self._metadata += data
        if len(self._metadata) > MAX_METADATA_BYTES:
            raise PayloadTooLargeError(f"metadata: larger than {MAX_METADATA_BYTES} bytes")
