"""Runs unittest or pytest on a small test file in a process of its own and gives the merged output."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

__all__ = ["run_pytest", "run_unittest"]


def run_unittest(folder: Path, *arguments: str, **files: str) -> str:
    """files: module name to source. Gives stdout and stderr as one stream, as a merged step has them."""
    _write(folder, files)
    return _run(folder, "unittest", *arguments)


def run_pytest(folder: Path, *arguments: str, **files: str) -> str:
    """Like run_unittest, without the plugins of the outer run."""
    _write(folder, files)
    return _run(folder, "pytest", "-p", "no:cacheprovider", *arguments)


def _write(folder: Path, files: dict[str, str]) -> None:
    for name, source in files.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(source))


def _run(folder: Path, module: str, *arguments: str) -> str:
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        timeout=30,
    )
    return done.stdout.decode()
