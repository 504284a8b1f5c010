"""Reading settings from the environment, with errors that name the variable and say what it may be."""

import json
import sys
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import AliasChoices, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

from core.errors import SettingError

__all__ = ["read_settings", "settings_or_exit", "variable_name"]

_Settings = TypeVar("_Settings", bound=BaseSettings)

_KINDS: Mapping[Any, str] = {int: "a whole number", float: "a number", bool: "true or false"}
_BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
_SHOWN_CHARACTERS = 60


def read_settings(kind: type[_Settings], **values: Any) -> _Settings:
    """Read the environment. values: by field, instead of what the environment says.

    Raises SettingError: one line for the first wrong variable, which names it and says what it may be.
    """
    try:
        return kind(**values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise SettingError(_explain(kind, str(first["loc"][0]), first)) from None


def settings_or_exit(kind: type[_Settings], *, program: str) -> _Settings:
    """Read the environment for a program that has just started; a wrong variable ends it with one line on stderr."""
    try:
        return read_settings(kind)
    except SettingError as error:
        sys.exit(f"{program}: {error.message}")


def variable_name(name: str, field: FieldInfo) -> str:
    """Name of the environment variable of a field, e.g. SANDMILL_WORKER_SLOTS."""
    alias = field.validation_alias
    return str(alias.choices[0]) if isinstance(alias, AliasChoices) else f"SANDMILL_{name.upper()}"


def _explain(kind: type[BaseSettings], place: str, error: Mapping[str, Any]) -> str:
    name, field = _find_field(kind, place)
    variable = place if place != name else variable_name(name, field)
    if error["type"] == "missing":
        return f"{variable}: must be set ({(field.description or name).rstrip('.')})"
    wanted = f"{variable}: must be {_wanted(field)}"
    if _is_secret(field):
        return wanted
    value = repr(error["input"])
    if len(value) > _SHOWN_CHARACTERS:
        value = f"{value[:_SHOWN_CHARACTERS]}…"
    return f"{wanted}, not {value}"


def _find_field(kind: type[BaseSettings], place: str) -> tuple[str, FieldInfo]:
    """Find a field by its own name or by one of its variables."""
    for name, field in kind.model_fields.items():
        alias = field.validation_alias
        if name == place or (isinstance(alias, AliasChoices) and place in alias.choices):
            return name, field
    raise LookupError(place)


def _wanted(field: FieldInfo) -> str:
    """Say what a field may be, e.g. "a whole number from 1 to 128"."""
    kind = _types(field.annotation)[0]
    if get_origin(kind) is Literal:
        return _either(get_args(kind))
    if get_origin(kind) in {tuple, dict}:
        return _wanted_collection(field, kind)
    least = next((part.min_length for part in field.metadata if hasattr(part, "min_length")), None)
    if least is not None:
        return f"text of at least {least} characters"
    if any(hasattr(part, "pattern") for part in field.metadata) and field.examples:
        return f"text such as {field.examples[0]}"
    return f"{_KINDS.get(kind, 'text')}{_range(field)}"


def _wanted_collection(field: FieldInfo, kind: Any) -> str:
    if get_origin(kind) is dict:
        return 'a JSON object of texts, such as {"name": "value"}'
    choices = get_args(get_args(kind)[0])
    if not choices:
        return f"a JSON list of text, such as {json.dumps(field.examples)}"
    return f"a JSON list of {_either(choices)}, such as {json.dumps(choices[:2])}"


def _range(field: FieldInfo) -> str:
    bounds = {key: getattr(part, key) for part in field.metadata for key in _BOUNDS if hasattr(part, key)}
    if bounds.keys() == {"ge", "le"}:
        return f" from {bounds['ge']} to {bounds['le']}"
    words = " and ".join(f"{_BOUNDS[key]} {bound}" for key, bound in bounds.items())
    return f", {words}" if words else ""


def _types(annotation: Any) -> list[Any]:
    """Give the members of a union without None, else the type itself."""
    if get_origin(annotation) in {Union, UnionType}:
        return [part for part in get_args(annotation) if part is not NoneType]
    return [annotation]


def _is_secret(field: FieldInfo) -> bool:
    return SecretStr in _types(field.annotation)


def _either(choices: tuple[str, ...]) -> str:
    return f"{', '.join(choices[:-1])} or {choices[-1]}" if len(choices) > 1 else choices[0]
