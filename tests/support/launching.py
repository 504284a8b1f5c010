"""Runs the launcher in processes of their own, so that tests can kill it or start it as somebody else."""

import contextlib
import json
import os
import pwd
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

HOLD = """
import json, os, sys
from pathlib import Path
from core.errors import SandmillError
from launcher.embedded import embedded_services
from launcher.termination import Termination
try:
    with Termination(), embedded_services(Path(sys.argv[1]), settings={"fsync": "off"}) as services:
        pids = {"postgres": services.postgres.child.pid, "valkey": services.valkey.child.pid}
        urls = {"database_url": services.database_url, "redis_url": services.redis_url}
        print(json.dumps({**urls, "label": services.postgres.label, "pids": pids}), flush=True)
        sys.stdin.read()
except SandmillError as error:
    sys.exit(error.message)
except KeyboardInterrupt:
    pass
"""
"""Starts Postgres and Valkey on the folder given, prints where they are, and stops them when stdin is closed."""


@dataclass
class Holder:
    """A process that runs both servers. It ends when its stdin is closed."""

    process: "subprocess.Popen[str]"
    facts: dict[str, object]

    @property
    def database_url(self) -> str:
        return str(self.facts["database_url"])

    @property
    def redis_url(self) -> str:
        return str(self.facts["redis_url"])

    @property
    def pids(self) -> dict[str, int]:
        found = self.facts["pids"]
        assert isinstance(found, dict)
        return found


@contextlib.contextmanager
def hold_services(
    home: Path, *, prefix: Sequence[str] = (), env: Mapping[str, str] | None = None
) -> Iterator[Holder]:
    """Run HOLD on home; leaving closes its stdin and waits. Raises AssertionError with its stderr when it fails."""
    process = start_holder(home, prefix=prefix, env=env)
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        assert line, process.stderr.read()
        yield Holder(process, json.loads(line))
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired, ValueError):
            process.communicate(timeout=30)
        if process.poll() is None:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def start_holder(
    home: Path, *, prefix: Sequence[str] = (), env: Mapping[str, str] | None = None
) -> "subprocess.Popen[str]":
    """Start HOLD on home without waiting for it."""
    return subprocess.Popen(
        [*prefix, sys.executable, "-c", HOLD, str(home)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=launcher_environment(env or {}),
    )


def refusal(home: Path, *, prefix: Sequence[str] = (), env: Mapping[str, str] | None = None) -> str:
    """Run HOLD where it must refuse to start; returns its stderr without the newline."""
    done = subprocess.run(
        [*prefix, sys.executable, "-c", HOLD, str(home)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        env=launcher_environment(env or {}),
        check=False,
    )
    assert done.returncode == 1, done
    return done.stderr.removesuffix("\n")


def launcher_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Environment in which the repository can be imported and no outer stack is known."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("SANDMILL_", "FLOWER_"))
    }
    kept = {name: value for name, value in kept.items() if name not in {"DATABASE_URL", "REDIS_URL"}}
    return {**kept, "PYTHONPATH": str(REPOSITORY), "SANDMILL_CONFIG": os.devnull, **extra}


def as_user(name: str | int) -> list[str]:
    """Words that run a program as another user; needs root.

    The one capability left lets it read an interpreter that lies below a closed home, but neither write nor pass for
    root.
    """
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("becoming another user needs root and setpriv")
    user = name if isinstance(name, int) else pwd.getpwnam(name).pw_uid
    capability = "-all,+dac_read_search"
    ids = [f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    return ["setpriv", *ids, f"--inh-caps={capability}", f"--ambient-caps={capability}", "--"]


def in_chroot(mount_point: Path, *, before: str = "true") -> list[str]:
    """Words that run a program as root where the kernel refuses user namespaces, as in most containers.

    It refuses them to whoever is in a chroot. mount_point: an empty folder; the mount ends with the program.
    """
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("a mount namespace of its own needs root and unshare")
    mount_point.mkdir()
    script = f'{before} && mount --rbind / "$0" && exec chroot "$0" "$@"'
    return ["unshare", "--mount", "--propagation=private", "sh", "-c", script, str(mount_point)]


def processes_of(home: Path) -> list[str]:
    """Names of all processes that hold the lock of this home: every child of the launcher on it, and theirs."""
    lock = home / "children.lock"
    found = []
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if descriptor.samefile(lock):
                found.append((descriptor.parents[1] / "comm").read_text().strip())
    return found


def wait_until(condition: Callable[[], bool], *, timeout_seconds: float = 10.0) -> float:
    """Poll until the condition holds; returns the seconds it took. Raises AssertionError after the timeout."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < timeout_seconds, f"not within {timeout_seconds} s"
        time.sleep(0.02)
    return time.monotonic() - began
