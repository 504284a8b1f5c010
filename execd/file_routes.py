"""Routes that read and write files."""

import asyncio
import os
from itertools import chain
from typing import Final

from execd.accounts import Accounts
from execd.changes import change_permissions, move_all
from execd.downloads import CHUNK_BYTES, ByteRange, Download, line_window, parse_range
from execd.errors import ExecdError, InvalidQueryError, MissingQueryError, error_from_os
from execd.exchange import Exchange
from execd.file_replies import (
    checked_path,
    finish_steps,
    make_steps,
    send_array,
    wire_info,
    wire_text,
    with_identities,
)
from execd.file_requests import parse_moves, parse_permissions, parse_replacements
from execd.files import FileInspector, NamePattern
from execd.identity import identity_of
from execd.rewriting import FileRewrites
from execd.router import RouteTable
from execd.staging import Staging
from execd.target import percent_encode
from execd.uploads import receive_files

__all__ = ["FileRoutes"]

_MAX_LINE: Final = 10**18


class FileRoutes:
    """`/files/...`, and the same for other users of the sandbox."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts

    @property
    def routes(self) -> RouteTable:
        """For the router."""
        return with_identities(
            {
                "/files": {"DELETE": self.delete},
                "/files/download": {"GET": self.download},
                "/files/info": {"GET": self.info},
                "/files/mv": {"POST": self.move},
                "/files/permissions": {"POST": self.permissions},
                "/files/replace": {"POST": self.replace},
                "/files/search": {"GET": self.search},
                "/files/upload": {"POST": self.upload},
            }
        )

    async def info(self, exchange: Exchange) -> None:
        """GET /files/info."""
        identity = identity_of(exchange.path_values)
        inspector = FileInspector(self._accounts)
        found = {}
        for path in exchange.target.query.get("path", []):
            with identity:
                found[wire_text(path)] = wire_info(inspector.describe(checked_path(path)))
        await exchange.reply_json(200, found)

    async def delete(self, exchange: Exchange) -> None:
        """DELETE /files; a missing file is as good as a deleted one, a folder is an error."""
        identity = identity_of(exchange.path_values)
        paths = exchange.target.query.get("path")
        if not paths:
            raise MissingQueryError("query parameter 'path' is missing")
        for path in [checked_path(path) for path in paths]:
            try:
                with identity:
                    os.unlink(path)
            except FileNotFoundError:
                continue
            except IsADirectoryError as error:
                raise ExecdError(f"{wire_text(path)} is a directory") from error
            except OSError as error:
                raise error_from_os(error, path) from error
        await exchange.reply(200)

    async def move(self, exchange: Exchange) -> None:
        """POST /files/mv; in the order given, up to the first that fails."""
        identity = identity_of(exchange.path_values)
        moves = parse_moves(await exchange.read_body())
        # A tree that is half copied would be of no use to anyone: it goes on though the client has left.
        await finish_steps(identity.each(move_all(moves)))
        await exchange.reply(200)

    async def permissions(self, exchange: Exchange) -> None:
        """POST /files/permissions; in the order given, up to the first that fails."""
        identity = identity_of(exchange.path_values)
        wanted = parse_permissions(await exchange.read_body())
        await make_steps(exchange, identity.each(change_permissions(wanted, self._accounts)))
        await exchange.reply(200)

    async def replace(self, exchange: Exchange) -> None:
        """POST /files/replace; all files change at the end, or none."""
        identity = identity_of(exchange.path_values)
        is_verbose = _flag(exchange, "verbose")
        replacements = parse_replacements(await exchange.read_body())
        staging = Staging(self._accounts, identity)
        rewrites = FileRewrites(identity, staging)
        try:
            await make_steps(exchange, chain(rewrites.stage(replacements), staging.commit()))
        finally:
            staging.abort()
        if is_verbose:
            await exchange.reply_json(
                200, {path: {"replacedCount": count} for path, count in rewrites.counts.items()}
            )
        else:
            await exchange.reply(200)

    async def search(self, exchange: Exchange) -> None:
        """GET /files/search; the array is sent while the walk goes on."""
        identity = identity_of(exchange.path_values)
        root = checked_path(exchange.target.required("path"))
        pattern = NamePattern(exchange.target.optional("pattern") or "**")
        found = FileInspector(self._accounts).search(root, pattern)
        await send_array(exchange, identity.each(found))

    async def download(self, exchange: Exchange) -> None:
        """GET /files/download."""
        identity = identity_of(exchange.path_values)
        path = checked_path(exchange.target.required("path"))
        query = exchange.target.query
        has_lines = "offset" in query or "limit" in query
        if has_lines and exchange.header("range") is not None:
            raise InvalidQueryError("offset and limit: not together with a Range header")
        with identity:
            download = Download(path)
        try:
            if has_lines:
                await _send_lines(exchange, download)
            else:
                await _send_bytes(exchange, download, path)
        finally:
            download.close()

    async def upload(self, exchange: Exchange) -> None:
        """POST /files/upload; all files of the request appear at its end, or none."""
        staging = Staging(self._accounts, identity_of(exchange.path_values))
        try:
            await receive_files(exchange, staging)
            await finish_steps(staging.commit())
        finally:
            staging.abort()
        await exchange.reply(200)


async def _send_bytes(exchange: Exchange, download: Download, path: str) -> None:
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
    for chunk in download.chunks(await _send_by_kernel(exchange, download, selected)):
        await exchange.send(chunk)
        await asyncio.sleep(0)  # sending to a fast reader waits for nothing, and others are to be served, too
    await exchange.finish()


async def _send_by_kernel(
    exchange: Exchange, download: Download, selected: ByteRange | None
) -> ByteRange | None:
    """Send what needs no reading; gives the rest, which may be empty. A small file is as quickly read."""
    first, last = selected or ByteRange(0, download.size - 1)
    if download.fd is not None and last - first >= CHUNK_BYTES:
        first += await exchange.send_file(download.fd, first, last - first + 1)
    return ByteRange(first, last)


async def _send_lines(exchange: Exchange, download: Download) -> None:
    first = exchange.target.whole_number("offset", default=1, minimum=1, maximum=_MAX_LINE)
    has_limit = "limit" in exchange.target.query
    count = exchange.target.whole_number("limit", default=0, minimum=1, maximum=_MAX_LINE)
    await exchange.start(200, [("content-type", "text/plain")])
    for piece in line_window(download.chunks(), first=first, count=count if has_limit else None):
        if piece:
            await exchange.send(piece)
        await asyncio.sleep(0)
    await exchange.finish()


def _flag(exchange: Exchange, name: str) -> bool:
    text = exchange.target.optional(name) or "false"
    if text not in ("true", "false"):
        raise InvalidQueryError(f"query parameter '{name}' is neither true nor false")
    return text == "true"
