"""Ways to write an id that are not its own, though parsers of UUIDs take them."""

from collections.abc import Callable
from uuid import UUID

__all__ = ["OTHER_SPELLINGS"]

OTHER_SPELLINGS: dict[str, Callable[[UUID | str], str]] = {
    "capitals": lambda name: str(name).upper(),
    "one-capital": lambda name: _with_one_capital(str(name)),
    "no-dashes": lambda name: str(name).replace("-", ""),
    "urn": lambda name: f"urn:uuid:{name}",
    "braces": lambda name: f"{{{name}}}",
}
"""Functions from an id to another spelling of it, by what they do."""


def _with_one_capital(name: str) -> str:
    letter = next(char for char in name if char in "abcdef")
    return name.replace(letter, letter.upper(), 1)
