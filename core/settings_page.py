"""Writes docs/settings.md from the settings themselves: `python -m core.settings_page`."""

import json
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from core.config import Settings
from core.environment import variable_name

__all__ = ["TARGET", "render"]

TARGET = Path(__file__).parent.parent / "docs" / "settings.md"

_INTRODUCTION = """\
# Settings

All come from the environment, are read once when a program starts, and stop the start with their name when they are
wrong. Written by `python -m core.settings_page` from `core/config.py`; a test compares the two.

`./run up` and `./run demo` hand their environment on to all they start, so that this offers containers beside local
sandboxes, and half as many at a time:

```console
$ SANDMILL_RUNTIMES='["local", "docker"]' SANDMILL_WORKER_SLOTS=4 ./run up
```

They start a Postgres and a Redis of their own unless `DATABASE_URL` or `REDIS_URL` names one (PostgreSQL 15 or newer).
Programs that run alone need both, and on all machines the same ones. Clients read `SANDMILL_API_URL` and
`SANDMILL_API_KEY`; `./run` itself reads `SANDMILL_VENV`, the place of its packages, and `PYTHON`.
"""

_HEADINGS = {
    "home": "All programs",
    "api_host": "API",
    "sandbox_create_wait_seconds": "Live sandboxes: the same for API and workers",
    "ingress_host": "Ingress",
    "tick_seconds": "Scheduler",
    "lease_seconds": "Leases: the same for scheduler and workers",
    "runtimes": "Worker",
    "docker_pull": "Docker runtime",
}
"""First field of a part -> its heading."""

_BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}


def render() -> str:
    """Give the page."""
    lines = [_INTRODUCTION.rstrip()]
    for name, field in Settings.model_fields.items():
        if name in _HEADINGS:
            lines += ["", f"## {_HEADINGS[name]}", "", "| variable | default | meaning |", "|---|---|---|"]
        lines.append(f"| `{variable_name(name, field)}` | {_default(field)} | {_meaning(field)} |")
    return "\n".join(lines) + "\n"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "none"
    value: Any = field.default
    if value is None:
        return "see there"
    return f"`{value}`" if isinstance(value, str | Path) else f"`{json.dumps(value)}`"


def _meaning(field: FieldInfo) -> str:
    """Give the description with the bounds."""
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
