"""Unix sockets at paths of any length: the address itself has room for 107 bytes only."""

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from core.errors import ExecdUnreachableError

__all__ = ["connect_in_packets", "connect_to", "listen_at"]

_BACKLOG = 512
"""Connections that may wait until execd takes them; it does so within milliseconds."""

_TIMEVAL = struct.Struct("@ll")


def listen_at(path: Path, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    """Make a listening socket at path, replacing a stale one. Whoever may enter the folder may connect."""
    listener = socket.socket(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC)
    try:
        path.unlink(missing_ok=True)
        with _short(path) as address:
            listener.bind(address)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def connect_to(path: Path, *, timeout_seconds: float) -> socket.socket:
    """Connect to the socket at path, which may have as many waiting as it takes. Raises ExecdUnreachableError.

    timeout_seconds: above 0; also for what is done with the connection.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        # By the kernel: a socket with a timeout of Python's does not wait for a place in the queue, but fails at once.
        _limit_waiting(connection, timeout_seconds)
        with _short(path) as address:
            connection.connect(address)
        _limit_waiting(connection, 0)
        connection.settimeout(timeout_seconds)
    except OSError as error:
        connection.close()
        raise ExecdUnreachableError(f"execd's socket does not answer: {error}") from error
    return connection


def connect_in_packets(path: Path) -> socket.socket:
    """Connect to a socket that keeps messages apart. Raises OSError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        with _short(path) as address:
            connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection


def _limit_waiting(connection: socket.socket, seconds: float) -> None:
    """Have the kernel give up after seconds; 0: never."""
    limit = _TIMEVAL.pack(int(seconds), int(seconds % 1 * 1_000_000))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """Give a short name of the path, by way of a descriptor of its folder."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
