"""Which headers pass a proxy, and which it sets itself."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from traffic.heads import Headers, has_token, values_of

__all__ = [
    "ACCESS_RENEW",
    "EXECD_TOKEN",
    "HOST_ROUTES",
    "INGRESS_ERROR",
    "SECURE_ACCESS",
    "Forwarded",
    "passing_headers",
    "upgrade_of",
    "with_te",
]

SECURE_ACCESS: Final = b"opensandbox-secure-access"
ACCESS_RENEW: Final = b"opensandbox-access-renew"
INGRESS_ERROR: Final = b"Sandmill-Ingress-Error"
"""Code of an answer that is the ingress's own; nobody behind it can send this header."""

EXECD_TOKEN: Final = b"x-execd-access-token"
HOST_ROUTES: Final = (b"opensandbox-ingress-to", b"open-sandbox-ingress")
"""In the order in which they count; the second is the old name of the first."""

_HOP_BY_HOP: Final = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection".split()
    + b"te transfer-encoding upgrade http2-settings".split()
)
_NEVER: Final = frozenset(
    [
        b"open-sandbox-api-key",
        EXECD_TOKEN,
        SECURE_ACCESS,
        ACCESS_RENEW,
        *HOST_ROUTES,
        b"forwarded",
        b"x-real-ip",
    ]
)
_NEVER_PREFIXES: Final = (b"x-forwarded-", b"sandmill-forwarded-")
_FRAMING: Final = frozenset([b"content-length", b"host"])
"""Whatever `Connection` says: without them a message is another one."""


def passing_headers(headers: Headers, *, is_request: bool, also: Collection[bytes] = ()) -> Headers:
    """Leave out what concerns one hop only, what the sender says does, and, of a request, what nobody behind may see.

    also: further names, in lower case. Good for trailers, too.
    """
    named = {
        token.strip(b" \t").lower()
        for value in values_of(headers, b"connection")
        for token in value.split(b",")
    }
    dropped = _HOP_BY_HOP | (named - _FRAMING) | frozenset(also)
    if not is_request:
        dropped |= {INGRESS_ERROR.lower()}
    return [
        (name, value)
        for name, value in headers
        if name.lower() not in dropped and not (is_request and _is_kept_back(name))
    ]


def _is_kept_back(name: bytes) -> bool:
    """Whether no program in a sandbox may see it. Those of CGI and WSGI see an underscore as a dash."""
    key = name.lower().replace(b"_", b"-")
    return key in _NEVER or key.startswith(_NEVER_PREFIXES)


def upgrade_of(headers: Headers) -> bytes | None:
    """Give the protocols that a request asks to change to, or that a 101 tells; None if there are none.

    HTTP/2 is none: its requests would come past all rules for headers.
    """
    if not has_token(headers, b"connection", b"upgrade"):
        return None
    wanted = b", ".join(values_of(headers, b"upgrade"))
    return None if not wanted or b"h2c" in wanted.lower() else wanted


def with_te(headers: Headers, original: Headers) -> Headers:
    """Say on that the sender of a request reads trailers, if it does."""
    if not has_token(original, b"te", b"trailers"):
        return headers
    return [*headers, (b"TE", b"trailers"), (b"Connection", b"TE")]


@dataclass(frozen=True, slots=True)
class Forwarded:
    """What the backend is told of the request as it came in. prefix: of the path, cut off for it; empty without."""

    client: bytes
    proto: bytes
    host: bytes
    prefix: bytes

    def headers(self, start: bytes = b"X-Forwarded-") -> Headers:
        """Give them as headers whose names begin with `start`."""
        pairs = (
            (b"For", self.client),
            (b"Proto", self.proto),
            (b"Host", self.host),
            (b"Prefix", self.prefix),
        )
        return [(start + name, value) for name, value in pairs if value]

    @classmethod
    def told(cls, headers: Headers) -> "Forwarded | None":
        """Read what a proxy of ours has told by `Sandmill-Forwarded-`; None if it has not. Trust is the caller's."""
        told = {name.lower(): value for name, value in headers if name.lower().startswith(b"sandmill-")}
        if b"sandmill-forwarded-for" not in told:
            return None
        parts = (
            told.get(b"sandmill-forwarded-" + part, b"") for part in (b"for", b"proto", b"host", b"prefix")
        )
        return cls(*parts)
