"""A TCP port of this machine that leads to the execd of a sandbox, however its runtime reaches it."""

import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

__all__ = ["tcp_relay"]

_READ_BYTES = 65536


@contextmanager
def tcp_relay(
    connect: Callable[[], socket.socket],
    *,
    idle_seconds: float | None = None,
    cut_behind: bytes | None = None,
) -> Iterator[int]:
    """Relay connections to what `connect` opens, until the block ends; gives the port.

    idle_seconds: of silence from there after which a connection is closed. cut_behind: it is also closed behind the
    first of these bytes from there.
    """
    threads: list[threading.Thread] = []
    open_sockets: list[socket.socket] = []

    def start(target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments)
        threads.append(thread)
        thread.start()

    def accept(listener: socket.socket) -> None:
        # A listener that is shut down makes accept fail.
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                open_sockets.append(near)
                far = connect()
                far.settimeout(None)
                open_sockets.append(far)
                start(_copy, near, far, None, None)
                start(_copy, far, near, idle_seconds, cut_behind)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        start(accept, listener)
        try:
            yield listener.getsockname()[1]
        finally:
            _shut(listener)
            threads[0].join()
            for opened in open_sockets:
                _shut(opened)
            for thread in threads:
                thread.join()
            for opened in open_sockets:
                opened.close()


def _copy(
    source: socket.socket, target: socket.socket, idle_seconds: float | None, cut_behind: bytes | None
) -> None:
    seen = b""
    with suppress(OSError):
        while _is_readable(source, idle_seconds) and (data := source.recv(_READ_BYTES)):
            if cut_behind is not None:
                seen += data
                if cut_behind in seen:
                    behind = seen.index(cut_behind) + len(cut_behind)
                    target.sendall(data[: behind - (len(seen) - len(data))])
                    break
            target.sendall(data)
    # One direction that ends takes the other with it: an execd must learn at once that its client has left.
    _shut(target)
    _shut(source)


def _is_readable(source: socket.socket, seconds: float | None) -> bool:
    return bool(select.select([source], [], [], seconds)[0])


def _shut(opened: socket.socket) -> None:
    with suppress(OSError):
        opened.shutdown(socket.SHUT_RDWR)
