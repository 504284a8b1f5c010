"""Writes the published document: `python -m api.openapi`; with `--check`, only says whether it is up to date."""

import json
import sys
from pathlib import Path

from pydantic import SecretStr

from api.app import create_app
from core.config import Settings

__all__ = ["main", "render"]

TARGET = Path(__file__).parent.parent / "specs" / "openapi.json"


def render() -> str:
    """Give the document as text. Needs no database: nothing is connected to."""
    settings = Settings(
        database_url=SecretStr("postgresql://nobody@localhost/none"), redis_url=SecretStr("redis://localhost")
    )
    return json.dumps(create_app(settings).openapi(), indent=2, sort_keys=True) + "\n"


def main(arguments: list[str]) -> int:
    """Write or check; gives the exit code."""
    text = render()
    if "--check" in arguments:
        if TARGET.is_file() and TARGET.read_text(encoding="utf-8") == text:
            return 0
        sys.stderr.write(f"{TARGET} is out of date: run `python -m api.openapi`\n")
        return 1
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
