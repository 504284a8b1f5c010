"""Official programs that do not share the server's packages, each in a virtual environment of its own.

`python -m tests.support.client_environment` makes all of them beforehand.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

__all__ = ["client_environment", "harbor_environment", "newer_python"]

_LOCKS = Path(__file__).parents[1] / "clients"
_INSTALL_SECONDS = 400


def client_environment(lock: str | Path, *, python: str | None = None) -> Path:
    """Give the folder of programs of an environment with the packages of a lock file; made once.

    lock: its name among those of the tests, or the path of another. python: which interpreter; None: the one that runs
    the tests.
    """
    file = _LOCKS / lock
    name = hashlib.sha256(file.read_bytes() + str(python).encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"sandmill-test-clients-{os.getuid()}-{name}"
    if not (folder / "complete").exists():
        making = Path(tempfile.mkdtemp(prefix="sandmill-test-clients-"))
        shutil.rmtree(making)
        _run(_uv(), "venv", "--quiet", "--python", python or sys.executable, str(making))
        _run(
            *(_uv(), "pip", "install", "--quiet", "--require-hashes", "--link-mode=copy"),
            *("--python", str(making / "bin/python"), "-r", str(file)),
        )
        (making / "complete").touch()
        try:
            # Scripts name their interpreter by its path, so the environment stays where it was made.
            folder.symlink_to(making, target_is_directory=True)
        except FileExistsError:
            shutil.rmtree(making)
    return folder / "bin"


def harbor_environment() -> Path:
    """Give that of Harbor, which wants a newer Python than the server; skips the test where there is none."""
    return client_environment("requirements-harbor.lock", python=newer_python(minor=12))


def newer_python(*, minor: int) -> str:
    """Give a Python 3 of this minor version or newer that starts; skips the test where there is none."""
    names = [f"python3.{number}" for number in range(minor, minor + 4)]
    folders = [*os.environ.get("PATH", "").split(os.pathsep), *map(str, _managed_folders())]
    for name in names:
        for folder in folders:
            path = Path(folder) / name
            if path.exists() and _starts(path):
                return str(path)
    pytest.skip(f"no Python 3.{minor} or newer starts here")


def _managed_folders() -> list[Path]:
    roots = [Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"]
    return [folder / "bin" for root in roots if root.is_dir() for folder in sorted(root.iterdir())]


def _starts(path: Path) -> bool:
    try:
        return (
            subprocess.run(
                [path, "-c", "import ssl, venv"], check=False, capture_output=True, timeout=20
            ).returncode
            == 0
        )
    except (OSError, subprocess.TimeoutExpired):
        return False


def _uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.exists() else shutil.which("uv") or pytest.fail("uv is missing")


def _run(*argv: str) -> None:
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=_INSTALL_SECONDS)
    assert done.returncode == 0, done.stderr[-3000:]


def main() -> None:
    """Make all environments."""
    for lock in sorted(_LOCKS.glob("requirements*.lock")):
        if lock.name == "requirements-harbor.lock":
            with contextlib.suppress(pytest.skip.Exception):
                harbor_environment()
        else:
            client_environment(lock.name)


if __name__ == "__main__":
    main()
