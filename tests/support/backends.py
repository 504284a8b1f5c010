"""Programs behind execd's relay: real ones, and one that says exactly what a test scripts."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from websockets.sync.server import serve


@contextmanager
def http_backend(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    """Serve with a handler class of the standard library; gives the port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def websocket_backend(handler: Callable[[Any], None], **options: Any) -> Iterator[int]:
    """Serve WebSockets; gives the port."""
    with serve(handler, "127.0.0.1", 0, **options) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.socket.getsockname()[1]
        finally:
            server.shutdown()
            thread.join()


@dataclass
class Scripted:
    """A backend that takes one connection at a time. received: all bytes of each connection, in order."""

    port: int
    received: list[bytes] = field(default_factory=list)


@contextmanager
def scripted_backend(
    script: Callable[[socket.socket, Scripted], None], *, host: str = "127.0.0.1"
) -> Iterator[Scripted]:
    """Run a script with every connection; it is closed after it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.bind((host, 0))
        listener.listen()
        backend = Scripted(listener.getsockname()[1])

        def run() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.settimeout(10)
                    script(connection, backend)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield backend
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def read_head(connection: socket.socket) -> bytes:
    """Read up to the empty line, and not a byte more."""
    data = b""
    while not data.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        if not byte:
            break
        data += byte
    return data


def answer_with(response: bytes) -> Callable[[socket.socket, Scripted], None]:
    """A script: note the head of the request, send these bytes, close."""

    def script(connection: socket.socket, backend: Scripted) -> None:
        backend.received.append(read_head(connection))
        connection.sendall(response)

    return script
