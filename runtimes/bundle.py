"""The execd bundle on this host: built once per version, found again afterwards.

execd is a program of its own: this module runs its builder as one and never imports it.
"""

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from core.errors import RuntimeUnavailableError, SpecInvalidError
from runtimes.base import SandboxSpec

__all__ = [
    "BUNDLE_MOUNT",
    "EXECD_NAME",
    "TOKEN_VARIABLE",
    "Bundle",
    "check_environment",
    "ensure_bundle",
    "sealing_flags",
    "shield_loader_variables",
    "without_settings",
]

BUNDLE_MOUNT = "/.sbx"
"""Where sandboxes see the bundle, read-only."""

_BUILD_TIMEOUT_SECONDS = 120.0
"""Seconds are normal; the rest is for a slow disk."""

_SOURCES = Path(__file__).resolve().parents[1]

_DESCRIBE = (
    "import json, sys; from execd.bundle import bundle_command, bundle_digest; "
    "print(json.dumps({'digest': bundle_digest(), 'command': bundle_command(sys.argv[1])}))"
)

_LOADER_VARIABLES = ("LD_", "GLIBC_TUNABLES", "MALLOC_")
_ORIGINAL_PREFIX = "SANDMILL_ORIG_"
_SETTINGS_PREFIX = "EXECD_"
_RESERVED = (_SETTINGS_PREFIX, _ORIGINAL_PREFIX, "SANDMILL_EXECUTION_ID")

EXECD_NAME = "execd"
"""Of its process, from when it listens."""

TOKEN_VARIABLE = "EXECD_ACCESS_TOKEN"  # noqa: S105 -- a name, not a secret
"""execd demands the value from its clients, and hides it from all processes beside it."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """A built bundle. path: on this host. command: the argv that starts execd from BUNDLE_MOUNT, without its flags."""

    path: Path
    command: tuple[str, ...]

    @property
    def interpreter(self) -> tuple[str, ...]:
        """The argv that starts the bundle's Python on this host, without a program."""
        return tuple(
            f"{self.path}{word.removeprefix(BUNDLE_MOUNT)}" if word.startswith(BUNDLE_MOUNT) else word
            for word in self.command[:-1]
        )


def ensure_bundle(cache_dir: Path) -> Bundle:
    """Give the current bundle, building it if need be: `cache_dir/bundle-<digest>`.

    Safe with several processes at once. Raises RuntimeUnavailableError with the builder's words.
    """
    facts = json.loads(_run(["-c", _DESCRIBE, BUNDLE_MOUNT]))
    target = cache_dir / f"bundle-{facts['digest']}"
    if not target.is_dir():
        _build(cache_dir, target)
    return Bundle(target, tuple(facts["command"]))


def sealing_flags(spec: SandboxSpec) -> tuple[str, ...]:
    """Give execd's flags for sandboxes in which nothing steers it."""
    return ("--sealed",) if spec.is_sealed else ()


def check_environment(environment: Mapping[str, str]) -> None:
    """Refuse what no process can be given, and names by which execd itself is set. Raises SpecInvalidError."""
    for name, value in environment.items():
        if not name or "=" in name or "\0" in name + value:
            message = f"environment variable {name!r}: the name is empty or has '=', or there is a NUL in it"
            raise SpecInvalidError(message, field="env")
        if name.startswith(_RESERVED):
            message = (
                f"environment variable {name!r}: {', '.join(_RESERVED)} begin names that are execd's own"
            )
            raise SpecInvalidError(message, field="env")


def without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Give an image's environment with no say in how execd works: its settings are blank, which is no setting.

    Blank rather than left out: see `shield_loader_variables`.
    """
    return {name: "" if name.startswith(_SETTINGS_PREFIX) else value for name, value in environment.items()}


def shield_loader_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Give the environment to start execd with: what steers a dynamic loader reaches its commands, not execd itself.

    Blank rather than left out, since a container engine would merge the image's own value in again.
    """
    shielded: dict[str, str] = {}
    for name, value in environment.items():
        if name.startswith(_LOADER_VARIABLES):
            shielded[name] = ""
            shielded[_ORIGINAL_PREFIX + name] = value
        else:
            shielded[name] = value
    return shielded


def _build(cache_dir: Path, target: Path) -> None:
    """Let one process build; the others wait and find it done. The kernel drops the lock of a builder that dies."""
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(cache_dir / "bundle.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise RuntimeUnavailableError(f"the execd bundle has no place in {cache_dir}: {error}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if not target.is_dir():
            _run(["-m", "execd.bundle", str(target)])
    finally:
        os.close(descriptor)


def _run(arguments: Sequence[str]) -> str:
    """Run the builder with this interpreter; gives what it printed."""
    try:
        done = subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            timeout=_BUILD_TIMEOUT_SECONDS,
            env={**os.environ, "PYTHONPATH": str(_SOURCES)},
            cwd="/",
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeUnavailableError(f"the execd bundle could not be built: {error}") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeUnavailableError(f"the execd bundle could not be built: {last}")
    return done.stdout
