"""The few calls to a Docker engine that the watchdog makes, over its socket, without a library."""

import json
import os
import socket
import threading
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

__all__ = ["LABEL_PREFIX", "RawEngine", "engine_socket"]

LABEL_PREFIX = "sandmill.label."
"""Of a container's labels that are its sandbox's. Here, since the watchdog imports little."""

_TIMEOUT_SECONDS = 10.0
_THREADS = 8
_READ_BYTES = 64 << 10


def engine_socket() -> str | None:
    """Give the socket of the engine that is used by default; None if it is reached in another way."""
    address = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    return address.removeprefix("unix://") if address.startswith("unix://") else None


class RawEngine:
    """One engine. Every call opens a connection of its own."""

    def __init__(self, socket_path: str) -> None:
        """socket_path: of the engine, on this host."""
        self._path = socket_path

    def labelled(self, name: str, value: str) -> list[str]:
        """Give the ids of all containers, running or not, whose sandbox has this label. Raises OSError."""
        filters = quote(json.dumps({"label": [f"{LABEL_PREFIX}{name}={value}"]}))
        status, body = self._call("GET", f"/containers/json?all=1&filters={filters}")
        if status != 200:
            raise OSError(f"the engine answered {status}")
        return [str(entry["Id"]) for entry in json.loads(body)]

    def remove_all(self, ids: Sequence[str]) -> int:
        """Kill and remove containers, several at a time; gives how many are left."""
        waiting, left = list(ids), [0]

        def work() -> None:
            while True:
                try:
                    container = waiting.pop()
                except IndexError:
                    return
                if not self._remove(container):
                    left[0] += 1

        threads = [threading.Thread(target=work) for _ in range(min(_THREADS, len(waiting)))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return left[0]

    def _remove(self, container: str) -> bool:
        try:
            # Killed first: to remove one the engine also takes its file system apart.
            self._call("POST", f"/containers/{container}/kill")
            status, _ = self._call("DELETE", f"/containers/{container}?force=1&v=1")
        except OSError:
            return False
        return status in (204, 404)

    def _call(self, method: str, target: str) -> tuple[int, Any]:
        # HTTP/1.0: the answer comes in one piece, and its end is that of the connection.
        head = f"{method} {target} HTTP/1.0\r\nHost: docker\r\nContent-Length: 0\r\n\r\n"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_TIMEOUT_SECONDS)
            connection.connect(self._path)
            connection.sendall(head.encode())
            answer = bytearray()
            while data := connection.recv(_READ_BYTES):
                answer += data
        line, _, rest = bytes(answer).partition(b"\r\n")
        words = line.split()
        if len(words) < 2 or not words[1].isdigit():
            raise OSError(f"the engine answered {line[:80]!r}")
        return int(words[1]), rest.partition(b"\r\n\r\n")[2]
