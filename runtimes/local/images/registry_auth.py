"""How a registry says what it wants to know about us, and the answer."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import httpx

from core.errors import RegistryAuthError, RegistryError
from runtimes.local.images.credentials import Credentials

__all__ = ["Challenge", "authorize"]

_PARAMETER = re.compile(r'([A-Za-z0-9_-]{1,40})\s*=\s*(?:"((?:[^"\\]|\\.){0,4000})"|([^\s,"]{1,4000}))')
_CLIENT = "sandmill"


@dataclass(frozen=True, slots=True)
class Challenge:
    """A WWW-Authenticate header. scheme: in lower case."""

    scheme: str
    realm: str = ""
    service: str = ""
    scope: str = ""

    @classmethod
    def parse(cls, header: str) -> Self:
        """Read the first challenge of a header; parameters we know nothing of are left out."""
        scheme, _, rest = header[:8000].strip().partition(" ")
        found = {name.lower(): quoted or plain for name, quoted, plain in _PARAMETER.findall(rest)}
        return cls(scheme.lower(), *(found.get(key, "") for key in ("realm", "service", "scope")))


def authorize(
    challenge: Challenge,
    credentials: Credentials | None,
    *,
    registry: str,
    fetch: Callable[[httpx.Request], dict[str, object]],
    default_scope: str,
) -> str:
    """Give the Authorization header that answers a challenge.

    fetch: sends a request for a token and gives the answer's JSON; it refuses addresses that are not to be trusted.
    Raises RegistryAuthError.
    """
    if challenge.scheme == "basic":
        if credentials is None or not credentials.username:
            raise RegistryAuthError(
                f"registry auth failed for {registry}: it wants a user name and a password"
            )
        return credentials.basic
    if challenge.scheme != "bearer" or not challenge.realm:
        shown = challenge.scheme[:40] or "nothing"
        raise RegistryAuthError(
            f"registry auth failed for {registry}: it asks for {shown!r}, not basic or bearer"
        )
    answer = fetch(_token_request(challenge, credentials, challenge.scope or default_scope))
    token = answer.get("token") or answer.get("access_token")
    if not isinstance(token, str) or not re.fullmatch(r"[\x21-\x7e]+", token):
        raise RegistryError(f"the token service of registry {registry} gave no token")
    return f"Bearer {token}"


def _token_request(challenge: Challenge, credentials: Credentials | None, scope: str) -> httpx.Request:
    fields = {"service": challenge.service, "scope": scope}
    fields = {name: value for name, value in fields.items() if value}
    try:
        parts = urlsplit(challenge.realm)
        if credentials and credentials.identity_token:
            fields |= {"grant_type": "refresh_token", "client_id": _CLIENT}
            fields |= {"refresh_token": credentials.identity_token}
            return httpx.Request("POST", challenge.realm, data=fields)
        query = urlencode([*parse_qsl(parts.query), *fields.items()])
        headers = {"Authorization": credentials.basic} if credentials else {}
        return httpx.Request("GET", urlunsplit(parts._replace(query=query)), headers=headers)
    except (ValueError, httpx.InvalidURL) as error:
        raise RegistryError(
            f"the registry names no usable token service: {challenge.realm[:200]!r}"
        ) from error
