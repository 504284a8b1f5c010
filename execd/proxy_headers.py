"""Which headers pass a relay, and how a relayed target is read."""

from collections.abc import Iterable, Iterator
from typing import Final, Protocol

import h11

from execd.errors import InvalidQueryError
from execd.routes import TOKEN_HEADER
from execd.target import RELAY_PREFIX

__all__ = ["RawHeaders", "has_token", "kept_headers", "request_headers", "response_headers", "split_target"]

RawHeaders = list[tuple[bytes, bytes]]
"""Names as they were written, in order, repetitions included."""


class _Headers(Protocol):
    """Those of an h11 event: names in lower case by iteration, as they were written by `raw_items`."""

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]: ...

    def raw_items(self) -> RawHeaders: ...


_HOP_BY_HOP: Final = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection".split()
    + b"te transfer-encoding upgrade".split()
)
_TOKEN_HEADER: Final = TOKEN_HEADER.lower().encode("ascii")
_PREFIX_HEADER: Final = b"x-forwarded-prefix"


def split_target(raw: bytes, *, own_port: int | None) -> tuple[int, bytes]:
    """Give the port and the target for it, byte for byte. own_port: refused, as a request would come in again.

    Raises InvalidQueryError.
    """
    rest = raw.removeprefix(RELAY_PREFIX)
    end = next((index for index, byte in enumerate(rest) if byte in b"/?"), len(rest))
    port = rest[:end]
    if not (port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535):
        raise InvalidQueryError("port: /proxy/{port}/ needs a port from 1 to 65535")
    if int(port) == own_port:
        raise InvalidQueryError("port: it is execd's own")
    target = rest[end:]
    return int(port), target if target.startswith(b"/") else b"/" + target


def request_headers(request: h11.Request, port: int, *, upgrades: bool) -> RawHeaders:
    """Give the headers for the backend: all but those of this hop, `Host` as it is, and where it is mounted.

    upgrades: the request asks for another protocol, and may.
    """
    headers = [
        (name, value)
        for name, value in kept_headers(request.headers)
        if name.lower() not in (_TOKEN_HEADER, _PREFIX_HEADER)
    ]
    # A front relay may have cut off a prefix of its own.
    front = b"".join([value for name, value in request.headers if name == _PREFIX_HEADER][:1])
    if not any(name.lower() == b"host" for name, _ in headers):  # HTTP/1.0
        headers.append((b"Host", b"127.0.0.1:%d" % port))
    headers.append((b"X-Forwarded-Prefix", front.rstrip(b"/") + RELAY_PREFIX + b"%d" % port))
    if _is_chunked(request.headers):
        headers = [*_without_length(headers), (b"Transfer-Encoding", b"chunked")]
    if has_token(request.headers, b"te", b"trailers"):
        headers.append((b"TE", b"trailers"))
    if upgrades:
        protocols = [value for name, value in request.headers if name == b"upgrade"]
        return [*headers, (b"Connection", b"Upgrade"), (b"Upgrade", b", ".join(protocols))]
    return [*headers, (b"Connection", b"close")]


def response_headers(response: h11.Response | h11.InformationalResponse) -> RawHeaders:
    """Give the headers for the client. How the body is framed towards it is decided anew."""
    headers = kept_headers(response.headers)
    if response.status_code == 101:
        protocols = [value for name, value in response.headers if name == b"upgrade"]
        return [*headers, (b"Connection", b"Upgrade"), (b"Upgrade", b", ".join(protocols))]
    return _without_length(headers) if _is_chunked(response.headers) else headers


def kept_headers(headers: _Headers) -> RawHeaders:
    """Leave out what concerns one hop only, and what the sender says does."""
    named = {
        token.strip().lower()
        for name, value in headers
        if name == b"connection"
        for token in value.split(b",")
    }
    dropped = _HOP_BY_HOP | named
    return [(name, value) for name, value in headers.raw_items() if name.lower() not in dropped]


def has_token(headers: Iterable[tuple[bytes, bytes]], name: bytes, token: bytes) -> bool:
    """Say whether a comma separated header holds a token, whatever its case."""
    return any(
        token in [item.split(b";")[0].strip().lower() for item in value.split(b",")]
        for key, value in headers
        if key == name
    )


def _is_chunked(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return has_token(headers, b"transfer-encoding", b"chunked")


def _without_length(headers: RawHeaders) -> RawHeaders:
    return [(name, value) for name, value in headers if name.lower() != b"content-length"]
