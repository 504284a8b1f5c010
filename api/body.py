"""Reads request bodies: limited before they are buffered, never compressed, never waited for without end."""

import asyncio
from collections.abc import AsyncIterator, Callable

from fastapi import Request
from starlette.requests import ClientDisconnect

from api.errors import BodyTimeoutError, UnsupportedMediaError
from core.errors import InvalidRequestError, PayloadTooLargeError

__all__ = ["json_body", "middle_json_body", "optional_json_body", "small_json_body", "stream_body"]

_IDLE_SECONDS = 30.0
"""A client that sends nothing for so long in the middle of its body has gone or does harm."""
_SMALL_BYTES = 64 << 10
_MIDDLE_BYTES = 1 << 20


async def stream_body(request: Request, *, max_bytes: int) -> AsyncIterator[bytes]:
    """Give the body piece by piece. Raises PayloadTooLargeError, UnsupportedMediaError, BodyTimeoutError."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise UnsupportedMediaError("send the body without Content-Encoding", field="Content-Encoding")
    _check_length(request.headers.get("content-length"), max_bytes)
    size = 0
    pieces = request.stream().__aiter__()
    while True:
        try:
            async with asyncio.timeout(_IDLE_SECONDS):
                piece = await pieces.__anext__()
        except StopAsyncIteration:
            return
        except TimeoutError as error:
            raise BodyTimeoutError(
                f"nothing came for {_IDLE_SECONDS:.0f} s in the middle of the body"
            ) from error
        except ClientDisconnect as error:
            raise BodyTimeoutError("the client went away in the middle of the body") from error
        size += len(piece)
        if size > max_bytes:
            raise _too_large(max_bytes)
        yield piece


def _json_reader(
    pick_limit: Callable[[Request], int], *, required: bool, is_create: bool = False
) -> Callable[[Request], AsyncIterator[bytes]]:
    async def read(request: Request) -> AsyncIterator[bytes]:
        body = bytearray()
        async for piece in stream_body(request, max_bytes=pick_limit(request)):
            body += piece
        if body:
            kind = request.headers.get("content-type", "application/json").split(";")[0].strip().lower()
            if kind != "application/json":
                raise UnsupportedMediaError("send the body as application/json", field="Content-Type")
        elif required:
            raise InvalidRequestError("the body must be a JSON object", field="body")
        if not is_create:
            yield bytes(body) or b"{}"
            return
        # Only now that it needs no more of the client: a slow one holds up nobody.
        async with request.app.state.services.creators:
            yield bytes(body)

    return read


json_body = _json_reader(
    lambda request: int(request.app.state.services.settings.max_body_bytes), required=True, is_create=True
)
"""Dependency: the bytes of a JSON body. They are parsed on the handler's thread, not in the event loop.

Those who send such bodies share `ApiServices.creators`: when the database holds them up, or a burst of them comes, they
wait here, and leave threads and connections to those who look, cancel or ask for health.
"""

optional_json_body = _json_reader(
    lambda request: int(request.app.state.services.settings.max_body_bytes), required=False
)
"""Dependency: the same for a verb whose body may be left out and may be large."""

middle_json_body = _json_reader(lambda _request: _MIDDLE_BYTES, required=True)
"""Dependency: the same for one thing with a body that is needed and not large."""

small_json_body = _json_reader(lambda _request: _SMALL_BYTES, required=False)
"""Dependency: the same for a verb whose body may be left out and is never large."""


def _check_length(header: str | None, max_bytes: int) -> None:
    if header is not None and header.isascii() and header.isdigit() and int(header[:20]) > max_bytes:
        raise _too_large(max_bytes)


def _too_large(max_bytes: int) -> PayloadTooLargeError:
    return PayloadTooLargeError(f"the body may have at most {max_bytes} bytes", field="body")
