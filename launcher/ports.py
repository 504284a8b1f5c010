"""TCP ports on the loopback address."""

import errno
import socket

from launcher.errors import StartupError

__all__ = ["LOOPBACK", "check_port_is_free", "find_free_port", "is_port_free"]

LOOPBACK = "127.0.0.1"


def find_free_port() -> int:
    """Pick a port nobody listens on right now. Another program may take it first: callers try again."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def is_port_free(port: int) -> bool:
    """Say whether a server could listen on the port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: connections of a server that just ended (TIME_WAIT) are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def check_port_is_free(port: int, *, purpose: str, host: str = LOOPBACK, setting: str = "--port") -> None:
    """Raise StartupError when something listens on the port, or this user may not. setting: gives another port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except PermissionError:
            message = f"this user may not listen on port {port} for the {purpose}: choose one above 1023 with {setting}"
            raise StartupError(message) from None
        except socket.gaierror as error:
            raise StartupError(
                f"{host} is no address for the {purpose} to listen on: {error.strerror}"
            ) from None
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise StartupError(
                    f"{host} is no address of this machine for the {purpose} to listen on"
                ) from None
            message = (
                f"port {port} for the {purpose} is taken ({error.strerror}): "
                f"stop what listens there or choose another one with {setting} (0 picks a free one)"
            )
            raise StartupError(message) from None
