"""Turns one job of a request into one for each combination of the values of the batch's `matrix`.

`${matrix.NAME}` stands for the value of NAME in all strings of a job, and nowhere else: a number stays a number.
"""

import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

__all__ = ["Combination", "UnknownName", "combinations", "count_combinations", "expand", "unknown_names"]

_REFERENCE = re.compile(r"\$\{matrix\.([^}]*)\}")
_KEY_PART = re.compile(r"[A-Za-z0-9._-]{1,60}")

Location = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Combination:
    """One value for each name. suffix: what the keys of its jobs end with; the same in every submission."""

    values: Mapping[str, str] = field(default_factory=dict)
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class UnknownName:
    """A `${matrix.NAME}` that the matrix does not have. location: of the string in the job."""

    location: Location
    name: str


def count_combinations(matrix: Mapping[str, Sequence[Any]]) -> int:
    """Say how many there are, without making them; 1 for no matrix."""
    return prod(len(values) for values in matrix.values())


def combinations(matrix: Mapping[str, Sequence[str]]) -> list[Combination]:
    """Give all combinations, the last name's values varying first. No matrix: one without values or suffix."""
    if not matrix:
        return [Combination()]
    return [
        Combination(dict(zip(matrix, chosen, strict=True)), "@" + "+".join(map(_key_part, chosen)))
        for chosen in itertools.product(*matrix.values())
    ]


def unknown_names(job: Any, names: Mapping[str, Any]) -> Iterator[UnknownName]:
    """Find references to names that are not in `names`."""
    for location, text in _strings(job, ()):
        for name in _REFERENCE.findall(text):
            if name not in names:
                yield UnknownName(location, name)


def expand(job: Mapping[str, Any], combination: Combination) -> dict[str, Any]:
    """Make the job of one combination: references replaced, the key extended, the values added as labels."""
    if not combination.values:
        return dict(job)
    values = combination.values

    def replace(match: re.Match[str]) -> str:
        return values.get(match[1], match[0])

    made: dict[str, Any] = _replace(job, replace)
    if isinstance(made.get("key"), str):
        made["key"] += combination.suffix
    labels = made.get("labels", {})
    if isinstance(labels, dict):
        made["labels"] = {**labels, **values}
    return made


def _replace(value: Any, replace: Any) -> Any:
    if isinstance(value, str):
        return _REFERENCE.sub(replace, value) if "${matrix." in value else value
    if isinstance(value, dict):
        return {name: _replace(item, replace) for name, item in value.items()}
    if isinstance(value, list):
        return [_replace(item, replace) for item in value]
    return value


def _strings(value: Any, location: Location) -> Iterator[tuple[Location, str]]:
    if isinstance(value, str):
        if "${matrix." in value:
            yield location, value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _strings(item, (*location, name))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _strings(item, (*location, number))


def _key_part(text: str) -> str:
    """Spell a value for a key: as it is, or what is left of it and a part of its hash."""
    if _KEY_PART.fullmatch(text):
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{re.sub('[^A-Za-z0-9._-]+', '_', text)[:40]}-{digest}"
