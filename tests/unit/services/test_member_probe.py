import contextlib
import socket
import threading
import uuid
from collections.abc import Iterator

import pytest

from services.member_probe import MemberProbe, Probe

ID = uuid.UUID("01a22df5-0f1a-77b5-862e-5845949efcf1")


@contextlib.contextmanager
def answering(answer: bytes | None) -> Iterator[tuple[str, list[bytes]]]:
    """A server that answers once with these bytes; None: it says nothing until it is closed."""
    seen: list[bytes] = []
    is_over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                seen.append(connection.recv(4096))
                if answer is None:
                    is_over.wait(10)
                else:
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", seen
        is_over.set()
        thread.join()


@pytest.mark.parametrize(
    ("status", "probe"),
    [
        (200, Probe.ALIVE),
        (204, Probe.ALIVE),
        (404, Probe.DEAD),
        (502, Probe.DEAD),
        (503, Probe.DEAD),
        (504, Probe.DEAD),
        (401, Probe.UNKNOWN),
        (500, Probe.UNKNOWN),
        (501, Probe.UNKNOWN),
    ],
)
def test_what_the_ingress_says_decides(status: int, probe: Probe):
    with answering(f"HTTP/1.1 {status} x\r\nContent-Length: 0\r\n\r\n".encode()) as (url, seen):
        assert MemberProbe().check(url, ID, "token") is probe
    assert seen[0].startswith(f"GET /{ID}/44772/ping HTTP/1.1\r\n".encode())
    assert b"OpenSandbox-Secure-Access: token\r\n" in seen[0]


@pytest.mark.parametrize("answer", [b"", b"nonsense\r\n\r\n", None], ids=["closed", "nonsense", "silence"])
def test_what_answers_nothing_of_use_is_dead(answer: bytes | None):
    with answering(answer) as (url, _):
        assert MemberProbe(timeout_seconds=0.2).check(url, ID, "t") is Probe.DEAD


def test_without_an_ingress_nobody_can_say():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert MemberProbe().check(f"http://127.0.0.1:{port}", ID, "t") is Probe.UNKNOWN
    assert MemberProbe().check(None, ID, "t") is Probe.UNKNOWN
