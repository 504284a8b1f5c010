"""What the routes of files and directories have in common."""

import asyncio
import json
from base64 import b64encode
from collections.abc import Iterator
from typing import Any, Final

from execd.errors import InvalidQueryError
from execd.exchange import Exchange
from execd.router import RouteTable

__all__ = [
    "checked_path",
    "finish_steps",
    "make_steps",
    "send_array",
    "wire_info",
    "wire_text",
    "with_identities",
]

IDENTITY_PREFIX: Final = "/v1/filesystem/{uid}/{gid}"
_JSON_WRITE_BYTES: Final = 64 * 1024


def with_identities(table: RouteTable) -> RouteTable:
    """Add the same routes for acting as another user."""
    return {**table, **{IDENTITY_PREFIX + path: methods for path, methods in table.items()}}


def checked_path(path: str) -> str:
    """Give a path that the kernel can take. Raises InvalidQueryError."""
    if not path:
        raise InvalidQueryError("path: is empty")
    if "\0" in path:
        raise InvalidQueryError("path: holds a NUL character")
    return path


def wire_text(path: str) -> str:
    """Give a path as JSON can carry it: bytes that are not UTF-8 become U+FFFD."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def wire_info(info: dict[str, Any]) -> dict[str, Any]:
    """Give a FileInfo as JSON can carry it. A path that is not UTF-8 is in `path_b64` too, as exact bytes."""
    path = info["path"]
    text = wire_text(path)
    if text == path:
        return info
    return info | {
        "path": text,
        "path_b64": b64encode(path.encode("utf-8", "surrogateescape")).decode("ascii"),
    }


async def finish_steps(steps: Iterator[object]) -> None:
    """Run a long piece of work to its end, whether the client stays or not; others are served between its steps."""
    for _ in steps:
        await asyncio.sleep(0)


async def make_steps(exchange: Exchange, steps: Iterator[object]) -> None:
    """Run a long piece of work; others are served between its steps, and a client that leaves ends it.

    The request's body must have been read. Raises what the steps raise, and ConnectionAbortedError.
    """
    gone = asyncio.Event()
    exchange.on_disconnect(gone.set)
    for _ in steps:
        await asyncio.sleep(0)
        if gone.is_set():
            raise ConnectionAbortedError("the client has gone")


async def send_array(exchange: Exchange, items: Iterator[dict[str, Any] | None]) -> None:
    """Answer with an array of FileInfo, sent while it is being made; None is a pause. Raises what the first raises."""
    pending = ["["]
    size = 0
    separator = ""
    for info in items:
        if info is None:
            await asyncio.sleep(0)
            continue
        pending.append(separator + json.dumps(wire_info(info), separators=(",", ":")))
        separator = ","
        size += len(pending[-1])
        if size > _JSON_WRITE_BYTES:
            await _send(exchange, pending)
            pending, size = [], 0
    pending.append("]")
    await _send(exchange, pending)
    await exchange.finish()


async def _send(exchange: Exchange, parts: list[str]) -> None:
    data = "".join(parts).encode("ascii")
    if exchange.is_started:
        await exchange.send(data)
    else:
        await exchange.start(200, [("content-type", "application/json")], first=data)
