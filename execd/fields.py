"""Checks that the fields of all JSON bodies have in common."""

from typing import Any

from execd.errors import InvalidBodyError

__all__ = ["checked_text", "printable"]


def checked_text(name: str, value: Any) -> str:
    """Give a string that can be passed on. Raises InvalidBodyError that begins with the field's name."""
    if not isinstance(value, str):
        raise InvalidBodyError(f"{name}: not a string")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidBodyError(f"{name}: holds a lone surrogate") from error
    return value


def printable(text: str) -> str:
    """Give a name of the client's as it can stand in a message."""
    return ascii(text[:100])[1:-1]
