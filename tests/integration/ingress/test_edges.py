"""Ends, protocols and connections that are easily got wrong."""

import socket
import threading
from dataclasses import replace

import pytest

from core.errors import ExecdUnreachableError
from ingress.limits import Limits
from tests.support.backends import answer_with, read_head, scripted_backend
from tests.support.execd import wait_for
from tests.support.ingress import read_all, read_until, running_ingress, status_of

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
RESET = b"\1\0\0\0\0\0\0\0"


def test_a_break_is_told_by_a_break_where_the_end_is_told_by_the_end(ingress):
    """To an old client that is all there is."""

    def script(connection, backend):
        read_head(connection)
        connection.sendall(b"HTTP/1.0 200 OK\r\n\r\npart")
        backend.received.append(connection.recv(1))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)

    with scripted_backend(script) as backend, ingress.connect() as client:
        client.sendall(f"POST /{ingress.id}/{backend.port}/ HTTP/1.0\r\nContent-Length: 1\r\n\r\n".encode())
        read_until(client, b"part")
        client.sendall(b"x")
        with pytest.raises(ConnectionResetError):
            read_all(client)


def test_http_2_is_no_protocol_to_change_to(ingress):
    """Its requests would come past all rules for headers."""
    headers = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAA\r\n"
    with scripted_backend(answer_with(OK)) as backend, ingress.connect() as client:
        client.sendall(ingress.head(backend.port, headers=headers))
        assert status_of(read_until(client, b"ok")) == 200
    assert b"h2c" not in backend.received[0]
    assert b"Upgrade" not in backend.received[0]
    assert b"HTTP2-Settings" not in backend.received[0]


def test_a_sandbox_that_was_started_anew_is_found_at_once(ingress):
    """A fork ends the first one and starts it again, by the same name."""
    current = ["1"]
    runtime, connect = ingress.runtime, ingress.runtime.connect

    def find(name):
        return replace(type(runtime).find(runtime, name), ref=current[0])

    def connect_to_current(handle, port, *, timeout_seconds):
        if handle.ref != current[0]:
            raise ExecdUnreachableError("it is gone")
        return connect(handle, port, timeout_seconds=timeout_seconds)

    runtime.find, runtime.connect = find, connect_to_current
    with scripted_backend(answer_with(OK)) as backend:
        assert status_of(ingress.ask(backend.port)) == 200
        current[0] = "2"
        assert status_of(ingress.ask(backend.port, "POST")) == 200


def test_a_crowd_at_a_port_that_takes_nobody_leaves_others_alone(ingress):
    """Connections of one sandbox that hang hold few threads."""
    hanging, release = threading.Semaphore(0), threading.Event()
    connect = ingress.runtime.connect

    def hang(handle, port, *, timeout_seconds):
        if port == 7:
            hanging.release()
            assert release.wait(20)
            raise ExecdUnreachableError("no") from TimeoutError()
        return connect(handle, port, timeout_seconds=timeout_seconds)

    ingress.runtime.connect = hang
    clients = []
    try:
        for _ in range(20):
            client = ingress.connect()
            clients.append(client)
            client.sendall(ingress.head(7))
        for _ in range(4):
            assert hanging.acquire(timeout=5)
        assert not hanging.acquire(timeout=0.3), "more than four at a time"
    finally:
        release.set()
    for client in clients:
        assert status_of(read_until(client, b"\r\n\r\n")) == 504
        client.close()


def test_a_client_that_broke_off_holds_no_place_while_its_program_is_silent():
    asked, release = threading.Event(), threading.Event()

    def script(connection, backend):
        read_head(connection)
        asked.set()
        release.wait(20)  # and does not look whether anybody is there

    with running_ingress(limits=Limits(per_sandbox=1)) as ingress, scripted_backend(script) as backend:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            nobody = listener.getsockname()[1]
        client = ingress.connect()
        client.sendall(ingress.head(backend.port))
        assert asked.wait(10)
        assert status_of(ingress.ask(nobody)) == 503
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        client.close()
        try:
            wait_for(lambda: status_of(ingress.ask(nobody)) == 502)
        finally:
            release.set()
