"""Terminals and clients that are slow, silent, hostile or gone; and what a session costs."""

import contextlib
import json
import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus

from tests.support.execd import RunningExecd, is_alive, running_execd, wait_for
from tests.support.terminal import attached, new_terminal

HANDSHAKE = (
    "GET /pty/{id}/ws{query} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n{more}\r\n"
)


@contextlib.contextmanager
def raw_client(
    execd: RunningExecd, session: str, query: str = "", *, buffer_bytes: int = 0
) -> Iterator[socket.socket]:
    """A client that does only what a test says, behind its handshake."""
    with socket.socket() as client:
        if buffer_bytes:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        client.settimeout(10)
        client.connect(("127.0.0.1", execd.port))
        client.sendall(HANDSHAKE.format(id=session, query=query, more="").encode())
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += client.recv(1)
        assert head.startswith(b"HTTP/1.1 101 "), head
        yield client


def frame(opcode: int, payload: bytes = b"", *, length: int | None = None, is_masked: bool = True) -> bytes:
    """A client's frame; `length` may lie."""
    size = len(payload) if length is None else length
    mask = 0x80 if is_masked else 0
    if size < 126:
        head = bytes([0x80 | opcode, mask | size])
    elif size < 65536:
        head = bytes([0x80 | opcode, mask | 126]) + struct.pack("!H", size)
    else:
        head = bytes([0x80 | opcode, mask | 127]) + struct.pack("!Q", size)
    return head + (bytes(4) if is_masked else b"") + payload


def close_code(client: socket.socket) -> int | None:
    """Read to the end, and give the code of the close frame that is last, if it has one."""
    data = b""
    while part := client.recv(65536):
        data += part
    if data.endswith(b"\x88\x00"):
        return None
    at = data.rindex(b"\x88")
    return int.from_bytes(data[at + 2 : at + 4], "big")


def offset(execd: RunningExecd, session: str) -> int:
    return int(execd.client.get(f"/pty/{session}").json()["output_offset"])


def settled_offset(execd: RunningExecd, session: str) -> int:
    """The offset once it stands still for a third of a second."""
    last, since = -1, time.monotonic()
    while time.monotonic() - since < 0.33:
        now = offset(execd, session)
        if now != last:
            last, since = now, time.monotonic()
    return last


@pytest.mark.parametrize("mode", ["0", "1"], ids=["pipe", "pty"])
def test_a_client_that_does_not_read_stops_the_program_and_nobody_else(
    shared_execd: RunningExecd, mode: str
) -> None:
    execd = shared_execd
    slow, fast = new_terminal(execd, command="yes"), new_terminal(execd, command="yes fast")
    before = execd.rss_kib()
    with (
        raw_client(execd, slow, f"?pty={mode}", buffer_bytes=4096),
        attached(execd, fast, f"?pty={mode}") as other,
    ):
        wait_for(lambda: offset(execd, slow) > 0)
        stuck = settled_offset(execd, slow)
        assert stuck < 20_000_000
        while len(other.stdout) < 2_000_000:
            other.step()
        assert offset(execd, slow) == stuck
    # Without a client the program goes on, into the ring.
    wait_for(lambda: offset(execd, slow) > stuck + 2_000_000, seconds=20)
    assert execd.rss_kib() - before < 16_000
    for session in (slow, fast):
        execd.client.delete(f"/pty/{session}")


def test_a_slow_client_gets_all_that_its_program_printed(shared_execd: RunningExecd) -> None:
    session = new_terminal(shared_execd, command="seq 300000")
    with attached(shared_execd, session, "?pty=0") as client:
        client.step()
        settled_offset(shared_execd, session)
        client.end()
        assert client.frame("exit")["exit_code"] == 0
    assert client.stdout == b"".join(b"%d\n" % number for number in range(1, 300_001))


def test_a_holder_that_does_not_read_is_taken_over_within_a_moment(shared_execd: RunningExecd) -> None:
    execd = shared_execd
    session = new_terminal(execd, command="yes")
    with raw_client(execd, session, buffer_bytes=4096):
        wait_for(lambda: offset(execd, session) > 0)
        settled_offset(execd, session)
        started = time.monotonic()
        with attached(execd, session, "?takeover=1") as client:
            client.frame("connected")
            client.until("y")
        assert time.monotonic() - started < 5
    execd.client.delete(f"/pty/{session}")


@pytest.mark.parametrize("mode", ["0", "1"], ids=["pipe", "pty"])
def test_input_that_nobody_reads_waits_with_the_client(shared_execd: RunningExecd, mode: str) -> None:
    execd = shared_execd
    session = new_terminal(execd, command="stty raw 2>/dev/null; echo READY; exec sleep 1000")
    before = execd.rss_kib()
    sent = 0
    with raw_client(execd, session, f"?pty={mode}") as client:
        wait_for(lambda: offset(execd, session) > 5)
        client.settimeout(0.5)
        with contextlib.suppress(TimeoutError):
            while sent < 200_000_000:
                sent += client.send(frame(2, b"\0" + b"x" * 100_000))
        assert sent < 50_000_000
        assert execd.rss_kib() - before < 16_000
        assert execd.client.get("/ping").status_code == 200
        execd.client.delete(f"/pty/{session}")


def test_input_of_many_megabytes_arrives_whole(shared_execd: RunningExecd) -> None:
    with attached(shared_execd, new_terminal(shared_execd, command="wc -c"), "?pty=0") as client:
        for _ in range(20):
            client.socket.send(b"\0" + bytes(1024 * 1024 - 1))
        client.say(type="eof")
        client.end()
    assert client.stdout == b"%d\n" % (20 * (1024 * 1024 - 1))


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([frame(2, b"\0x", is_masked=False)], 1002),
        ([frame(3, b"x")], 1002),
        ([frame(1, b"\xff\xfe")], 1007),
        ([frame(9, b"x" * 126)], 1002),
        ([b"\xc2\x81" + bytes(5)], 1002),
        ([frame(2, b"\0" * 65536, length=1 << 62)] + [b"\0" * 65536] * 16, 1009),
        ([b"\x02" + frame(0, b"x" * 65535)[1:]] + [b"\x00" + frame(0, b"x" * 65535)[1:]] * 17, 1009),
        ([frame(8, struct.pack("!H", 4321) + b"bye")], 4321),
        ([frame(8)], None),
    ],
    ids=["unmasked", "opcode", "utf-8", "long ping", "rsv", "endless", "fragments", "close", "bare close"],
)
def test_frames_that_cannot_be_read_end_the_connection_and_not_the_session(
    shared_execd: RunningExecd, frames: list[bytes], code: int | None
) -> None:
    session = new_terminal(shared_execd, command="read x")
    with raw_client(shared_execd, session) as client:
        with contextlib.suppress(ConnectionError):
            for part in frames:
                client.sendall(part)
        assert close_code(client) == code
    assert shared_execd.client.get(f"/pty/{session}").json()["running"] is True
    shared_execd.client.delete(f"/pty/{session}")


def test_pings_are_answered_and_a_flood_of_them_costs_nothing(shared_execd: RunningExecd) -> None:
    execd = shared_execd
    session = new_terminal(execd, command="read x")
    before = execd.rss_kib()
    with raw_client(execd, session, "?pty=0", buffer_bytes=4096) as client:
        client.sendall(frame(9, b"hello"))
        data = b""
        while b"\x8a\x05hello" not in data:
            data += client.recv(65536)
        client.settimeout(0.5)
        with contextlib.suppress(TimeoutError):
            for _ in range(500):
                client.sendall(frame(9, b"x" * 125) * 500)
        assert execd.client.get("/ping").status_code == 200
        assert execd.rss_kib() - before < 8_000
    execd.client.delete(f"/pty/{session}")


def test_200_clients_that_come_and_go_leave_nothing_behind(bundle: Path, tmp_path: Path) -> None:
    with running_execd(bundle, tmp_path) as execd:
        session = new_terminal(execd, command="while read x; do echo got $x; done")
        with attached(execd, session, "?pty=0") as client:
            client.frame("connected")
        wait_for(lambda: not execd.client.get(f"/pty/{session}").json()["connected"])
        before, memory = execd.descriptors(), execd.rss_kib()
        for number in range(200):
            with raw_client(execd, session, "?takeover=1") as raw:
                raw.sendall(
                    frame(2, b"\0%d\n" % number)[: 2 + number % 12] if number % 2 else frame(2, b"\0\n")
                )
                if number % 3 == 0:
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wait_for(lambda: execd.descriptors() <= before, seconds=10)
        assert execd.rss_kib() - memory < 6_000
        with attached(execd, session, "?takeover=1") as client:
            client.type("on\n")
            client.until("got on")
        assert execd.client.delete(f"/pty/{session}").status_code == 200
        wait_for(lambda: execd.descriptors() <= before - 3, seconds=10)


def test_sessions_that_were_used_and_deleted_leave_nothing_behind(bundle: Path, tmp_path: Path) -> None:
    with running_execd(bundle, tmp_path) as execd:
        before = 0
        for number in range(30):
            session = new_terminal(execd, command="echo hi; sleep 1000" if number % 2 else "echo hi")
            with attached(execd, session, f"?pty={number % 4 // 2}") as client:
                client.until("hi")
            execd.client.delete(f"/pty/{session}")
            before = before or execd.descriptors()
        wait_for(lambda: execd.descriptors() <= before, seconds=10)
        children = Path(f"/proc/{execd.pid}/task/{execd.pid}/children")
        wait_for(lambda: not children.read_text())


def test_the_number_of_sessions_is_bounded_and_those_that_are_over_give_way(
    bundle: Path, tmp_path: Path
) -> None:
    with running_execd(bundle, tmp_path) as execd:
        over = new_terminal(execd, command="true")
        with attached(execd, over) as client:
            client.end()
        wait_for(lambda: not execd.client.get(f"/pty/{over}").json()["connected"])
        for _ in range(63):
            new_terminal(execd)
        new_terminal(execd)
        assert execd.client.get(f"/pty/{over}").status_code == 404
        refused = execd.client.post("/pty")
        assert (refused.status_code, refused.json()["code"]) == (503, "OVERLOADED")


def test_the_token_is_demanded_before_the_upgrade(bundle: Path, tmp_path: Path) -> None:
    with running_execd(bundle, tmp_path, flags=["--access-token", "t"]) as execd:
        assert execd.client.post("/pty").status_code == 401
        execd.client.headers["X-EXECD-ACCESS-TOKEN"] = "t"
        session = new_terminal(execd, command="true")
        with pytest.raises(InvalidStatus) as refused, attached(execd, session):
            pass
        assert refused.value.response.status_code == 401
        token = {"X-EXECD-ACCESS-TOKEN": "t", "Origin": "https://elsewhere.example"}
        with attached(execd, session, additional_headers=token) as client:
            assert client.end() == (1000, "process exited")


def test_pages_of_other_sites_are_refused_before_the_upgrade(bundle: Path, tmp_path: Path) -> None:
    let_in = {
        "http://x": True,
        "https://X:443": True,
        "https://console.example": True,
        "https://console.example:444": False,
        "https://console.example.evil.example": False,
        "http://evilx": False,
        "http://x.evil.example": False,
        "http://x:81": False,
        "null": False,
        "": False,
    }
    env = {"PATH": os.environ["PATH"], "EXECD_ALLOWED_ORIGINS": "https://console.example"}
    with running_execd(bundle, tmp_path, env=env) as execd:
        session = new_terminal(execd, command="true")
        for origin, expected in let_in.items():
            more = f"Origin: {origin}\r\n"
            with socket.create_connection(("127.0.0.1", execd.port), timeout=10) as client:
                client.sendall(HANDSHAKE.format(id=session, query="?takeover=1", more=more).encode())
                answer = client.recv(4096)
            assert answer.startswith(b"HTTP/1.1 101 " if expected else b"HTTP/1.1 403 "), origin
            assert expected or b"PERMISSION_DENIED" in answer


def test_a_stopping_execd_says_good_bye_and_takes_the_programs_with_it(bundle: Path, tmp_path: Path) -> None:
    with running_execd(bundle, tmp_path, flags=["--graceful-shutdown-timeout", "30s"]) as execd:
        session = new_terminal(execd, command="echo PID=$$.; exec sleep 1000")
        with attached(execd, session) as client:
            client.until(".")
            pid = int(client.stdout.split(b"=")[1].split(b".")[0])
            started = time.monotonic()
            execd.process.terminate()
            assert client.end() == (1001, "execd is stopping")
        execd.process.wait(10)
        assert time.monotonic() - started < 10
        wait_for(lambda: not is_alive(pid))


def test_the_log_goes_to_the_file_that_is_named(bundle: Path, tmp_path: Path) -> None:
    place = tmp_path / "named.log"
    env = {"PATH": os.environ["PATH"], "EXECD_LOG_FILE": str(place)}
    with running_execd(bundle, tmp_path, env=env) as execd:
        execd.run("true")
        wait_for(lambda: "command_ended" in place.read_text())
        assert "command_started" not in execd.log.read_text()
        assert place.stat().st_mode & 0o777 == 0o600
    with running_execd(bundle, tmp_path, env=env, flags=["--sealed"]) as execd:
        execd.run("true")
        wait_for(lambda: "command_ended" in execd.log.read_text())


@pytest.mark.parametrize("kind", ["fifo", "directory", "missing"])
def test_a_log_file_that_cannot_be_written_holds_up_nothing(bundle: Path, tmp_path: Path, kind: str) -> None:
    place = tmp_path / "log"
    if kind == "fifo":
        os.mkfifo(place)
    elif kind == "directory":
        place.mkdir()
    else:
        place = tmp_path / "no" / "log"
    env = {"PATH": os.environ["PATH"], "EXECD_LOG_FILE": str(place)}
    with running_execd(bundle, tmp_path, env=env) as execd:
        assert execd.run("echo on").output() == b"on\n"
        assert "log_file_not" in execd.log.read_text()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/code"),
        ("DELETE", "/code?id=1"),
        ("POST", "/code/context"),
        ("GET", "/code/contexts?language=go"),
    ],
)
def test_code_is_answered_as_where_no_kernel_server_is_configured(
    shared_execd: RunningExecd, method: str, path: str
) -> None:
    response = shared_execd.client.request(method, path, content=json.dumps({}))
    assert (response.status_code, response.json()["code"]) == (500, "RUNTIME_ERROR")
    assert "language runtime server not configured" in response.json()["message"]
