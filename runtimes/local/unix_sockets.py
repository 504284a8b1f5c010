"""Unix sockets at paths of any length: the address itself has room for 107 bytes only."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from core.errors import ExecdUnreachableError

__all__ = ["connect_in_packets", "connect_to", "listen_at"]

_BACKLOG = 128
"""Connections that may wait until execd takes them; it does so within milliseconds."""


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
    """Connect to the socket at path. Raises ExecdUnreachableError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        connection.settimeout(timeout_seconds)
        with _short(path) as address:
            connection.connect(address)
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


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """Give a short name of the path, by way of a descriptor of its folder."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
