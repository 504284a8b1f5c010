"""What users of similar services found wrong with the output and streams of commands, against execd.

How commands end, sessions and input are in `test_exec_ends.py`. B-058, hogs that starve the daemon, needs a sandbox
with limits and is in `test_runtimes.py`, as is B-053 for the runtimes' own client.
"""

import random
import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from opensandbox.exceptions import SandboxException
from opensandbox.models.execd import RunCommandOpts
from opensandbox.models.execd_sync import ExecutionHandlersSync
from opensandbox.models.sandboxes import SandboxEndpoint

from core.errors import ExecdUnreachableError
from runtimes.base import Command
from runtimes.execd_client import HttpExecutionClient
from tests.support.execd import Outcome, RunningExecd, read_events, status_field, until, wait_for
from tests.support.sdk import FLAVOURS, connected
from tests.support.tcp_relay import tcp_relay

FRAME_END = b"}\n\n"


def attach(execd: RunningExecd, execution_id: str, offset: int = 0) -> Outcome:
    with httpx.stream("GET", f"{execd.url}/command/{execution_id}/stream?offset={offset}") as response:
        assert response.status_code == 200, response.read()
        return Outcome(list(read_events(response)))


def kept(execd: RunningExecd, execution_id: str, stream: str = "stdout") -> bytes:
    """What is still known of a stream; a gap in it is left out."""
    data, offset, total = b"", 0, 1
    while offset < total:
        query = {"stream": stream, "offset": offset, "limit": 4 << 20}
        response = execd.client.get(f"/command/{execution_id}/output", params=query)
        data += response.content
        offset = int(response.headers["EXECD-OUTPUT-NEXT-OFFSET"])
        total = int(response.headers["EXECD-OUTPUT-TOTAL"])
    return data


@pytest.mark.parametrize(
    "text",
    ["a\\n\\nb\\n\\n\\nc\\n", "a\\r\\n\\r\\nb", "\\n", "no line end", "10%%\\r20%%\\r100%%\\n", "\\n\\n", ""],
    ids=["blank lines", "CR LF", "one line end", "no line end", "progress bar", "line ends only", "nothing"],
)
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_events_joined_are_the_output(shared_execd: RunningExecd, text: str, flavour: str) -> None:
    """B-031."""
    expected = text.replace("%%", "%").encode().decode("unicode_escape")
    command = f"printf '{text}'; printf '{text}' >&2"
    outcome = shared_execd.run(command)
    assert outcome.output() == outcome.output("stderr") == expected.encode()
    with connected(flavour, SandboxEndpoint(endpoint=f"127.0.0.1:{shared_execd.port}")) as services:
        logs = services.commands.run(command).logs
    assert "".join(message.text for message in logs.stdout) == expected
    assert "".join(message.text for message in logs.stderr) == expected


@pytest.mark.parametrize("target", ["", ">&2", "| tee /dev/stderr"], ids=["stdout", "stderr", "both"])
def test_a_line_of_ten_megabytes_arrives_whole_and_costs_no_memory(execd: RunningExecd, target: str) -> None:
    """B-032; 200 MB in `integration/execd/test_output_memory.py`."""
    execd.run("true")
    before = int(status_field(execd.pid, "VmHWM").split()[0])
    outcome = execd.run(f"head -c 10M /dev/zero | tr '\\0' x {target}")
    expected = b"x" * (10 << 20)
    assert outcome.output("stdout") == (b"" if target == ">&2" else expected)
    assert outcome.output("stderr") == (b"" if target == "" else expected)
    assert int(status_field(execd.pid, "VmHWM").split()[0]) - before < 32 << 10


@pytest.mark.parametrize("end", ["", "; kill -KILL $$", "; exit 3"], ids=["exits", "is killed", "fails"])
def test_the_beginning_of_a_character_is_not_lost(shared_execd: RunningExecd, end: str) -> None:
    """B-034: the bytes are all there; the text ends with one replacement character."""
    outcome = shared_execd.run(f"printf 'a\\xe2\\x82'{end}")
    assert outcome.output() == b"a\xe2\x82"
    assert "".join(event["text"] for event in outcome.events if event["type"] == "stdout") == "a\ufffd"
    assert kept(shared_execd, outcome.id) == b"a\xe2\x82"


def test_the_beginning_of_a_character_outlives_its_reader(shared_execd: RunningExecd) -> None:
    """B-034, with a client that leaves in between."""
    with shared_execd.streaming("echo on; printf 'a\\xe2\\x82'; sleep 60") as events:
        execution_id = until(events, "on")[0]["text"]
        wait_for(lambda: kept(shared_execd, execution_id) == b"on\na\xe2\x82")
    wait_for(lambda: not shared_execd.client.get(f"/command/status/{execution_id}").json()["running"])
    assert kept(shared_execd, execution_id) == b"on\na\xe2\x82"
    assert attach(shared_execd, execution_id).output() == b"on\na\xe2\x82"


BYTES = {
    "random": random.Random(35).randbytes(100_000),
    "latin-1": "größer als\nà côté\n".encode("latin-1"),
    "NUL": b"a\0b\0\0\nc\0",
    "line separators": "a\u2028b\u0085c\u2029d\x0be\x0cf\n".encode(),
    "half of a pair": "\ud83d".encode("utf-8", "surrogatepass"),
}


@pytest.mark.parametrize("data", BYTES.values(), ids=BYTES)
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_output_may_be_any_bytes(
    shared_execd: RunningExecd, tmp_path: Path, data: bytes, flavour: str
) -> None:
    """B-035: exact in the binary-safe field; the text is the lossy view, which the published client shows."""
    (tmp_path / "data").write_bytes(data)
    outcome = shared_execd.run(argv=["cat", f"{tmp_path}/data"])
    assert outcome.output() == data
    is_text = data.decode("utf-8", "replace").encode() == data
    assert any("b64" in event for event in outcome.events) is not is_text
    with connected(flavour, SandboxEndpoint(endpoint=f"127.0.0.1:{shared_execd.port}")) as services:
        execution = services.commands.run(["cat", f"{tmp_path}/data"])
    shown = "".join(message.text for message in execution.logs.stdout)
    assert shown.encode() == (data if is_text else shown.encode())
    assert ("\ufffd" in shown, execution.exit_code) == (not is_text, 0)


HEAD_BYTES, KEPT_BYTES = 64 << 10, 2 << 20
"""As the specification says."""


@pytest.mark.parametrize("size", [HEAD_BYTES - 1, HEAD_BYTES, HEAD_BYTES + 1, 1 << 20, 10 * KEPT_BYTES])
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_what_is_kept_is_what_is_documented(shared_execd: RunningExecd, stream: str, size: int) -> None:
    """B-037: the stream has all; of it the beginning and the end are kept, and what is missing is said."""
    command = f"seq -f '%0999.0f' 1000000 | head -c {size}"
    outcome = shared_execd.run(command + (" >&2" if stream == "stderr" else ""))
    everything = outcome.output(stream)
    status = shared_execd.client.get(f"/command/status/{outcome.id}").json()
    data = kept(shared_execd, outcome.id, stream)
    assert len(everything) == status[f"{stream}_bytes"] == size
    assert (status["truncated"], status["dropped_bytes"]) == (size > KEPT_BYTES, size - len(data))
    if size < KEPT_BYTES:
        assert data == everything
    else:
        assert KEPT_BYTES // 2 < len(data) <= KEPT_BYTES
        beginning = next(place for place in range(len(data)) if data[place] != everything[place])
        assert beginning >= HEAD_BYTES
        assert everything.endswith(data[beginning:])


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_timeout_keeps_what_was_written(shared_execd: RunningExecd, flavour: str) -> None:
    """B-038."""
    command = "echo partial; echo err >&2; sleep 60"
    outcome = shared_execd.run(command, timeout=500)
    assert (outcome.output(), outcome.output("stderr")) == (b"partial\n", b"err\n")
    assert outcome.last["reason"] == "timeout"
    with connected(flavour, SandboxEndpoint(endpoint=f"127.0.0.1:{shared_execd.port}")) as services:
        late = services.commands.run(command, opts=RunCommandOpts(timeout=timedelta(milliseconds=500)))
    assert (late.text, [message.text for message in late.logs.stderr]) == ("partial", ["err\n"])
    assert late.error is not None
    assert late.error.traceback[0] == "timed out"


def test_a_background_command_is_found_again_by_whoever_comes(
    shared_execd: RunningExecd, tmp_path: Path
) -> None:
    """B-040: while it runs and after; nothing about it ends with a connection or after a time."""
    gate = tmp_path / "gate"
    body = {
        "command": f"seq 1000; until [ -e {gate} ]; do sleep 0.02; done; seq 1001 2000; exit 7",
        "background": True,
    }
    with httpx.stream("POST", f"{shared_execd.url}/command", json=body) as response:
        execution_id = next(read_events(response))["text"]
    with httpx.stream("GET", f"{shared_execd.url}/command/{execution_id}/stream?offset=9") as response:
        events = read_events(response)
        seen = until(events, "1000")
        gate.touch()
        live = Outcome([*seen, *events])
    expected = b"".join(b"%d\n" % number for number in range(1, 2001))
    assert live.output() == expected[9:]
    after = attach(shared_execd, execution_id)
    assert after.output() == expected
    assert (after.last["exit_code"], live.last["exit_code"]) == (7, 7)


def test_a_silent_command_outlives_idle_limits_on_its_way(shared_execd: RunningExecd) -> None:
    """B-041: keep-alive frames come every three seconds."""

    def connect() -> socket.socket:
        return socket.create_connection(("127.0.0.1", shared_execd.port))

    body = {"command": "sleep 6.5; echo ok", "timeout": 60_000}
    with (
        tcp_relay(connect, idle_seconds=5) as port,
        httpx.stream("POST", f"http://127.0.0.1:{port}/command", json=body, timeout=30) as response,
    ):
        outcome = Outcome(list(read_events(response)))
    assert (outcome.output(), outcome.last["exit_code"]) == (b"ok\n", 0)


@pytest.mark.parametrize("timeout", ["60s", "60", 60.5, 0, -60, True, [60], 1e300])
def test_a_time_that_is_no_number_of_milliseconds_is_refused(
    shared_execd: RunningExecd, timeout: object
) -> None:
    """B-041: one unit, and no guesses at others."""
    response = shared_execd.client.post("/command", json={"command": "true", "timeout": timeout})
    assert response.status_code == 400
    assert "timeout" in response.json()["message"]


def test_a_command_longer_than_the_clients_patience_ends_as_usual(shared_execd: RunningExecd) -> None:
    """B-056: its client gives up on a silence of five seconds."""
    with httpx.Client(base_url=shared_execd.url, timeout=5) as client:
        with client.stream("POST", "/command", json={"command": "sleep 60", "timeout": 6000}) as response:
            outcome = Outcome(list(read_events(response)))
        assert outcome.last["reason"] == "timeout"
        with client.stream("POST", "/command", json={"command": "echo on"}) as response:
            assert Outcome(list(read_events(response))).output() == b"on\n"


CUTS = {
    "behind the head": b"\r\n\r\n",
    "behind the first event": FRAME_END,
    "in an event": b'"type":"stdout","te',
    "before the last event": b'"type":"execution_complete"',
}


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("flavour", [*FLAVOURS, "runtimes"])
def test_a_stream_that_breaks_off_is_no_success(shared_execd: RunningExecd, cut: bytes, flavour: str) -> None:
    """B-044: an error in every client, with what came before."""

    def connect() -> socket.socket:
        return socket.create_connection(("127.0.0.1", shared_execd.port))

    seen: list[str] = []
    with tcp_relay(connect, cut_behind=cut) as port:
        if flavour == "runtimes":
            client = HttpExecutionClient(lambda: socket.create_connection(("127.0.0.1", port)))
            with pytest.raises(ExecdUnreachableError):
                client.run(
                    Command(shell="echo partial; sleep 0.3"),
                    on_output=lambda _, data: seen.append(data.decode()),
                )
        else:
            handlers = ExecutionHandlersSync(on_stdout=lambda message: seen.append(message.text))
            with (
                connected(flavour, SandboxEndpoint(endpoint=f"127.0.0.1:{port}")) as services,
                pytest.raises(SandboxException),
            ):
                services.commands.run("echo partial; sleep 0.3", handlers=handlers)
    assert seen == (["partial\n"] if b"complete" in cut else [])


def test_no_output_is_lost_between_head_and_stream(shared_execd: RunningExecd) -> None:
    """B-053: eight at a time; the first bytes often come with the answer's head."""

    def say(number: int) -> bytes:
        with httpx.Client(base_url=shared_execd.url, timeout=30) as client:
            said = b""
            for _ in range(10):
                body = {"command": f"echo hello {number}"}
                with client.stream("POST", "/command", json=body) as response:
                    said += Outcome(list(read_events(response))).output()
            return said

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(say, range(40))) == [b"hello %d\n" % number * 10 for number in range(40)]
