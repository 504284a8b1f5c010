"""A Unix socket that leads to the container engine, and can lose requests and answers in the middle."""

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

__all__ = ["EngineProxy", "engine_proxy"]

Fault = Literal["cut", "lose_answer", "hang"]
"""cut: the request never arrives. lose_answer: the engine does it, and nobody hears. hang: so, and the line stays."""

_READ_BYTES = 65536


class EngineProxy:
    """Passes everything on, but for requests whose first line matches a pattern."""

    def __init__(self, path: Path, engine: str) -> None:
        self.url = f"unix://{path}"
        self.faults: list[tuple[re.Pattern[str], Fault]] = []
        self.hit = threading.Event()
        self._engine = engine
        self._let_go = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        self._connections: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def fail(self, pattern: str, fault: Fault) -> None:
        """Break the next request of this kind, and those after it."""
        self.faults.append((re.compile(pattern), fault))

    def heal(self) -> None:
        """Pass everything on again."""
        self.faults.clear()
        self._let_go.set()

    def close(self) -> None:
        self._let_go.set()
        # Else accept would not notice.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._engine)
            self._connections += [client, server]
            muted = threading.Event()
            threading.Thread(target=self._requests, args=(client, server, muted), daemon=True).start()
            threading.Thread(target=self._answers, args=(server, client, muted), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket, muted: threading.Event) -> None:
        with suppress(OSError):
            while data := client.recv(_READ_BYTES):
                line = data.partition(b"\r\n")[0].decode("latin-1")
                fault = next((fault for pattern, fault in self.faults if pattern.search(line)), None)
                if fault is None:
                    server.sendall(data)
                    continue
                self.hit.set()
                if fault != "cut":
                    muted.set()
                    server.sendall(data)
                    # Until the engine has done it, as far as one can see from here.
                    self._let_go.wait(1.0 if fault == "lose_answer" else 60.0)
                client.shutdown(socket.SHUT_RDWR)
                return
        with suppress(OSError):
            server.shutdown(socket.SHUT_WR)

    def _answers(self, server: socket.socket, client: socket.socket, muted: threading.Event) -> None:
        with suppress(OSError):
            while data := server.recv(_READ_BYTES):
                if not muted.is_set():
                    client.sendall(data)
            client.shutdown(socket.SHUT_WR)


@contextmanager
def engine_proxy(folder: Path, engine: str = "/var/run/docker.sock") -> Iterator[EngineProxy]:
    """Stand before the engine of this machine as long as the block runs."""
    proxy = EngineProxy(folder / "engine.sock", engine)
    try:
        yield proxy
    finally:
        proxy.close()
