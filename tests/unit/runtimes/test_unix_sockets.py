"""Sockets that more want to talk to than have a place in the queue."""

import socket
import threading

import pytest

from core.errors import ExecdUnreachableError
from runtimes.local.unix_sockets import connect_to, listen_at


def test_who_finds_the_queue_full_waits_for_a_place(tmp_path):
    path = tmp_path / "s"
    with listen_at(path) as listener:
        listener.listen(0)
        first = connect_to(path, timeout_seconds=30)

        def take_one() -> None:
            listener.accept()[0].close()

        timer = threading.Timer(0.2, take_one)
        timer.start()
        second = connect_to(path, timeout_seconds=30)
        timer.join()
        assert second.gettimeout() == 30
        # Sending has no limit of the kernel's any more.
        assert second.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, 16) == bytes(16)
        first.close()
        second.close()


def test_the_wait_ends_with_the_timeout(tmp_path):
    path = tmp_path / "s"
    with listen_at(path) as listener:
        listener.listen(0)
        with connect_to(path, timeout_seconds=30), pytest.raises(ExecdUnreachableError):
            connect_to(path, timeout_seconds=0.05)
