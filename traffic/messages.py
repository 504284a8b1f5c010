"""Heads of messages that go on: what a program behind is told, and what its client is."""

from collections.abc import Awaitable, Callable, Collection
from typing import Final

from traffic.bodies import CHUNKED, UNTIL_CLOSE, BodyReader, Framing, request_framing, response_framing
from traffic.errors import BackendError, MessageError
from traffic.headers import passing_headers, upgrade_of, with_te
from traffic.heads import Headers, RequestHead, ResponseHead, format_head, read_response, values_of
from traffic.streams import Stream

__all__ = ["SAFE_TO_REPEAT", "outgoing_head", "read_answer", "returned_headers"]

SAFE_TO_REPEAT: Final = frozenset([b"GET", b"HEAD", b"OPTIONS", b"TRACE", b"PUT", b"DELETE"])
"""Methods of requests that may be sent twice: the idempotent ones."""

_MAX_INTERIM: Final = 32

OnInterim = Callable[[ResponseHead], Awaitable[None]]


def outgoing_head(
    request: RequestHead,
    target: bytes,
    *,
    added: Headers,
    dropped: Collection[bytes] = (),
    upgrade: bytes | None = None,
) -> bytes:
    """Write the head for the program: what may pass, and what we add. The body is framed as it came.

    dropped: further names that may not pass, in lower case. upgrade: protocols that are asked for.
    """
    headers = passing_headers(request.headers, is_request=True, also=dropped)
    if not values_of(headers, b"host"):  # HTTP/1.0
        headers.append((b"Host", b"sandbox"))
    headers += added
    if request_framing(request) == CHUNKED:
        headers.append((b"Transfer-Encoding", b"chunked"))
    if upgrade is not None:
        headers += [(b"Connection", b"Upgrade"), (b"Upgrade", upgrade)]
    else:
        headers = with_te(headers, request.headers)
    return format_head(b"%b %b HTTP/1.1" % (request.method, target), headers)


async def read_answer(
    stream: Stream, *, method: bytes, upgrades: bool, on_interim: OnInterim
) -> tuple[ResponseHead, BodyReader]:
    """Give the answer, or the 101 in its place, and its body. Raises BackendError.

    upgrades: a 101 was asked for. on_interim: called with what goes before the answer.
    """
    for _ in range(_MAX_INTERIM):
        head = await read_response(stream)
        if head.status == 101:
            if not upgrades or upgrade_of(head.headers) is None:
                raise BackendError("the answer changes to a protocol that was not asked for")
            return head, BodyReader(stream, 0)
        if head.status >= 200:
            try:
                return head, BodyReader(stream, response_framing(head, method=method))
            except MessageError as error:
                raise BackendError(f"the answer is broken: {error.message}") from error
        await on_interim(head)
    raise BackendError("the answer does not come, only announcements of it")


def returned_headers(head: ResponseHead, framing: Framing, *, is_chunked: bool) -> Headers:
    """Give the headers for the client. is_chunked: the body goes on in chunks, if there is one."""
    headers = passing_headers(head.headers, is_request=False)
    if head.status == 101:
        upgrade = upgrade_of(head.headers) or b""
        return [*headers, (b"Connection", b"Upgrade"), (b"Upgrade", upgrade)]
    if head.status < 200 or head.status == 204:
        return [(name, value) for name, value in headers if name.lower() != b"content-length"]
    if framing in (CHUNKED, UNTIL_CLOSE) and is_chunked:
        headers.append((b"Transfer-Encoding", b"chunked"))
    return headers
