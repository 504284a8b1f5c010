"""One line per thing that must work on this host, each with what to do when it does not, or not in full."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path

from core.config_file import find_config_file
from core.errors import SandmillError
from launcher.config import LauncherSettings
from launcher.embedded import embedded_services
from launcher.errors import StartupError
from launcher.external import check_external_postgres, check_external_redis
from launcher.state import Home
from runtimes.base import Runtime
from runtimes.registry import build_runtime, runtime_modes

__all__ = ["Finding", "Mark", "examine"]


class Mark(StrEnum):
    """What a line says about the host, as it is printed."""

    OK = "ok"
    FAIL = "FAIL"
    ABSENT = "-"
    """Cannot be used here, but nothing needs it."""
    NOTE = "note"
    """Works, with less than one would expect."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check. detail: what was seen or what to do."""

    name: str
    mark: Mark
    detail: str

    def __str__(self) -> str:
        """One line for a person."""
        return f"{self.mark:<4}  {self.name}: {self.detail}"


_RUNTIMES = ("local", "docker")


_PID_MAX = Path("/proc/sys/kernel/pid_max")


def examine(
    settings: LauncherSettings,
    *,
    runtimes: Sequence[str] = ("local",),
    worker_slots: int | None = None,
    max_pids: int | None = None,
) -> Iterator[Finding]:
    """Run every check, one after the other; a failed one does not stop the rest.

    runtimes: which the worker of this machine is to offer; others may be missing. worker_slots, max_pids: see the
    settings; None: not looked at.
    """
    config = find_config_file(os.environ)
    yield Finding("config", Mark.OK, str(config) if config else "no file: all from the environment")
    is_new_enough = sys.version_info >= (3, 11)
    yield Finding("python", Mark.OK if is_new_enough else Mark.FAIL, sys.version.split()[0])
    if worker_slots is not None and max_pids is not None:
        yield from _check_processes(worker_slots, max_pids)
    home = _check("home", lambda: _check_home(settings.home), is_required=True)
    yield home
    if home.mark is Mark.FAIL:
        return
    # A folder of its own, so that a running stack is not disturbed.
    folder = settings.home.expanduser() / "doctor"
    try:
        yield from _check_stores(settings, folder)
        for name in _RUNTIMES:
            yield from _check_runtime(name, folder, is_required=name in runtimes)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check(name: str, check: Callable[[], str], *, is_required: bool) -> Finding:
    try:
        return Finding(name, Mark.OK, check())
    except SandmillError as error:
        mark = Mark.FAIL if is_required else Mark.ABSENT
        return Finding(name, mark, " ".join(error.message.split()))


def _check_home(path: Path) -> str:
    home = Home(path)
    home.check()
    return f"{home.path} is writable, {shutil.disk_usage(home.path).free // 2**30} GiB free"


def _check_processes(slots: int, max_pids: int) -> Iterator[Finding]:
    """Say whether sandboxes that fork without end could take every process of this machine."""
    with suppress(OSError, ValueError):  # a kernel that does not say
        most = int(_PID_MAX.read_text())
        if slots * max_pids >= most:
            detail = (
                f"{slots} sandboxes of {max_pids} each could take all {most} that this machine can have: set the "
                f"sysctl kernel.pid_max above {slots * max_pids}, or lower SANDMILL_SANDBOX_MAX_PIDS or "
                "SANDMILL_WORKER_SLOTS"
            )
            yield Finding("processes", Mark.NOTE, detail)


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
            yield Finding("postgres", Mark.OK, services.postgres.label)
            yield Finding("valkey", Mark.OK, "answers on a loopback port")
    except StartupError as error:
        yield Finding("postgres and valkey", Mark.FAIL, error.message)


def _check_external(check: Callable[[str], str], url: str) -> str:
    check(url)
    return "answers"


def _check_runtime(name: str, folder: Path, *, is_required: bool) -> Iterator[Finding]:
    """Say whether it works, and in a note each what it cannot enforce here."""
    title = f"runtime {name}"
    with closing(build_runtime(name, folder / "runtimes")) as runtime:
        found = _check(title, partial(_try, runtime), is_required=is_required)
        yield found
        if found.mark is Mark.OK:
            yield from (Finding(title, Mark.NOTE, text) for text in runtime.limitations())
    for mode, trial in runtime_modes(name, folder / "runtimes"):
        yield _check(f"{title}, {mode}", trial, is_required=False)


def _try(runtime: Runtime) -> str:
    runtime.check()
    return "works"
