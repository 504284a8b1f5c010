"""Routes that read and write files."""

import asyncio
import json
import os
from base64 import b64encode
from typing import Any, Final

from execd.accounts import Accounts
from execd.connection import Exchange
from execd.errors import (
    ExecdError,
    InvalidFileContentError,
    InvalidFileError,
    InvalidFileMetadataError,
    InvalidQueryError,
    MissingQueryError,
    NotSupportedError,
    PayloadTooLargeError,
    error_from_os,
)
from execd.files import Download, FileInspector, NamePattern, parse_range
from execd.multipart import BrokenMultipartError, MultipartParser, PartBegin, PartData, PartEnd, boundary_of
from execd.router import RouteTable
from execd.target import percent_encode
from execd.uploads import MAX_METADATA_BYTES, UploadTransaction, parse_metadata

__all__ = ["FileRoutes"]

MAX_FILES_PER_UPLOAD: Final = 10_000
_MAX_WAITING_METADATA: Final = 256
_JSON_WRITE_BYTES: Final = 64 * 1024


class FileRoutes:
    """`/files/...`."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._inspector = FileInspector(accounts)

    @property
    def routes(self) -> RouteTable:
        """For the router."""
        return {
            "/files": {"DELETE": self.delete},
            "/files/download": {"GET": self.download},
            "/files/info": {"GET": self.info},
            "/files/search": {"GET": self.search},
            "/files/upload": {"POST": self.upload},
        }

    async def info(self, exchange: Exchange) -> None:
        """GET /files/info."""
        paths = exchange.target.query.get("path", [])
        found = {}
        for path in paths:
            found[_wire_text(path)] = _wire_info(self._inspector.describe(_checked_path(path)))
        await exchange.reply_json(200, found)

    async def delete(self, exchange: Exchange) -> None:
        """DELETE /files; a missing file is as good as a deleted one, a folder is an error."""
        paths = exchange.target.query.get("path")
        if not paths:
            raise MissingQueryError("query parameter 'path' is missing")
        for path in [_checked_path(path) for path in paths]:
            try:
                os.unlink(path)
            except FileNotFoundError:
                continue
            except IsADirectoryError as error:
                raise ExecdError(f"{_wire_text(path)} is a directory") from error
            except OSError as error:
                raise error_from_os(error, path) from error
        await exchange.reply(200)

    async def search(self, exchange: Exchange) -> None:
        """GET /files/search; the array is sent while the walk goes on."""
        root = _checked_path(exchange.target.required("path"))
        pattern = NamePattern(exchange.target.optional("pattern") or "**")
        matches = self._inspector.search(root, pattern)
        await exchange.start(200, [("content-type", "application/json")])
        pending = ["["]
        size = 0
        separator = ""
        for info in matches:
            if info is None:
                await asyncio.sleep(0)
                continue
            pending.append(separator + json.dumps(_wire_info(info), separators=(",", ":")))
            separator = ","
            size += len(pending[-1])
            if size > _JSON_WRITE_BYTES:
                await exchange.send("".join(pending).encode("ascii"))
                pending, size = [], 0
        pending.append("]")
        await exchange.send("".join(pending).encode("ascii"))
        await exchange.finish()

    async def download(self, exchange: Exchange) -> None:
        """GET /files/download."""
        path = _checked_path(exchange.target.required("path"))
        if "offset" in exchange.target.query or "limit" in exchange.target.query:
            raise NotSupportedError("offset and limit: not supported by this version of execd")
        download = Download(path)
        try:
            selected = parse_range(exchange.header("range"), download.size)
            length = selected.last - selected.first + 1 if selected else download.size
            name = path.rstrip("/").rpartition("/")[2]
            headers = [
                ("content-type", "application/octet-stream"),
                ("content-disposition", f"attachment; filename*=UTF-8''{percent_encode(name)}"),
                ("accept-ranges", "bytes"),
                ("content-length", str(length)),
            ]
            if selected:
                headers.append(("content-range", f"bytes {selected.first}-{selected.last}/{download.size}"))
            await exchange.start(206 if selected else 200, headers)
            for chunk in download.chunks(selected):
                await exchange.send(chunk)
            await exchange.finish()
        finally:
            download.close()

    async def upload(self, exchange: Exchange) -> None:
        """POST /files/upload; all files of the request appear at its end, or none."""
        transaction = UploadTransaction(self._accounts)
        try:
            await self._receive_files(exchange, transaction)
            transaction.commit()
        except BrokenMultipartError as error:
            raise InvalidFileContentError(str(error)) from error
        finally:
            transaction.abort()
        await exchange.reply(200)

    async def _receive_files(self, exchange: Exchange, transaction: UploadTransaction) -> None:
        parser = MultipartParser(boundary_of(exchange.header("content-type")))
        receiver = _PairReceiver(transaction)
        async for piece in exchange.body(max_bytes=exchange.limits.upload_bytes):
            for event in parser.feed(piece):
                receiver.take(event)
        parser.close()
        receiver.close()


class _PairReceiver:
    """Puts metadata parts and file parts together, in order."""

    def __init__(self, transaction: UploadTransaction) -> None:
        self._transaction = transaction
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
            self._transaction.end()

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
            self._transaction.begin(parse_metadata(self._waiting.pop(0)))
        else:
            raise InvalidFileMetadataError(f"{part.name[:100]}: unknown part")

    def _data(self, data: bytes) -> None:
        if self._metadata is None:
            self._transaction.write(data)
            return
        self._metadata += data
        if len(self._metadata) > MAX_METADATA_BYTES:
            raise PayloadTooLargeError(f"metadata: larger than {MAX_METADATA_BYTES} bytes")


def _checked_path(path: str) -> str:
    if not path:
        raise InvalidQueryError("path: is empty")
    if "\0" in path:
        raise InvalidQueryError("path: holds a NUL character")
    return path


def _wire_text(path: str) -> str:
    """Give a path as JSON can carry it: bytes that are not UTF-8 become U+FFFD."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _wire_info(info: dict[str, Any]) -> dict[str, Any]:
    """Give a FileInfo as JSON can carry it. A path that is not UTF-8 is in `path_b64` too, as exact bytes."""
    path = info["path"]
    text = _wire_text(path)
    if text == path:
        return info
    return info | {
        "path": text,
        "path_b64": b64encode(path.encode("utf-8", "surrogateescape")).decode("ascii"),
    }
