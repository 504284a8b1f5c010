"""The configuration file: where it is looked for, and what it says about the settings.

TOML with the sections of `core.config_sections`; the keys of an OpenSandbox server are read, too, see
`core.original_config`. Every error names the file, the line and the key.
"""

import difflib
import os
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core.config_sections import FIELDS
from core.errors import SettingError
from core.original_config import (
    ORIGINAL_KEYS,
    REFUSED_VARIABLES,
    USELESS_VARIABLES,
    Chosen,
    Derived,
    Ignored,
    Mapped,
    Refused,
)

__all__ = ["CONFIG_VARIABLE", "FileSettings", "find_config_file", "read_config_file"]

CONFIG_VARIABLE = "SANDMILL_CONFIG"
"""Names the file; so does the option --config, which sets it."""

_ORIGINAL_VARIABLE = "SANDBOX_CONFIG_PATH"
_MAX_BYTES = 1 << 20
_SECRETS = {"database_url", "redis_url", "secret_key", "server_api_key"}

_HEADER = re.compile(r"^\s*\[{1,2}\s*([^\]]+?)\s*\]")
_ASSIGNMENT = re.compile(r"""^\s*([A-Za-z0-9_."' \t-]+?)\s*=""")

_ALL_KEYS = {".".join(place) for place in FIELDS} | set(ORIGINAL_KEYS)


@dataclass(frozen=True, slots=True)
class FileSettings:
    """What a file says. values: by field. places: field -> the words by which messages name its key.

    warnings: one line each. path: None if there is no file.
    """

    path: Path | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def find_config_file(environment: Mapping[str, str]) -> Path | None:
    """Give the first there is: named by SANDMILL_CONFIG or SANDBOX_CONFIG_PATH, else found.

    Found: ./sandmill.toml, sandmill.toml in SANDMILL_HOME, ~/.sandbox.toml. Raises SettingError if the one that is
    named does not exist, or the one that is found belongs to somebody else.
    """
    for variable in (CONFIG_VARIABLE, _ORIGINAL_VARIABLE):
        if environment.get(variable):
            path = Path(environment[variable]).expanduser().absolute()
            if not path.exists():
                raise SettingError(f"{variable}: there is no file {path}")
            return path
    home = Path(environment.get("SANDMILL_HOME") or "~/.sandmill")
    for path in (Path("sandmill.toml"), home / "sandmill.toml", Path("~/.sandbox.toml")):
        try:
            found = path.expanduser().absolute()
            owner = found.stat().st_uid
        except (OSError, RuntimeError):
            continue  # not there, in a folder that may not be read, or this user has no home
        if owner not in {0, os.geteuid()}:
            message = (
                f"{found}: belongs to another user: name it by --config or {CONFIG_VARIABLE} to use it, "
                f"or {os.devnull} to use none"
            )
            raise SettingError(message)
        return found
    return None


def read_config_file(environment: Mapping[str, str]) -> FileSettings:
    """Find the file and read it. Raises SettingError: one line that names the file, the line, the key and the cure."""
    for variable, why in REFUSED_VARIABLES.items():
        if environment.get(variable):
            raise SettingError(f"{variable}: {why}")
    warnings = [
        f"{variable} has no effect: {why}"
        for variable, why in USELESS_VARIABLES.items()
        if environment.get(variable)
    ]
    path = find_config_file(environment)
    if path is None:
        return FileSettings(warnings=tuple(warnings))
    reader = _Reader(path, _read_text(path))
    reader.read()
    warnings += reader.warnings()
    if _SECRETS & reader.values.keys() and _is_readable_by_others(path):
        warnings.append(f"{path}: holds secrets and can be read by other users: chmod 600 {path}")
    return FileSettings(path, reader.values, reader.places, tuple(warnings))


class _Reader:
    """Sorts the keys of one file into settings, warnings and refusals."""

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._text = text
        self.values: dict[str, Any] = {}
        self.places: dict[str, str] = {}
        self._ignored: dict[str, list[str]] = {}
        self._derived: list[tuple[str, Mapping[str, Any]]] = []

    def read(self) -> None:
        try:
            tree = tomllib.loads(self._text)
        except tomllib.TOMLDecodeError as error:
            raise SettingError(f"{self._path}: is not TOML: {error}") from None
        keys = dict(self._walk(tree, ""))
        for key, value in keys.items():
            section, _, name = key.partition(".")
            if (section, name) in FIELDS:
                self._set(FIELDS[section, name], value, key)
            else:
                self._apply(key, value, keys)
        for key, values in self._derived:
            for name, value in values.items():
                if name not in self.values:
                    self._set(name, value, key)

    def warnings(self) -> list[str]:
        return [f"{self._path}: {_join(keys)} without effect: {why}" for why, keys in self._ignored.items()]

    def _walk(self, table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
        """Give the keys with their values; sections and tables of their own are entered."""
        for name, value in table.items():
            key = f"{prefix}{name}"
            if isinstance(value, dict) and any(known.startswith(f"{key}.") for known in _ALL_KEYS):
                yield from self._walk(value, f"{key}.")
            elif key in _ALL_KEYS:
                yield key, value
            else:
                raise self._unknown(key, value)

    def _apply(self, key: str, value: Any, keys: Mapping[str, Any]) -> None:
        rule = ORIGINAL_KEYS[key]
        effect = rule.choose(value, keys) if isinstance(rule, Chosen) else rule
        match effect:
            case Mapped():
                self._set(effect.field, effect.convert(value), key)
            case Ignored() if value not in effect.harmless:
                self._ignored.setdefault(effect.why, []).append(key)
            case Refused() if value not in effect.harmless:
                raise SettingError(f"{self._place(key)}: {effect.why}")
            case Derived():
                self._derived.append((key, effect.values))

    def _set(self, name: str, value: Any, key: str) -> None:
        place = self._place(key)
        if name in self.values and self.values[name] != value:
            raise SettingError(f"{place}: says something else than {self.places[name]}: remove one of them")
        self.values[name] = value
        self.places[name] = place

    def _place(self, key: str) -> str:
        line = _line_of(self._text, key)
        return f"{self._path}{f', line {line}' if line else ''}: {_spell(key)}"

    def _unknown(self, key: str, value: Any) -> SettingError:
        section, _, name = key.partition(".")
        sections = list(dict.fromkeys(part for part, _ in FIELDS))
        if not name and section in sections:
            return SettingError(f"{self._place(key)}: must be a section, written [{section}]")
        if name:
            what = "is no key that is known"
        else:
            what = "is no section" if isinstance(value, dict) else "stands outside of a section"
        near = _nearest(key, value)
        if near is not None:
            return SettingError(f"{self._place(key)}: {what}; did you mean {near}?")
        names = [key for part, key in FIELDS if part == section]
        if names:
            return SettingError(f"{self._place(key)}: {what}; [{section}] may have {', '.join(names)}")
        return SettingError(f"{self._place(key)}: {what}; sections are {', '.join(sections)}")


def _nearest(key: str, value: Any) -> str | None:
    """Give the known key or section that is most like an unknown one; several if it may stand in several sections."""
    section, _, name = key.partition(".")
    if not name and isinstance(value, dict):
        found = difflib.get_close_matches(
            section, sorted({known.partition(".")[0] for known in _ALL_KEYS}), n=1
        )
        return f"[{found[0]}]" if found else None
    by_name: dict[str, list[str]] = {}
    for known in (*map(".".join, FIELDS), *ORIGINAL_KEYS):
        by_name.setdefault(known.partition(".")[2], []).append(known)
    siblings = [other for other, places in by_name.items() if f"{section}.{other}" in places]
    wanted = name or section
    for names in (siblings, [wanted] if wanted in by_name else [], list(by_name)):
        found = difflib.get_close_matches(wanted, names, n=1)
        if found:
            places = by_name[found[0]]
            same = [place for place in places if place.startswith(f"{section}.")]
            return " or ".join(map(_spell, same or places))
    return None


def _spell(key: str) -> str:
    """Write a key as in the docs: [section] key."""
    section, dot, name = key.rpartition(".")
    return f"[{section}] {name}" if dot else name


def _join(keys: list[str]) -> str:
    """Write keys of one section, or several, with the section said once."""
    sections: dict[str, list[str]] = {}
    for key in keys:
        section, _, name = key.rpartition(".")
        sections.setdefault(section, []).append(name)
    words = "; ".join(f"[{section}] {', '.join(names)}" for section, names in sections.items())
    return f"{words} {'is' if len(keys) == 1 else 'are'}"


def _line_of(text: str, key: str) -> int | None:
    """Find the line in which a key, or the table around it, begins. Does not look into texts of several lines."""
    wanted = key.split(".")
    best, best_length = None, 0
    section: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        path = section
        if header := _HEADER.match(line):
            path = section = _split(header[1])
        elif assignment := _ASSIGNMENT.match(line):
            path = section + _split(assignment[1])
        else:
            continue
        if len(path) > best_length and wanted[: len(path)] == path:
            best, best_length = number, len(path)
    return best


def _split(dotted: str) -> list[str]:
    return [part.strip(" \t\"'") for part in dotted.split(".")]


def _read_text(path: Path) -> str:
    """Raises SettingError for what cannot be read, and for what others may write."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if stat.S_ISREG(status.st_mode) and status.st_mode & stat.S_IWOTH:
                raise SettingError(f"{path}: everybody may write it: chmod o-w {path}")
            data = file.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise SettingError(f"{path}: is larger than {_MAX_BYTES >> 20} MiB")
        return data.decode("utf-8-sig")
    except OSError as error:
        raise SettingError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingError(f"{path}: is not UTF-8") from None


def _is_readable_by_others(path: Path) -> bool:
    status = path.stat()
    return stat.S_ISREG(status.st_mode) and bool(status.st_mode & (stat.S_IRGRP | stat.S_IROTH))
