"""The client against daemons that lie, break off, flood or fall silent, on a socket pair."""

import json
import re
import resource
import socket
import threading
import time
from contextlib import contextmanager

import pytest

from core.errors import (
    DaemonError,
    ExecdUnreachableError,
    NotFoundError,
    PayloadTooLargeError,
    SpecInvalidError,
)
from runtimes.base import Command, FileUpload
from runtimes.execd_client import HttpExecutionClient

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
INIT = {"type": "init", "text": "abc", "timestamp": 1}


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


def events(*documents):
    return chunk(b"".join(json.dumps(document).encode() + b"\n\n" for document in documents))


def reply(status, body=b"", kind=b"application/json"):
    length = b"Content-Length: %d\r\n" % len(body)
    return b"HTTP/1.1 %d X\r\nContent-Type: %s\r\n%s\r\n" % (status, kind, length) + body


@contextmanager
def daemon(answer, *, silence=5.0):
    """A client whose connections are answered by answer(socket, request), each in a thread; gives client, requests."""
    threads, requests = [], []

    def connect():
        ours, theirs = socket.socketpair()

        def serve():
            with theirs:
                request = read_request(theirs)
                requests.append(request)
                try:
                    answer(theirs, request)
                except OSError:
                    return

        thread = threading.Thread(target=serve)
        thread.start()
        threads.append(thread)
        return ours

    try:
        yield HttpExecutionClient(connect, silence_seconds=silence), requests
    finally:
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()


def read_request(connection):
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head = data.partition(b"\r\n\r\n")[0]
    length = re.search(rb"(?i)content-length: (\d+)", head)
    while len(data) < len(head) + 4 + (int(length[1]) if length else 0):
        data += connection.recv(65536)
    while b"chunked" in head and not data.endswith(b"0\r\n\r\n"):
        data += connection.recv(65536)
    return data


def sends(*pieces):
    def answer(connection, _request):
        for piece in pieces:
            connection.sendall(piece)

    return answer


def run(client, **options):
    got = []
    result = client.run(
        Command(shell="x"), on_output=lambda stream, data: got.append((stream, data)), **options
    )
    return result, got


@pytest.mark.parametrize(
    "pieces",
    [
        (b"",),
        (b"garbage\r\n\r\n",),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000,),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",),
        (HEAD,),
        (HEAD, events(INIT)),
        (HEAD, events(INIT), b"0\r\n\r\n"),
        (HEAD, b"zz\r\n"),
        (HEAD, chunk(b"nonsense\n")),
        (HEAD, chunk(b'{"type":"stdout"}\n\n')),
        (HEAD, b"ffffffffff\r\n" + b"x" * 3_000_000),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n",),
    ],
    ids=[
        "closed", "garbage", "headers-without-end", "bad-length", "head-only", "init-only", "no-terminal-event",
        "bad-chunk", "bad-event", "no-text", "endless-line", "upgrade",
    ],
)  # fmt: skip
def test_broken_answer_is_unreachable_never_a_crash(pieces):
    with daemon(sends(*pieces)) as (client, _), pytest.raises(ExecdUnreachableError):
        run(client)


def test_silent_daemon_is_given_up(monkeypatch):
    released = threading.Event()

    def answer(connection, _request):
        connection.sendall(HEAD + events(INIT))
        released.wait(10)

    with daemon(answer, silence=0.3) as (client, _):
        began = time.monotonic()
        with pytest.raises(ExecdUnreachableError, match="sent nothing"):
            run(client)
        assert time.monotonic() - began < 3
        released.set()


def test_signs_of_life_keep_the_stream_open():
    def answer(connection, _request):
        connection.sendall(HEAD + events(INIT))
        for _ in range(4):
            time.sleep(0.15)
            connection.sendall(events({"type": "ping", "text": "pong"}))
        connection.sendall(events({"type": "execution_complete"}))

    with daemon(answer, silence=0.4) as (client, _):
        assert run(client)[0].exit_code == 0


def test_flood_of_output_leaves_memory_flat():
    line = {"type": "stdout", "text": "x" * 60_000}

    def answer(connection, _request):
        connection.sendall(HEAD + events(INIT))
        block = events(*[line] * 20)
        for _ in range(50):
            connection.sendall(block)
        connection.sendall(events({"type": "execution_complete"}))

    with daemon(answer) as (client, _):
        count = 0

        def add(_stream, data):
            nonlocal count
            count += len(data)

        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        client.run(Command(shell="x"), on_output=add)
        assert count == 60_000 * 20 * 50
        assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 < 48 << 20


def test_neighbouring_events_of_a_stream_come_together_and_in_order():
    out, err = ({"type": "stdout", "text": "o\n"}, {"type": "stderr", "text": "e\n"})
    stream = HEAD + events(INIT, out, out, err, out, {"type": "execution_complete"})
    with daemon(sends(stream)) as (client, _):
        _, got = run(client)
    assert got == [("stdout", b"o\no\n"), ("stderr", b"e\n"), ("stdout", b"o\n")]


def test_stop_asks_on_another_connection_with_the_grace():
    asked = threading.Event()

    def answer(connection, request):
        if request.startswith(b"DELETE"):
            asked.set()
            connection.sendall(reply(200))
            return
        connection.sendall(HEAD + events(INIT))
        asked.wait(5)
        end = {"type": "error", "error": {"evalue": "-1"}, "signal": 15, "reason": "killed_by_client"}
        connection.sendall(events({"type": "stdout", "text": "last\n"}, end))

    stop = threading.Event()
    stop.set()
    with daemon(answer) as (client, requests):
        result, got = run(client, stop=stop, kill_grace_seconds=1.5)
    assert result.interrupted
    assert got == [("stdout", b"last\n")]
    assert requests[1].startswith(b"DELETE /command?id=abc&grace_ms=1500 ")


def test_daemon_deaf_to_stop_is_given_up(monkeypatch):
    monkeypatch.setattr("runtimes.execd_client._GIVE_UP_MARGIN_SECONDS", 0.2)
    released = threading.Event()

    def answer(connection, request):
        if request.startswith(b"POST"):
            connection.sendall(HEAD + events(INIT))
            released.wait(10)

    stop = threading.Event()
    stop.set()
    with daemon(answer) as (client, _):
        began = time.monotonic()
        with pytest.raises(ExecdUnreachableError, match="asked to stop"):
            run(client, stop=stop, kill_grace_seconds=0.2)
        assert time.monotonic() - began < 3
        released.set()


def test_error_of_the_reader_closes_the_stream():
    closed = threading.Event()

    def answer(connection, _request):
        connection.sendall(HEAD + events(INIT, {"type": "stdout", "text": "x"}))
        connection.settimeout(5)
        if connection.recv(1) == b"":
            closed.set()

    def fail(_stream, _data):
        raise ZeroDivisionError

    with daemon(answer) as (client, _):
        with pytest.raises(ZeroDivisionError):
            client.run(Command(shell="x"), on_output=fail)
        assert closed.wait(5)


def test_refused_command_says_why():
    body = json.dumps({"code": "INVALID_REQUEST_BODY", "message": "cwd: /x: No such file"}).encode()
    with daemon(sends(reply(400, body))) as (client, _):
        assert run(client)[0].error == "cwd: /x: No such file"
    with daemon(sends(reply(503, b"busy"))) as (client, _), pytest.raises(DaemonError, match="busy"):
        run(client)


def test_command_goes_out_as_the_protocol_says():
    command = Command(argv=["a", "b c"], cwd="/w", env={"K": "v"}, timeout_seconds=0.0001, merge_streams=True)
    with daemon(sends(HEAD + events(INIT, {"type": "execution_complete"}))) as (client, requests):
        client.run(command, on_output=lambda *_: None)
    body = json.loads(requests[0].partition(b"\r\n\r\n")[2])
    assert body == {"argv": ["a", "b c"], "cwd": "/w", "envs": {"K": "v"}, "timeout": 1, "merge_stderr": True}


def test_token_is_sent_with_every_request():
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(reply(200))
        HttpExecutionClient(lambda: ours, token="s3cret").ping()
        assert b"X-EXECD-ACCESS-TOKEN: s3cret\r\n" in theirs.recv(4096)


@pytest.mark.parametrize(
    ("status", "error"),
    [(404, NotFoundError), (500, DaemonError), (200, ExecdUnreachableError)],
)
def test_answers_about_files_become_errors(status, error):
    with daemon(sends(reply(status, b"not json"))) as (client, _), pytest.raises(error):
        client.file_info("/x")


@pytest.mark.parametrize(
    "body", [b'{"/x": {}}', b'{"/x": {"type": "file", "path": "/x", "size": "y", "mode": 1}}', b"[]"]
)
def test_description_that_is_none_is_a_broken_daemon(body):
    with daemon(sends(reply(200, body))) as (client, _), pytest.raises(ExecdUnreachableError):
        client.file_info("/x")


def test_endless_download_stops_at_the_limit():
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

    def answer(connection, _request):
        connection.sendall(head)
        while True:
            connection.sendall(chunk(b"x" * 65536))

    with daemon(answer) as (client, _), pytest.raises(PayloadTooLargeError):
        client.download("/x", max_bytes=1_000_000)


def test_endless_json_stops_at_the_limit(monkeypatch):
    monkeypatch.setattr("runtimes.http_exchange._MAX_JSON_BYTES", 1 << 20)
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

    def answer(connection, _request):
        connection.sendall(head)
        while True:
            connection.sendall(chunk(b"[" * 65536))

    with daemon(answer) as (client, _), pytest.raises(ExecdUnreachableError, match="bytes of JSON"):
        client.search("/", "*")


@pytest.mark.parametrize(
    ("status", "error"), [(507, SpecInvalidError), (400, SpecInvalidError), (500, DaemonError)]
)
def test_refused_upload_is_the_jobs_fault_or_the_daemons(status, error):
    body = json.dumps({"code": "X", "message": "no room"}).encode()
    with daemon(sends(reply(status, body))) as (client, _), pytest.raises(error, match="no room"):
        client.upload([FileUpload("/f", b"data")])


def test_upload_has_a_metadata_part_for_each_file():
    with daemon(sends(reply(200))) as (client, requests):
        client.upload([FileUpload("/a b", b"one", 0o755), FileUpload("/c", b"", 0o1644)])
    assert b'{"path": "/a b", "mode": 755}' in requests[0]
    assert b'{"path": "/c", "mode": 1644}' in requests[0]
    assert requests[0].count(b'name="file"; filename="file"') == 2


def test_no_files_need_no_request():
    HttpExecutionClient(lambda: pytest.fail("connected")).upload([])
    HttpExecutionClient(lambda: pytest.fail("connected")).delete([])
