"""The first sign of life of a local sandbox."""

import threading
from types import SimpleNamespace

import pytest

from core.errors import CreateTimeoutError, DaemonError
from runtimes.deadline import Deadline
from runtimes.local.executor import await_execd
from runtimes.local.unix_sockets import listen_at


def wait_for_answer(path, pieces, *, seconds=5.0):
    """Answer with pieces, one after the other, and hang up; None: with silence."""
    with listen_at(path) as listener:
        done = threading.Event()

        def serve():
            with listener.accept()[0] as connection:
                assert connection.recv(4096).startswith(b"GET /ping HTTP/1.1\r\n")
                for piece in pieces or ():
                    connection.sendall(piece)
                if pieces is None:
                    done.wait(10)

        server = threading.Thread(target=serve)
        server.start()
        try:
            request = SimpleNamespace(name="sm-1", socket_path=path, deadline=Deadline(seconds))
            await_execd(request, lambda: DaemonError("its last words"))
        finally:
            done.set()
            server.join()


@pytest.mark.parametrize("pieces", [[b"HTTP/1.1 200 OK\r\n\r\n"], [b"HTTP/1.1 2", b"00 \r", b"\n"]])
def test_an_answer_is_enough(tmp_path, pieces):
    wait_for_answer(tmp_path / "s", pieces)


@pytest.mark.parametrize(
    "pieces", [[], [b"HTTP/1.1 200 O"], [b"HTTP/1.1 503 Busy\r\n"], [b"x" * 10_000]], ids=str
)
def test_any_other_answer_is_a_failed_start(tmp_path, pieces):
    with pytest.raises(DaemonError, match="its last words"):
        wait_for_answer(tmp_path / "s", pieces)


def test_silence_ends_with_the_time_for_the_start(tmp_path):
    with pytest.raises(CreateTimeoutError, match="not ready"):
        wait_for_answer(tmp_path / "s", None, seconds=0.05)


def test_a_socket_nobody_listens_at_is_a_failed_start(tmp_path):
    request = SimpleNamespace(name="sm-1", socket_path=tmp_path / "s", deadline=Deadline(5))
    with pytest.raises(DaemonError, match="its last words"):
        await_execd(request, lambda: DaemonError("its last words"))
