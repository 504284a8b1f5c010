"""Addresses that tenants give us to call: which of them we call at all.

A name is resolved once, all its addresses are checked, and the connection goes to a checked address, not to the name:
a name that resolves differently a moment later (DNS rebinding) gains nothing.
"""

import ipaddress
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from core.errors import InvalidRequestError, SandmillError

__all__ = ["AddressGuard", "AddressRefusedError", "OutboundUrl", "UnresolvedError", "parse_url"]

_MAX_URL = 2000
_DEFAULT_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252})")
_NOT_PUBLIC = tuple(
    ipaddress.ip_network(text)
    for text in ("192.0.0.0/24", "192.88.99.0/24", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32")
)
"""Counted as public by the library: protocol assignments, and IPv6 for IPv4 addresses behind a translator or tunnel."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class AddressRefusedError(InvalidRequestError):
    """The URL leads where this installation calls nobody."""

    code = "address_refused"


class UnresolvedError(SandmillError):
    """The name has no address at the moment."""

    code = "unresolved"
    retryable = True


@dataclass(frozen=True, slots=True)
class OutboundUrl:
    """A checked form. text: as given. host: a name or an address, without brackets."""

    text: str
    scheme: str
    host: str
    port: int

    @property
    def origin(self) -> str:
        """Scheme, host and port: what one receiver is."""
        return f"{self.scheme}://{self.bracketed}:{self.port}"

    @property
    def authority(self) -> str:
        """The Host header: the port only where it is not the scheme's own (RFC 9110, section 7.2)."""
        is_usual = self.port == _DEFAULT_PORTS[self.scheme]
        return self.bracketed if is_usual else f"{self.bracketed}:{self.port}"

    @property
    def bracketed(self) -> str:
        """The host as it stands in a URL."""
        return f"[{self.host}]" if ":" in self.host else self.host

    def at(self, address: str) -> str:
        """Give the URL with an address in the place of the host."""
        parts = urlsplit(self.text)
        place = f"[{address}]" if ":" in address else address
        return parts._replace(netloc=f"{place}:{self.port}").geturl()


def parse_url(text: str, *, field: str) -> OutboundUrl:
    """Read a URL to be called later. Raises InvalidRequestError with the field."""
    if len(text) > _MAX_URL:
        raise InvalidRequestError(f"may have at most {_MAX_URL} characters", field=field)
    if not text.isascii() or re.search(r"[\x00-\x20\x7f\\]", text):
        raise InvalidRequestError("must be printable ASCII: encode the rest (%XX, punycode)", field=field)
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise InvalidRequestError("is not a URL", field=field) from error
    scheme, host = parts.scheme.lower(), (parts.hostname or "").removesuffix(".")
    if scheme not in _DEFAULT_PORTS:
        raise InvalidRequestError("must begin with https://", field=field)
    if parts.username is not None or parts.password is not None:
        raise InvalidRequestError(
            "must not hold a user or password: receivers check the signature", field=field
        )
    if "#" in text:
        raise InvalidRequestError("must not hold a fragment", field=field)
    if port == 0 or not (_HOST.fullmatch(host) or _is_address(host)):
        raise InvalidRequestError("needs a host", field=field)
    return OutboundUrl(text, scheme, host, port or _DEFAULT_PORTS[scheme])


class AddressGuard:
    """Decides which addresses are called: those of the public internet, and networks the operator has named."""

    def __init__(self, allowed_networks: Iterable[str] = ()) -> None:
        """allowed_networks: CIDR; plain http goes to these alone."""
        self._allowed: tuple[Network, ...] = tuple(ipaddress.ip_network(text) for text in allowed_networks)

    def resolve(self, url: OutboundUrl, *, field: str | None = None) -> str:
        """Give an address to connect to. Blocks for as long as the resolver does.

        Raises AddressRefusedError if any of the name's addresses may not be called: which of them a receiver is
        reached by must not be luck. Raises UnresolvedError if it has none.
        """
        try:
            found = socket.getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise UnresolvedError(f"{url.host} has no address", field=field) from error
        addresses = [ipaddress.ip_address(str(item[4][0]).partition("%")[0]) for item in found]
        for address in addresses:
            self.check(address, scheme=url.scheme, field=field)
        return str(addresses[0])

    def check(self, address: Address, *, scheme: str, field: str | None = None) -> None:
        """Raise AddressRefusedError for an address that may not be called."""
        plain = _unwrap(address)
        if any(plain in network for network in self._allowed):
            return
        if scheme != "https":
            raise AddressRefusedError("must begin with https://", field=field)
        if not _is_public(plain):
            raise AddressRefusedError("leads to an address that is not public", field=field)


def _is_public(address: Address) -> bool:
    if any(address in network for network in _NOT_PUBLIC):
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.is_site_local:
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


def _unwrap(address: Address) -> Address:
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address if mapped is None else mapped


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
