"""The engine as a process of this host: what it may hand on to containers."""

import os
import socket
import struct
from contextlib import suppress
from pathlib import Path

from runtimes.raw_engine import engine_socket

__all__ = ["open_files_ceiling"]

_CAP_SYS_RESOURCE = 1 << 24
_TIMEOUT_SECONDS = 5.0
_NO_CEILING = 1 << 30


def open_files_ceiling(base_url: str | None) -> int:
    """Give the most open files that the engine can let a process in a container have.

    Without CAP_SYS_RESOURCE, as in some virtual machines and containers, that is what it has itself, and a container
    with more does not start.
    """
    path = engine_socket() if base_url is None else base_url.removeprefix("unix://")
    ceiling = _NO_CEILING
    with suppress(OSError, ValueError):
        ceiling = int(Path("/proc/sys/fs/nr_open").read_text())
    with suppress(OSError, ValueError, StopIteration):
        pid = _listener(path or "")
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
        capabilities = int(next(line for line in status if line.startswith("CapEff:")).split()[1], 16)
        if not capabilities & _CAP_SYS_RESOURCE:
            limits = Path(f"/proc/{pid}/limits").read_text().splitlines()
            hard = next(line for line in limits if line.startswith("Max open files")).split()[4]
            ceiling = min(ceiling, int(hard))
    return ceiling


def _listener(path: str) -> int:
    """Give the process that listens on a Unix socket."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_TIMEOUT_SECONDS)
        connection.connect(os.fspath(path))
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid: int = struct.unpack("3i", peer)[0]
    return pid
