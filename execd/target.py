"""The request target: path and query, percent-decoded strictly."""

import re
from dataclasses import dataclass
from typing import Final

from execd.errors import InvalidQueryError, MissingQueryError

__all__ = ["RELAY_PREFIX", "Target", "parse_target", "percent_encode"]

RELAY_PREFIX: Final = b"/proxy/"

_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")
_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


@dataclass(frozen=True, slots=True)
class Target:
    """A decoded target. Bytes that are not UTF-8 are kept as surrogates, as in file names of `os`.

    raw: as the client sent it.
    """

    path: str
    query: dict[str, list[str]]
    raw: bytes = b""

    def required(self, name: str) -> str:
        """Give the only value of a parameter. Raises MissingQueryError, InvalidQueryError when repeated."""
        value = self.optional(name)
        if value is None:
            raise MissingQueryError(f"missing query parameter '{name}'")
        return value

    def optional(self, name: str) -> str | None:
        """Give the only value of a parameter, if any. Raises InvalidQueryError when repeated."""
        values = self.query.get(name, [])
        if len(values) > 1:
            raise InvalidQueryError(f"query parameter '{name}' is repeated")
        return values[0] if values else None

    def whole_number(self, name: str, *, default: int, maximum: int, minimum: int = 0) -> int:
        """Give a decimal parameter between minimum and maximum. Raises InvalidQueryError."""
        text = self.optional(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdecimal() and len(text) <= 19 and minimum <= int(text) <= maximum):
            raise InvalidQueryError(f"query parameter '{name}' is not a number from {minimum} to {maximum}")
        return int(text)


def parse_target(raw: bytes) -> Target:
    """Decode an origin-form target. Raises InvalidQueryError for anything else and for broken escapes.

    What is to be relayed is for others to understand: its path is given undecoded, without a query.
    """
    if not raw.startswith(b"/"):
        raise InvalidQueryError("the request target is not a path")
    path, _, query = raw.partition(b"?")
    if path.startswith(RELAY_PREFIX):
        return Target(path.decode("latin-1"), {}, raw)
    parameters: dict[str, list[str]] = {}
    for pair in query.split(b"&"):
        if pair:
            name, _, value = pair.replace(b"+", b" ").partition(b"=")
            parameters.setdefault(_decode(name), []).append(_decode(value))
    return Target(_decode(path), parameters, raw)


def percent_encode(text: str) -> str:
    """Encode for a header or URL: unreserved ASCII stays, every other byte becomes %XX."""
    raw = text.encode("utf-8", "surrogateescape")
    return "".join([chr(byte) if byte in _UNRESERVED else f"%{byte:02X}" for byte in raw])


def _decode(raw: bytes) -> str:
    if _BAD_ESCAPE.search(raw):
        raise InvalidQueryError("the request target holds a broken percent escape")
    decoded = _ESCAPE.sub(lambda match: bytes([int(match[1], 16)]), raw)
    return decoded.decode("utf-8", "surrogateescape")
