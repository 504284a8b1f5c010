"""From a request to the sandbox and port it is for."""

import re
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from ingress.errors import RouteError
from traffic.headers import HOST_ROUTES
from traffic.heads import RequestHead, values_of

__all__ = ["Route", "find_route"]

_ID: Final = rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
"""In its one spelling: what another reader might take for the same id names no sandbox."""
_PORT: Final = rb"[1-9][0-9]{0,4}"
_KEY: Final = re.compile(rb"(%b)-(%b)" % (_ID, _PORT))
_UNSPELLED: Final = re.compile(rb"(?:urn:uuid:)?\{?[0-9a-f-]{32,}\}?-%b" % _PORT, re.IGNORECASE)
"""An id in another spelling, and a port."""
_PATH: Final = re.compile(rb"/(%b)/(%b)(?:/~([A-Za-z0-9_-]{16,128}))?(?=[/?]|\Z)" % (_ID, _PORT))
_MAX_PORT: Final = 65535


@dataclass(frozen=True, slots=True)
class Route:
    """target: for the program behind, byte for byte. prefix: what was cut off its path, but for the token, or empty.

    token: the access token, where the path has it, for clients that know of no headers of an endpoint.
    """

    sandbox_id: UUID
    port: int
    target: bytes
    prefix: bytes = b""
    token: bytes | None = None


def find_route(head: RequestHead) -> Route:
    """Read the header, else the first label of the host, else the path. Raises RouteError."""
    for name in HOST_ROUTES:
        keys = values_of(head.headers, name)
        if len(keys) > 1:
            raise RouteError(f"the header {name.decode()} is repeated")
        if keys:
            match = _KEY.fullmatch(keys[0])
            if match is None:
                status = 404 if _UNSPELLED.fullmatch(keys[0]) else 400
                raise RouteError(f"the header {name.decode()} is not ID-PORT", status=status)
            return _route(match, head.target)
    for host in values_of(head.headers, b"host"):
        match = _KEY.fullmatch(host.partition(b".")[0].lower())
        if match is not None:
            return _route(match, head.target)
    match = _PATH.match(head.target)
    if match is None:
        raise RouteError("there is nothing here: the path is /ID/PORT/..., with a sandbox's id", status=404)
    rest = head.target[match.end() :]
    return _route(
        match, rest if rest.startswith(b"/") else b"/" + rest, head.target[: match.end(2)], match[3]
    )


def _route(match: "re.Match[bytes]", target: bytes, prefix: bytes = b"", token: bytes | None = None) -> Route:
    port = int(match[2])
    if port > _MAX_PORT:
        raise RouteError(f"there is no port {port}")
    return Route(UUID(match[1].decode()), port, target, prefix, token)
