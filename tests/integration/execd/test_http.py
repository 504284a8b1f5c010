"""The HTTP side: strict parsing, limits, keep-alive."""

import contextlib
import os
import socket
import subprocess
from pathlib import Path

import httpx
import pytest

from execd.bundle import bundle_command
from tests.support.execd import RunningExecd, names_in, running_execd


@pytest.fixture
def execd(shared_execd: RunningExecd) -> RunningExecd:
    return shared_execd


def test_ping_answers_empty_and_the_connection_is_kept(execd: RunningExecd) -> None:
    request = b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n"
    with socket.create_connection(("127.0.0.1", execd.port), timeout=5) as connection:
        for _ in range(3):
            connection.sendall(request)
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        connection.sendall(request * 2)  # pipelined
        received = b""
        while received.count(b"HTTP/1.1 200") < 2:
            received += connection.recv(4096)


@pytest.mark.parametrize(
    ("target", "method", "status"),
    [
        ("/nope", "GET", 404),
        ("/ping/", "GET", 404),
        ("/ping", "POST", 405),
        ("/command", "GET", 405),
        ("/files", "GET", 405),
    ],
)
def test_unknown_routes_and_methods(execd: RunningExecd, target: str, method: str, status: int) -> None:
    response = execd.client.request(method, target)
    assert response.status_code == status
    assert set(response.json()) == {"code", "message"}


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GARBAGE\r\n\r\n", b"400"),
        (b"GET /ping HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /ping HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", b"400"),
        (b"POST /command HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", b"400"),
        (b"POST /command HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n", b"400"),
        (b"POST /command HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", b"501"),
        (b"POST /command HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"400"),
        (
            b"GET /ping HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b"400",
        ),
        (b"GET http://other/ping HTTP/1.1\r\nHost: x\r\n\r\n", b"400"),
        (b"GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n", b"400"),
        (b"GET /ping HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 40_000 + b"\r\n\r\n", b"431"),
        (b"POST /command HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n", b"413"),
    ],
    ids=lambda value: value[:60].decode() if isinstance(value, bytes) else None,
)
def test_broken_requests_are_refused(execd: RunningExecd, data: bytes, status: bytes) -> None:
    answer = execd.raw(data)
    assert answer.startswith(b"HTTP/1.1 " + status), answer[:200]
    assert b'"code"' in answer
    assert execd.client.get("/ping").status_code == 200


def test_a_chunked_body_past_the_limit_is_refused(execd: RunningExecd) -> None:
    def body():  # type: ignore[no-untyped-def]
        for _ in range(40):
            yield b"x" * 1_000_000

    # The answer may be lost when the client is still writing.
    with contextlib.suppress(httpx.WriteError):
        assert execd.client.post("/command", content=body()).status_code == 413
    assert execd.client.get("/ping").status_code == 200


def test_a_client_that_waits_for_100_continue_is_told(execd: RunningExecd) -> None:
    body = b'{"command":"echo hi"}'
    head = b"POST /command HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(
        body
    )
    with socket.create_connection(("127.0.0.1", execd.port), timeout=5) as connection:
        connection.sendall(head)
        assert connection.recv(4096).startswith(b"HTTP/1.1 100")
        connection.sendall(body)
        received = b""
        while b"execution_complete" not in received:
            received += connection.recv(4096)


def test_http_1_0_gets_a_stream_that_ends_with_the_connection(execd: RunningExecd) -> None:
    body = b'{"command":"echo hi"}'
    answer = execd.raw(b"POST /command HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    assert answer.endswith(b"}\n\n")
    assert b"chunked" not in answer


def test_connections_beyond_the_limit_are_refused_and_the_rest_served(bundle: Path, tmp_path: Path) -> None:
    with running_execd(bundle, tmp_path, flags=["--rlimit", "nofile=128"]) as execd:
        idle = [socket.create_connection(("127.0.0.1", execd.port), timeout=5) for _ in range(10)]
        try:
            request = b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n"
            for connection in idle:
                connection.sendall(request)
            answers = sorted(connection.recv(4096)[:12] for connection in idle)
        finally:
            for connection in idle:
                connection.close()
        assert answers == [b"HTTP/1.1 200"] * 10
        many = [socket.create_connection(("127.0.0.1", execd.port), timeout=5) for _ in range(20)]
        try:
            answers = []
            for connection in many:
                connection.sendall(request)
                answers.append(connection.recv(4096)[:12])
        finally:
            for connection in many:
                connection.close()
        assert b"HTTP/1.1 429" in answers
        assert b"HTTP/1.1 200" in answers


def test_a_unix_socket_can_be_served(bundle: Path, tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(8)
        argv = bundle_command(str(bundle), args=[f"--listen-fd={listener.fileno()}"])
        process = subprocess.Popen(
            argv, pass_fds=[listener.fileno()], env={"PATH": os.environ["PATH"]}, cwd=tmp_path
        )
    try:
        with httpx.Client(transport=httpx.HTTPTransport(uds=path), base_url="http://execd") as client:
            assert client.get("/ping").status_code == 200
            assert '"a\\n"' in client.post("/command", json={"command": "echo a"}).text
        assert len(names_in(Path(f"/proc/{process.pid}/fd"))) < 12
    finally:
        process.terminate()
        assert process.wait(5) == 0


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--nope", "1"], "unknown option"),
        (["--port", "x"], "--port"),
        (["--port"], "needs a value"),
        (["--rlimit", "bogus=1"], "bogus"),
        (["--rlimit", "nofile=x"], "--rlimit"),
        (["--graceful-shutdown-timeout", "soon"], "--graceful-shutdown-timeout"),
        (["--log-level", "loud"], "--log-level"),
    ],
)
def test_a_wrong_command_line_is_explained(bundle: Path, flags: list[str], text: str) -> None:
    result = subprocess.run(
        bundle_command(str(bundle), args=flags), capture_output=True, text=True, check=False, env={}
    )
    assert result.returncode == 2
    assert text in result.stderr


def test_a_taken_port_is_one_clear_line(bundle: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        args = ["--host", "127.0.0.1", "--port", str(taken.getsockname()[1])]
        result = subprocess.run(
            bundle_command(str(bundle), args=args), capture_output=True, text=True, check=False, env={}
        )
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "in use" in result.stderr
