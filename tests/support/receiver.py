"""A receiver of webhooks: a real HTTP server that remembers what it got and answers as it is told."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

from standardwebhooks import Webhook

__all__ = ["Message", "Receiver"]


@dataclass(frozen=True)
class Message:
    path: str
    headers: dict[str, str]
    body: bytes

    def verify(self, secret: str) -> dict:
        """Check id, time and signature as any receiver would; gives the payload."""
        return Webhook(secret).verify(self.body, self.headers)


class Receiver:
    """Listens on a loopback address. answers: (status, headers) one after the other; the last one goes on."""

    def __init__(self, *answers: tuple[int, dict[str, str]], host: str = "127.0.0.1") -> None:
        self.messages: list[Message] = []
        self.answers = list(answers) or [(204, {})]
        self.before_answer: Callable[[], object] = lambda: None
        self._arrived = threading.Condition()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status, headers = receiver._take(Message(self.path, dict(self.headers), body))
                receiver.before_answer()
                try:
                    self.send_response(status)
                    for name, value in {"Content-Length": "0", **headers}.items():
                        self.send_header(name, value)
                    self.end_headers()
                except OSError:
                    self.close_connection = True

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer((host, 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    def url(self, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}/hooks?from=test"

    def wait(self, count: int, *, seconds: float = 10) -> list[Message]:
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.messages) >= count, seconds), len(self.messages)
            return list(self.messages)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _take(self, message: Message) -> tuple[int, dict[str, str]]:
        with self._arrived:
            self.messages.append(message)
            self._arrived.notify_all()
            return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def wait_until(condition: Callable[[], object], *, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not come true in time"
        time.sleep(0.01)
