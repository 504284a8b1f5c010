"""Opening a TCP connection from inside the network namespace of a process on this host."""

import errno
import os
import socket
import threading

from core.errors import ExecdUnreachableError, NotSupportedError
from runtimes import linux
from runtimes.processes import ProcessRef

__all__ = ["connect_in_namespace"]

_SOURCE = ("127.0.0.2", 0)
"""Not 127.0.0.1: while nothing listens yet, the kernel could pick the port we call as our own, and a socket that calls
itself is connected -- and in the way of the program that wants to listen there."""

_IPV6_REFUSALS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.ENETUNREACH)
"""Of a namespace without IPv6."""


def connect_in_namespace(process: ProcessRef, port: int, *, timeout_seconds: float) -> socket.socket:
    """Connect to 127.0.0.1:port, else to [::1]:port, as a process of that namespace would; it then works anywhere.

    Needs CAP_SYS_ADMIN over the namespace. Raises NotSupportedError without it, ExecdUnreachableError if the process is
    gone or nothing listens.
    """
    result: list[socket.socket | OSError] = []

    def connect() -> None:
        # A namespace belongs to a thread: this one enters, makes its socket there and ends, so nobody else is affected.
        try:
            _enter(process)
            result.append(_connect(port, timeout_seconds))
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
        message = f"port {port} of process {process.pid}'s network does not answer: {outcome}"
        raise ExecdUnreachableError(message) from outcome
    return outcome


def _connect(port: int, timeout_seconds: float) -> socket.socket:
    try:
        return socket.create_connection(("127.0.0.1", port), timeout_seconds, _SOURCE)
    except ConnectionRefusedError as refusal:
        # Programs that take "localhost" for the other address listen nowhere else.
        try:
            return _connect_by_ipv6(port, timeout_seconds)
        except OSError as error:
            raise (refusal if error.errno in _IPV6_REFUSALS else error) from None


def _connect_by_ipv6(port: int, timeout_seconds: float) -> socket.socket:
    connection = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    try:
        # Its loopback has one address only, so the port of our own is chosen, and looked at, before the call.
        connection.bind(("::1", 0))
        _refuse_own(connection, port)
        connection.settimeout(timeout_seconds)
        connection.connect(("::1", port))
    except BaseException:
        connection.close()
        raise
    return connection


def _refuse_own(connection: socket.socket, port: int) -> None:
    if connection.getsockname()[1] == port:
        raise ConnectionRefusedError(errno.ECONNREFUSED, "nothing listens")


def _enter(process: ProcessRef) -> None:
    """Put the calling thread into the network namespace of a process. Raises OSError."""
    descriptor = os.open(f"/proc/{process.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        # Else its number may be another process's by now, and this be the network of the host.
        if not process.is_alive:
            raise ProcessLookupError(errno.ESRCH, "it has ended")
        linux.enter_namespace(descriptor, linux.CLONE_NEWNET)
    finally:
        os.close(descriptor)
