"""Reads fields of JSON answers with their types. Fields this release does not know are passed over."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NoReturn, TypeVar

from sandmill.errors import ProtocolError

__all__ = ["Record"]

T = TypeVar("T")


class Record:
    """One JSON object of an answer. Every getter raises ProtocolError when the field is not what it must be."""

    def __init__(self, value: Any, kind: str) -> None:
        """kind: what it is, for messages."""
        if not isinstance(value, Mapping):
            raise ProtocolError(f"the answer holds no {kind}")
        self._value = value
        self._kind = kind

    def text(self, name: str) -> str:
        """Give a string."""
        return self._typed(name, str)

    def text_or_none(self, name: str) -> str | None:
        """Give a string, or None for null and for nothing."""
        return None if self._value.get(name) is None else self.text(name)

    def integer(self, name: str) -> int:
        """Give a whole number."""
        value = self._typed(name, int)
        if isinstance(value, bool):
            self._refuse(name)
        return value

    def integer_or_none(self, name: str) -> int | None:
        """Give a whole number, or None for null and for nothing."""
        return None if self._value.get(name) is None else self.integer(name)

    def flag(self, name: str) -> bool:
        """Give true or false."""
        return self._typed(name, bool)

    def flag_or_false(self, name: str) -> bool:
        """Give true or false; false for nothing, as of a server of an earlier release."""
        return False if self._value.get(name) is None else self.flag(name)

    def number_or_none(self, name: str) -> float | None:
        """Give a number, or None for null and for nothing."""
        value = self._value.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float | None):
            self._refuse(name)
        return None if value is None else float(value)

    def time(self, name: str) -> datetime:
        """Give an aware time."""
        text = self.text(name)
        try:
            return datetime.fromisoformat(text)
        except ValueError:
            self._refuse(name)

    def time_or_none(self, name: str) -> datetime | None:
        """Give an aware time, or None for null and for nothing."""
        return None if self._value.get(name) is None else self.time(name)

    def one(self, name: str, parse: Callable[[Any], T]) -> T:
        """Give an object."""
        return parse(self._value.get(name))

    def one_or_none(self, name: str, parse: Callable[[Any], T]) -> T | None:
        """Give an object, or None for null and for nothing."""
        value = self._value.get(name)
        return None if value is None else parse(value)

    def each(self, name: str, parse: Callable[[Any], T]) -> tuple[T, ...]:
        """Give a list."""
        return tuple(parse(item) for item in self._typed(name, list))

    def texts(self, name: str) -> dict[str, str]:
        """Give an object of strings."""
        return {str(key): str(value) for key, value in self._typed(name, dict).items()}

    def counts(self, name: str) -> dict[str, int]:
        """Give an object of whole numbers."""
        found = Record(self._value.get(name), f"{self._kind}.{name}")
        return {key: found.integer(key) for key in self._typed(name, dict)}

    def numbers(self, name: str) -> dict[str, float]:
        """Give an object of numbers; empty for null."""
        found: dict[str, float] = {}
        for key, value in (self._value.get(name) or {}).items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                self._refuse(name)
            found[str(key)] = float(value)
        return found

    def json_object(self, name: str) -> dict[str, Any]:
        """Give an object as it is; empty for null."""
        return {} if self._value.get(name) is None else dict(self._typed(name, dict))

    def _typed(self, name: str, kind: type[T]) -> T:
        value = self._value.get(name)
        if not isinstance(value, kind):
            self._refuse(name)
        return value

    def _refuse(self, name: str) -> NoReturn:
        raise ProtocolError(f"the answer holds a {self._kind} without a proper {name!r}")
