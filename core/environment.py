"""Reading settings from the environment and a file, with errors that name what is wrong and say what it may be."""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import AliasChoices, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource

from core.config_file import FileSettings, read_config_file
from core.errors import SettingError

__all__ = ["read_settings", "settings_or_exit", "told_name", "variable_name"]

_Settings = TypeVar("_Settings", bound=BaseSettings)

_KINDS: Mapping[Any, str] = {int: "a whole number", float: "a number", bool: "true or false"}
_BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class _Spelling:
    """How a source writes lists and tables."""

    list: str
    table: str
    table_example: str


_JSON = _Spelling("a JSON list", "a JSON object", '{"name": "value"}')
_TOML = _Spelling("a list", "a table", '{name = "value"}')


def read_settings(kind: type[_Settings], **values: Any) -> _Settings:
    """Read a configuration file, over it the environment, over that the values.

    values: by field. Raises SettingError: one line for the first that is wrong, which names it and says what it may be.
    """
    file = _without_what_is_overruled(kind, read_config_file(os.environ), values)
    _check_toml_types(kind, file)
    try:
        return kind(**{**file.values, **values})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise SettingError(_explain(kind, str(first["loc"][0]), first, file)) from None


def settings_or_exit(kind: type[_Settings], *, program: str) -> _Settings:
    """Read the environment for a program that has just started; a wrong variable ends it with one line on stderr."""
    try:
        return read_settings(kind)
    except SettingError as error:
        sys.exit(f"{program}: {error.message}")


def told_name(kind: type[BaseSettings], name: str) -> str:
    """Give the words by which messages name a field: its key in the file if that gave the value, else its variable."""
    file = _without_what_is_overruled(kind, read_config_file(os.environ), {})
    return file.places[name] if name in file.values else variable_name(name, kind.model_fields[name])


def variable_name(name: str, field: FieldInfo) -> str:
    """Name of the environment variable of a field, e.g. SANDMILL_WORKER_SLOTS."""
    return next(iter(_variables(field)), f"SANDMILL_{name.upper()}")


def _without_what_is_overruled(
    kind: type[BaseSettings], file: FileSettings, values: Mapping[str, Any]
) -> FileSettings:
    """Leave the fields of this kind for which the file has the last word."""
    given = EnvSettingsSource(kind)().keys() | values.keys()
    fields = {
        name
        for name, field in kind.model_fields.items()
        if name in file.values and given.isdisjoint({name, *_variables(field)})
    }
    return replace(file, values={name: file.values[name] for name in fields})


def _check_toml_types(kind: type[BaseSettings], file: FileSettings) -> None:
    """Refuse texts for numbers and the like: a file can say what it means. Raises SettingError."""
    for name, value in file.values.items():
        field = kind.model_fields[name]
        wanted = _types(field.annotation)[0]
        is_other = isinstance(value, bool) is not (wanted is bool) or isinstance(value, str)
        if wanted in _KINDS and is_other:
            raise SettingError(f"{file.places[name]}: must be {_wanted(field, _TOML)}, not {_shown(value)}")


def _explain(kind: type[BaseSettings], place: str, error: Mapping[str, Any], file: FileSettings) -> str:
    name, field = _find_field(kind, place)
    in_file = name in file.values
    subject = file.places[name] if in_file else place if place != name else variable_name(name, field)
    if error["type"] == "missing":
        return f"{subject}: must be set ({(field.description or name).rstrip('.')})"
    wanted = f"{subject}: must be {_wanted(field, _TOML if in_file else _JSON)}"
    if _is_secret(field):
        return wanted
    return f"{wanted}, not {_shown(file.values[name] if in_file else error['input'])}"


def _shown(value: Any) -> str:
    text = json.dumps(value) if isinstance(value, bool) else repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def _variables(field: FieldInfo) -> tuple[str, ...]:
    """Give the variables of a field that has names of its own."""
    alias = field.validation_alias
    return tuple(str(choice) for choice in alias.choices) if isinstance(alias, AliasChoices) else ()


def _find_field(kind: type[BaseSettings], place: str) -> tuple[str, FieldInfo]:
    """Find a field by its own name or by one of its variables."""
    for name, field in kind.model_fields.items():
        if place in {name, *_variables(field)}:
            return name, field
    raise LookupError(place)


def _wanted(field: FieldInfo, spelling: "_Spelling") -> str:
    """Say what a field may be, e.g. "a whole number from 1 to 128"."""
    kind = _types(field.annotation)[0]
    if get_origin(kind) is Literal:
        return _either(get_args(kind))
    if get_origin(kind) is dict:
        return f"{spelling.table} of texts, such as {spelling.table_example}"
    if get_origin(kind) is tuple:
        choices = get_args(get_args(kind)[0])
        what = _either(choices) if choices else "text"
        return f"{spelling.list} of {what}, such as {json.dumps(choices[:2] or field.examples)}"
    least = next((part.min_length for part in field.metadata if hasattr(part, "min_length")), None)
    if least is not None:
        return f"text of at least {least} characters"
    if any(hasattr(part, "pattern") for part in field.metadata) and field.examples:
        return f"text such as {field.examples[0]}"
    return f"{_KINDS.get(kind, 'text')}{_range(field)}"


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
