"""Opening a TCP connection from inside the network namespace of a process on this host."""

import os
import socket
import threading

from core.errors import ExecdUnreachableError, NotSupportedError
from runtimes import linux

__all__ = ["connect_in_namespace"]

_SOURCE = ("127.0.0.2", 0)
"""Not 127.0.0.1: while nothing listens yet, the kernel could pick the port we call as our own, and a socket that calls
itself is connected -- and in the way of the program that wants to listen there."""


def connect_in_namespace(pid: int, port: int, *, timeout_seconds: float) -> socket.socket:
    """Connect to 127.0.0.1:port as a process of that namespace would; the socket then works anywhere.

    Needs CAP_SYS_ADMIN over the namespace. Raises NotSupportedError without it, ExecdUnreachableError if the process is
    gone or nothing listens.
    """
    result: list[socket.socket | OSError] = []

    def connect() -> None:
        # A namespace belongs to a thread: this one enters, makes its socket there and ends, so nobody else is affected.
        try:
            _enter(f"/proc/{pid}/ns/net")
            result.append(socket.create_connection(("127.0.0.1", port), timeout_seconds, _SOURCE))
        except OSError as error:
            result.append(error)

    thread = threading.Thread(target=connect, name="netns-connect", daemon=True)
    thread.start()
    thread.join()
    outcome = result[0]
    if isinstance(outcome, PermissionError):
        message = "reaching a port inside a sandbox needs root on its host (CAP_SYS_ADMIN for setns)"
        raise NotSupportedError(message) from outcome
    if isinstance(outcome, OSError):
        message = f"port {port} of process {pid}'s network does not answer: {outcome}"
        raise ExecdUnreachableError(message) from outcome
    return outcome


def _enter(path: str) -> None:
    """Put the calling thread into a network namespace."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        linux.enter_namespace(descriptor, linux.CLONE_NEWNET)
    finally:
        os.close(descriptor)
