"""The option --config of every command that reads settings."""

import os
from pathlib import Path
from typing import Annotated

import typer

from core.config_file import CONFIG_VARIABLE

__all__ = ["ConfigOption"]


def _use_config(path: Path | None) -> None:
    """Name the file to this process, and by that to all it starts."""
    if path is not None:
        if not path.expanduser().exists():
            raise typer.BadParameter(f"there is no file {path}")
        os.environ[CONFIG_VARIABLE] = str(path.expanduser().absolute())


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="PATH",
        callback=_use_config,
        is_eager=True,
        help=f"Configuration file. Default: {CONFIG_VARIABLE}, ./sandmill.toml, the one in SANDMILL_HOME, or "
        "~/.sandbox.toml.",
    ),
]
"""Of every command that reads settings. Its callback is all there is to do."""
