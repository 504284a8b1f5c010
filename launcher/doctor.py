"""One line per thing that must work on this host, each with what to do when it does not."""

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from core.errors import SandmillError
from launcher.config import LauncherSettings
from launcher.embedded import embedded_services
from launcher.errors import StartupError
from launcher.external import check_external_postgres, check_external_redis
from launcher.state import Home
from runtimes.registry import build_runtime

__all__ = ["Finding", "examine"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check. ok None: cannot be used here, but nothing needs it. detail: what was seen or what to do."""

    name: str
    ok: bool | None
    detail: str

    def __str__(self) -> str:
        """One line for a person."""
        mark = {True: "ok  ", False: "FAIL", None: "-   "}[self.ok]
        return f"{mark}  {self.name}: {self.detail}"


_RUNTIMES = {"local": True, "docker": False}
"""Runtime -> whether `up` needs it with its default settings."""


def examine(settings: LauncherSettings) -> Iterator[Finding]:
    """Run every check, one after the other; a failed one does not stop the rest."""
    yield Finding("python", ok=sys.version_info >= (3, 11), detail=sys.version.split()[0])
    home = _check("home", lambda: _check_home(settings.home), is_required=True)
    yield home
    if home.ok is False:
        return
    # A folder of its own, so that a running stack is not disturbed.
    folder = settings.home.expanduser() / "doctor"
    try:
        yield from _check_stores(settings, folder)
        for name, is_required in _RUNTIMES.items():
            yield _check(f"runtime {name}", partial(_check_runtime, name, folder), is_required=is_required)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check(name: str, check: Callable[[], str], *, is_required: bool) -> Finding:
    try:
        return Finding(name, ok=True, detail=check())
    except SandmillError as error:
        return Finding(name, ok=False if is_required else None, detail=" ".join(error.message.split()))


def _check_home(path: Path) -> str:
    home = Home(path)
    home.check()
    return f"{home.path} is writable, {shutil.disk_usage(home.path).free // 2**30} GiB free"


def _check_stores(settings: LauncherSettings, folder: Path) -> Iterator[Finding]:
    external = {"DATABASE_URL": settings.database_url, "REDIS_URL": settings.redis_url}
    checks = {"DATABASE_URL": check_external_postgres, "REDIS_URL": check_external_redis}
    for name, url in external.items():
        if url is not None:
            yield _check(
                name, partial(_check_external, checks[name], url.get_secret_value()), is_required=True
            )
    if all(external.values()):
        return
    try:
        with embedded_services(folder, settings={"fsync": "off"}) as services:
            yield Finding("postgres", ok=True, detail=services.postgres.label)
            yield Finding("valkey", ok=True, detail="answers on a loopback port")
    except StartupError as error:
        yield Finding("postgres and valkey", ok=False, detail=error.message)


def _check_external(check: Callable[[str], str], url: str) -> str:
    check(url)
    return "answers"


def _check_runtime(name: str, folder: Path) -> str:
    with closing(build_runtime(name, folder / "runtimes")) as runtime:
        runtime.check()
    return "works"
