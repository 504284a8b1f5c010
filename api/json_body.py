"""Reads JSON from clients: bounded in depth and in number of values, without the parts on which parsers differ."""

import json
import re
from dataclasses import dataclass
from typing import Any

from api.schemas.problems import to_field
from core.errors import InvalidRequestError, PayloadTooLargeError
from services.problems import InvalidFieldsError, Problem

__all__ = ["MAX_DEPTH", "parse_json"]

MAX_DEPTH = 64
MAX_VALUES = 2_000_000
"""A value of three bytes takes 60 as a Python object: this bounds what a body can make of itself."""
MAX_KEYS = 10_000
"""Names in one object. No body needs nearly as many, and each unknown one would cost an error of its own."""
STOP_AFTER = 200
"""Faults after which the rest of the body is not looked at."""

# The closing quote is optional, so that a string which never ends is passed over once and not from each quote in it.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[\]{},]', re.DOTALL)
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_ESCAPED_RISK = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")


@dataclass(frozen=True, slots=True)
class _Fault:
    """Stands in the parsed value where something is wrong, so that the walk over it can tell the place."""

    message: str


def parse_json(body: bytes) -> Any:
    """Parse one JSON document, UTF-8.

    Raises InvalidRequestError for anything that is not JSON (RFC 8259), and names the field of what is wrong inside
    it: NaN, a key twice in one object, NUL, lone surrogates, too deep nesting, numbers of thousands of digits.
    Raises PayloadTooLargeError for too many values.
    """
    _check_shape(body)
    reader = _Reader()
    try:
        value = reader.read(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"the body is not UTF-8 (byte {error.start})", field="body") from error
    except json.JSONDecodeError as error:
        raise InvalidRequestError(
            f"the body is not JSON: {error.msg} (byte {error.pos})", field="body"
        ) from error
    if reader.has_faults or _ESCAPED_RISK.search(body):
        problems: list[Problem] = []
        _find_faults(value, [], problems)
        if problems:
            raise InvalidFieldsError(problems)
    return value


def _check_shape(body: bytes) -> None:
    skeleton = _STRING.sub(b"", body)
    if skeleton.count(b",") + skeleton.count(b"[") + skeleton.count(b"{") > MAX_VALUES:
        raise PayloadTooLargeError(f"the body holds more than {MAX_VALUES} values", field="body")
    depth = 0
    for byte in skeleton.translate(None, _NOT_BRACKETS):
        depth += 1 if byte in b"[{" else -1
        if depth > MAX_DEPTH:
            field = to_field(_place_of_depth(body))
            raise InvalidFieldsError([Problem(field, f"is nested deeper than {MAX_DEPTH} levels")])


class _Reader:
    """The standard parser, which leaves a fault where it would go on with what we refuse."""

    def __init__(self) -> None:
        self.has_faults = False

    def read(self, text: str) -> Any:
        """Raises json.JSONDecodeError."""
        try:
            return self._loads(text)
        except json.JSONDecodeError:
            raise
        except ValueError:
            # A whole number with too many digits. A reader of numbers of our own takes several times as long, so it
            # is for this case alone.
            return self._loads(text, parse_int=self._integer)

    def _loads(self, text: str, **readers: Any) -> Any:
        return json.loads(text, object_pairs_hook=self._object, parse_constant=self._constant, **readers)

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any] | _Fault:
        if len(pairs) > MAX_KEYS:
            return self._fault(f"has {len(pairs)} names, more than {MAX_KEYS}")
        value = dict(pairs)
        if len(value) == len(pairs):
            return value
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                value[key] = self._fault("appears twice in one object")
            seen.add(key)
        return value

    def _constant(self, name: str) -> _Fault:
        return self._fault(f"{name} is not a JSON number")

    def _integer(self, digits: str) -> int | _Fault:
        try:
            return int(digits)
        except ValueError:
            return self._fault(f"is a number of {len(digits.lstrip('-'))} digits, far beyond any limit")

    def _fault(self, message: str) -> _Fault:
        self.has_faults = True
        return _Fault(message)


def _find_faults(value: Any, place: list[str | int], problems: list[Problem]) -> None:
    """Add what is wrong in a value, in the order of the document. place: where the value lies; as it was afterwards."""
    if isinstance(value, _Fault):
        problems.append(Problem(to_field(place), value.message))
    elif isinstance(value, str):
        _check_text(value, place, problems)
    elif isinstance(value, dict | list):
        for part, inner in value.items() if isinstance(value, dict) else enumerate(value):
            if len(problems) >= STOP_AFTER:
                return
            place.append(part)
            if isinstance(part, str):
                _check_text(part, place, problems)
            # Most values are numbers and the like; a call for each would double the time.
            if isinstance(inner, str | dict | list | _Fault):
                _find_faults(inner, place, problems)
            place.pop()


def _check_text(text: str, place: list[str | int], problems: list[Problem]) -> None:
    """Refuse text that Postgres, a file name or UTF-8 cannot hold."""
    if "\0" in text:
        problems.append(Problem(to_field(place), "text must not contain NUL"))
    if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
        problems.append(Problem(to_field(place), "text must not contain lone surrogates"))


def _place_of_depth(body: bytes) -> list[str | int]:
    """Find where the body becomes too deep. It may be no JSON at all: then the place is a good guess."""
    place: list[
        str | int | None
    ] = []  # of each open list the index, of each object the key, None before a key
    for match in _TOKEN.finditer(body):
        token = match[0]
        if token in b"[{":
            if len(place) == MAX_DEPTH:
                break
            place.append(0 if token == b"[" else None)
        elif not place:
            continue
        elif token in b"]}":
            place.pop()
        elif token == b",":
            place[-1] = place[-1] + 1 if isinstance(place[-1], int) else None
        elif place[-1] is None:
            place[-1] = token.decode("utf-8", "replace").strip('"')
    return [part for part in place if part is not None]
