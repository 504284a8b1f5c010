"""Checking the request that asks for a WebSocket, before anything is answered."""

import binascii
from collections.abc import Collection
from typing import Final

from execd.errors import PermissionDeniedError, UpgradeError, WebSocketVersionError
from execd.exchange import Exchange

__all__ = ["check_handshake", "check_origin", "header_tokens"]

_DEFAULT_PORTS: Final = (":80", ":443")


def check_handshake(exchange: Exchange) -> str:
    """Give the key of a proper handshake. Raises UpgradeError, WebSocketVersionError."""
    if "websocket" not in header_tokens(exchange, "upgrade") or "upgrade" not in header_tokens(
        exchange, "connection"
    ):
        raise UpgradeError("this route is a WebSocket: send Connection: Upgrade and Upgrade: websocket")
    if not exchange.has_whole_request():
        raise UpgradeError("a WebSocket handshake has no body")
    if exchange.header("sec-websocket-version") != "13":
        raise WebSocketVersionError("Sec-WebSocket-Version: only 13 is spoken")
    key = exchange.header("sec-websocket-key") or ""
    try:
        is_key = len(binascii.a2b_base64(key, strict_mode=True)) == 16
    except ValueError:
        is_key = False
    if not is_key:
        raise UpgradeError("Sec-WebSocket-Key: not 16 bytes in base64")
    return key


def check_origin(exchange: Exchange, allowed: Collection[str]) -> None:
    """Refuse a page of another site: a browser lets any page open a WebSocket to any host, and shows it the answers.

    allowed: origins in full besides the host's own; `*` allows all. Raises PermissionDeniedError.
    """
    origin = exchange.header("origin")
    if origin is None or "*" in allowed or origin in allowed:
        return
    _scheme, separator, host = origin.partition("://")
    if not separator or _plain(host) != _plain(exchange.header("host") or ""):
        raise PermissionDeniedError(
            f"Origin: pages of {origin[:200]} may not connect; see EXECD_ALLOWED_ORIGINS"
        )


def header_tokens(exchange: Exchange, name: str) -> list[str]:
    """Give the comma separated values of a header and its repetitions, in lower case."""
    return [
        token.strip().lower()
        for value in exchange.header_values(name)
        for token in value.split(",")
        if token.strip()
    ]


def _plain(host: str) -> str:
    host = host.lower()
    for port in _DEFAULT_PORTS:
        host = host.removesuffix(port)
    return host
