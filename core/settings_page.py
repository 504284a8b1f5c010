"""Writes docs/settings.md from the settings themselves: `python -m core.settings_page`."""

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from core.config import Settings
from core.config_sections import FIELDS, SECTIONS, file_key
from core.environment import variable_name
from core.original_config import (
    ORIGINAL_KEYS,
    REFUSED_VARIABLES,
    USELESS_VARIABLES,
    Chosen,
    Ignored,
    Mapped,
    Refused,
    Rule,
)

__all__ = ["TARGET", "describe", "render"]

TARGET = Path(__file__).parent.parent / "docs" / "settings.md"

_INTRODUCTION = """\
# Settings

Each is a variable of the environment or a key in a configuration file; the environment wins. They are read once when a
program starts, and stop the start with their name when they are wrong. Written by `python -m core.settings_page` from
`core/config.py`; a test compares the two.

`./run up` and `./run demo` hand their environment on to all they start, so that this offers containers beside local
sandboxes, and half as many at a time:

```console
$ SANDMILL_RUNTIMES='["local", "docker"]' SANDMILL_WORKER_SLOTS=4 ./run up
```

The same in a file:

```toml
[worker]
runtimes = ["local", "docker"]
slots = 4
```

`sandmill-server init-config` writes one with every key and its meaning (`--example local`, `docker` or `compose`). One
file is read, the first of these that there is:

1. the one named by `--config`, which every command takes, or by `SANDMILL_CONFIG`;
2. the one named by `SANDBOX_CONFIG_PATH`, OpenSandbox's variable;
3. `sandmill.toml` in the working directory;
4. `sandmill.toml` in `SANDMILL_HOME`, which is `~/.sandmill` by default;
5. `~/.sandbox.toml`, OpenSandbox's place.

`SANDMILL_CONFIG=/dev/null` reads none. A key that is not known, a wrong type and a value out of range stop the start
with file, line, key, what it may be and the nearest key there is. So does a file that everybody may write, and one
found at 3 to 5 that belongs to somebody else; one with secrets that others may read is told.

They start a Postgres and a Redis of their own unless `DATABASE_URL` or `REDIS_URL` names one (PostgreSQL 15 or newer).
Programs that run alone need both, and on all machines the same ones. Clients read `SANDMILL_API_URL` and
`SANDMILL_API_KEY`; `./run` itself reads `SANDMILL_VENV`, the place of its packages, and `PYTHON`.
"""

_ORIGINAL = """\
## Files of an OpenSandbox server

They start Sandmill as they are. `[server] host`, `port`, `api_key`, `limit_concurrency` and `backlog`, `[log] level`
and `[docker] sandbox_env` mean the same here; these are read, told as without effect, or refused where
leaving them out would protect somebody less than the file says. Its variables `OPENSANDBOX_SERVER_API_KEY` and
`OPENSANDBOX_INSECURE_SERVER` are read as well. The API listens on 127.0.0.1 unless the file says otherwise.

`insecure_server` opens the API to programs of this machine alone, and not to pages in its browser: an API that listens
elsewhere does not start with it. With a key it has no effect.

| key or variable | what it becomes |
|---|---|
"""

_BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}


def render() -> str:
    """Give the page."""
    lines = [_INTRODUCTION.rstrip()]
    section = next(iter(SECTIONS.values()))
    for name, field in Settings.model_fields.items():
        if name in SECTIONS:
            section = SECTIONS[name]
            lines += [
                "",
                f"## {section.title}",
                "",
                "| variable | in the file | default | meaning |",
                "|---|---|---|---|",
            ]
        key = f"`[{section.name}] {file_key(section, name)}`"
        lines.append(f"| `{variable_name(name, field)}` | {key} | {_default(field)} | {describe(field)} |")
    lines += ["", _ORIGINAL.rstrip()]
    lines += _rows_of_original_keys()
    lines += [f"| `{name}` | stops the start: {why} |" for name, why in REFUSED_VARIABLES.items()]
    lines += [f"| `{name}` | no effect: {why} |" for name, why in USELESS_VARIABLES.items()]
    return "\n".join(lines) + "\n"


def _rows_of_original_keys() -> Iterator[str]:
    """Give a row for all keys of a section that become the same."""
    for (section, effect), keys in groupby(
        ORIGINAL_KEYS.items(), key=lambda item: (item[0].rpartition(".")[0], _effect(item[1]))
    ):
        names = ", ".join(f"`{key.rpartition('.')[2]}`" for key, _ in keys)
        yield f"| `[{section}]` {names} | {effect} |"


def _effect(rule: Rule) -> str:
    """Say what becomes of a key."""
    match rule:
        case Mapped():
            section, key = next(place for place, field in FIELDS.items() if field == rule.field)
            return f"`[{section}] {key}`"
        case Ignored():
            return f"no effect{_unless(rule.harmless, ', told')}: {rule.why}"
        case Refused():
            return f"stops the start{_unless(rule.harmless)}: {rule.why}"
        case Chosen():
            return rule.told


def _unless(harmless: tuple[Any, ...], words: str = "") -> str:
    values = [json.dumps(value) for value in harmless if value not in ("", [])]
    return f"{words} unless it is {' or '.join(values)}" if values else ""


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "none"
    value: Any = field.default
    if value is None:
        return "see there"
    return f"`{value}`" if isinstance(value, str | Path) else f"`{json.dumps(value)}`"


def describe(field: FieldInfo) -> str:
    """Give the description with the bounds, without a full stop."""
    bounds = [
        f"{words} {getattr(part, key)}"
        for part in field.metadata
        for key, words in _BOUNDS.items()
        if hasattr(part, key)
    ]
    text = field.description or ""
    return f"{text.rstrip('.')} ({', '.join(bounds)})" if bounds else text.rstrip(".")


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
