"""Writes a configuration file to begin with: every setting with its meaning, those of the example set."""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from core.config import Settings
from core.config_sections import SECTIONS, file_key
from core.settings_page import describe
from launcher.errors import StartupError

__all__ = ["Example", "render_sample", "write_sample"]

_MODE = 0o600
"""It may come to hold keys and passwords."""

_INTRODUCTION = """\
# Settings of Sandmill. Lines that begin with `#key` show what holds without them: take the # away to change one.
# What the environment says (SANDMILL_WORKER_SLOTS for slots in [worker]) wins over this file. All of it is explained in
# docs/settings.md.
"""


class Example(StrEnum):
    """What the sample is for."""

    LOCAL = "local"
    DOCKER = "docker"
    COMPOSE = "compose"


_SET: Mapping[Example, Mapping[str, Any]] = {
    Example.LOCAL: {"api_host": "127.0.0.1", "api_port": 8080, "runtime": "local", "runtimes": ["local"]},
    Example.DOCKER: {"api_host": "127.0.0.1", "api_port": 8080, "runtime": "docker", "runtimes": ["docker"]},
    # Containers publish their ports to the host alone; home is a volume. DATABASE_URL and REDIS_URL hold passwords and
    # come from the environment.
    Example.COMPOSE: {
        "home": "/var/lib/sandmill",
        "api_host": "0.0.0.0",  # noqa: S104 -- of a container's own network
        "api_port": 8080,
        "ingress_host": "0.0.0.0",  # noqa: S104
        "runtime": "local",
        "runtimes": ["local"],
    },
}


def render_sample(example: Example) -> str:
    """Give the text of the file."""
    return "\n".join([_INTRODUCTION.rstrip(), *_lines(_SET[example])]) + "\n"


def write_sample(path: Path, example: Example, *, is_forced: bool) -> Path:
    """Write it, readable by its owner alone; returns where. Raises StartupError.

    is_forced: takes the place of a file that is there.
    """
    target = path.expanduser().absolute()
    try:
        # Whole or not at all, and never through a link to somebody else's file.
        with tempfile.NamedTemporaryFile(
            "w", dir=target.parent, prefix=f".{target.name}.", encoding="utf-8", delete=False
        ) as draft:
            os.fchmod(draft.fileno(), _MODE)
            draft.write(render_sample(example))
        try:
            if is_forced:
                os.replace(draft.name, target)  # noqa: PTH105 -- beside os.link
            else:
                os.link(draft.name, target)
        finally:
            Path(draft.name).unlink(missing_ok=True)
    except FileExistsError:
        raise StartupError(
            f"{target} is there already: name another file, or take --force to lose it"
        ) from None
    except OSError as error:
        raise StartupError(f"cannot write {target}: {error.strerror}") from None
    return target


def _lines(chosen: Mapping[str, Any]) -> Iterator[str]:
    section = next(iter(SECTIONS.values()))
    for name, field in Settings.model_fields.items():
        if name in SECTIONS:
            section = SECTIONS[name]
            yield from ("", f"[{section.name}]  # {section.title}")
        yield f"# {describe(field)}."
        key = file_key(section, name)
        if name in chosen:
            yield f"{key} = {_toml(chosen[name])}"
        else:
            yield f"#{key} = {_toml(_value(field))}"


def _value(field: FieldInfo) -> Any:
    if field.is_required() or field.default is None:
        return (field.examples or [""])[0]
    return field.default


def _toml(value: Any) -> str:
    """Write a value. JSON's texts, numbers, lists and truth values are TOML's, too."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)} = {_toml(part)}" for name, part in value.items()) + "}"
    return json.dumps(str(value) if isinstance(value, Path) else value)
