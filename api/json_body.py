"""Reads JSON from clients: bounded in depth and in number of values, without the parts on which parsers differ."""

import json
import re
from typing import Any, NoReturn

from core.errors import InvalidRequestError, PayloadTooLargeError

__all__ = ["MAX_DEPTH", "parse_json"]

MAX_DEPTH = 64
MAX_VALUES = 2_000_000
"""A value of three bytes takes 60 as a Python object: this bounds what a body can make of itself."""

# The closing quote is optional, so that a string which never ends is passed over once and not from each quote in it.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_ESCAPED_RISK = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")


def parse_json(body: bytes) -> Any:
    """Parse one JSON document, UTF-8.

    Raises InvalidRequestError for anything that is not JSON (RFC 8259), NaN, a key twice in one object, NUL, lone
    surrogates and too deep nesting; PayloadTooLargeError for too many values.
    """
    _check_shape(body)
    try:
        text = body.decode("utf-8")
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"the body is not UTF-8 (byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise InvalidRequestError(f"the body is not JSON: {error.msg} (byte {error.pos})") from error
    except (ValueError, RecursionError) as error:
        # ValueError: a number of thousands of digits.
        raise InvalidRequestError("the body is not JSON that can be read") from error
    if _ESCAPED_RISK.search(body):
        _check_strings(value)
    return value


def _check_shape(body: bytes) -> None:
    skeleton = _STRING.sub(b"", body)
    if skeleton.count(b",") + skeleton.count(b"[") + skeleton.count(b"{") > MAX_VALUES:
        raise PayloadTooLargeError(f"the body holds more than {MAX_VALUES} values")
    depth = 0
    for byte in skeleton.translate(None, _NOT_BRACKETS):
        depth += 1 if byte in b"[{" else -1
        if depth > MAX_DEPTH:
            raise InvalidRequestError(f"the body is nested deeper than {MAX_DEPTH} levels")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise InvalidRequestError(f"the key {key[:100]!a} appears twice in one object")
            seen.add(key)
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidRequestError(f"{name} is not a JSON number")


def _check_strings(value: Any) -> None:
    """Refuse text that Postgres, a file name or UTF-8 cannot hold."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            if "\0" in item:
                raise InvalidRequestError("text must not contain NUL")
            if not item.isascii() and any("\ud800" <= char <= "\udfff" for char in item):
                raise InvalidRequestError("text must not contain lone surrogates")
        elif isinstance(item, dict):
            pending.extend(item.keys())
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
