"""Looking at a command from elsewhere, while it runs and after; repeating a request with its key."""

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.execd import Outcome, RunningExecd, is_alive, read_events, until, wait_for


@contextmanager
def attached(execd: RunningExecd, execution_id: str, offset: int = 0) -> Iterator[Iterator[dict[str, Any]]]:
    url = f"{execd.url}/command/{execution_id}/stream"
    with httpx.stream("GET", url, params={"offset": offset}, timeout=20) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"] == "text/event-stream"
        yield read_events(response)


def attach(execd: RunningExecd, execution_id: str, offset: int = 0) -> Outcome:
    with attached(execd, execution_id, offset) as events:
        return Outcome(list(events))


def essence(outcome: Outcome) -> list[tuple[Any, ...]]:
    kinds = ("stdout", "stderr", "error", "execution_complete")
    return [
        (event["type"], event.get("text"), event.get("offset"), event.get("exit_code"))
        for event in outcome.events
        if event["type"] in kinds
    ]


def test_an_ended_command_is_replayed_with_its_end(shared_execd: RunningExecd) -> None:
    outcome = shared_execd.run("echo a; echo b >&2; printf 'no newline'; printf 'é\\xff' >&2; exit 3")
    again = attach(shared_execd, outcome.id)
    assert again.id == outcome.id
    assert again.output() == b"a\nno newline"
    assert again.output("stderr") == "b\né".encode() + b"\xff"
    assert essence(again) == essence(outcome)
    assert again.last["exit_code"] == 3


def test_whoever_goes_on_from_an_offset_gets_the_rest_exactly(shared_execd: RunningExecd) -> None:
    # Lines that begin in one stream and end after lines of the other.
    script = "printf 'out '; echo err >&2; printf 'more '; printf 'err2 ' >&2; echo done; printf tail; printf tail2 >&2"
    outcome = shared_execd.run(script)
    whole = essence(outcome)
    outputs = [event for event in outcome.events if "offset" in event]
    assert len(outputs) == 4
    for seen, event in enumerate(outputs, 1):
        assert essence(attach(shared_execd, outcome.id, event["offset"])) == whole[seen:]


def test_an_offset_beyond_the_end_is_refused(shared_execd: RunningExecd) -> None:
    execution_id = shared_execd.run("echo 123").id
    assert attach(shared_execd, execution_id, 4).last["type"] == "execution_complete"
    for query in ("offset=5", "offset=x"):
        response = shared_execd.client.get(f"/command/{execution_id}/stream?{query}")
        assert (response.status_code, response.json()["code"]) == (400, "INVALID_QUERY")
    assert shared_execd.client.get("/command/nope/stream").status_code == 404


def test_a_running_command_is_followed_live_and_does_not_end_with_its_reader(
    shared_execd: RunningExecd,
) -> None:
    execution_id = shared_execd.run("for i in $(seq 100); do echo $i; sleep 0.05; done", background=True).id
    with attached(shared_execd, execution_id) as events:
        until(events, "3")
    with attached(shared_execd, execution_id) as events:
        seen = until(events, "8")
    rest = attach(shared_execd, execution_id, seen[-1]["offset"])
    assert rest.output() == b"".join(b"%d\n" % number for number in range(9, 101))
    assert rest.last["type"] == "execution_complete"


def test_missing_bytes_are_told_of(shared_execd: RunningExecd) -> None:
    outcome = shared_execd.run("seq 400000")
    everything = outcome.output()
    again = attach(shared_execd, outcome.id)
    (gap,) = [event for event in again.events if event["type"] == "gap"]
    first, last = gap["missing_from"], gap["offset"]
    assert gap["missing_bytes"] == last - first > 0
    assert again.output() == everything[:first] + everything[last:]
    within = attach(shared_execd, outcome.id, first + 100)
    assert [event["type"] for event in within.events[:3]] == ["init", "ping", "gap"]
    assert within.output() == everything[last:]


def test_the_bytes_of_each_stream_can_be_fetched_in_pieces(shared_execd: RunningExecd) -> None:
    outcome = shared_execd.run("printf 'a\\0b\\xffc'; printf err >&2; printf d; printf '\\n'")
    url = f"/command/{outcome.id}/output"
    whole = shared_execd.client.get(url)
    assert whole.content == b"a\0b\xffcd\n"
    assert whole.headers["content-type"] == "application/octet-stream"
    assert whole.headers["EXECD-OUTPUT-TOTAL"] == "7"
    assert shared_execd.client.get(url, params={"stream": "stderr"}).content == b"err"
    part = shared_execd.client.get(url, params={"offset": 2, "limit": 3})
    assert (part.content, part.headers["EXECD-OUTPUT-OFFSET"]) == (b"b\xffc", "2")
    assert part.headers["EXECD-OUTPUT-NEXT-OFFSET"] == "5"
    assert shared_execd.client.get(url, params={"offset": 7}).content == b""
    for bad in ({"offset": 8}, {"limit": 4194305}, {"stream": "both"}, {"offset": -1}):
        assert shared_execd.client.get(url, params=bad).status_code == 400


def test_missing_bytes_of_a_stream_are_skipped_and_said(shared_execd: RunningExecd) -> None:
    outcome = shared_execd.run("seq 400000; echo err >&2")
    everything = outcome.output()
    url = f"/command/{outcome.id}/output"
    first = shared_execd.client.get(url)
    assert first.content == everything[: len(first.content)]
    second = shared_execd.client.get(url, params={"offset": first.headers["EXECD-OUTPUT-NEXT-OFFSET"]})
    start = int(second.headers["EXECD-OUTPUT-OFFSET"])
    assert start > len(first.content)
    assert second.content == everything[start : start + len(second.content)]
    assert shared_execd.client.get(url, params={"stream": "stderr"}).content == b"err\n"


def test_a_slow_reader_delays_neither_a_fast_one_nor_the_command(execd: RunningExecd) -> None:
    execution_id = execd.run("sleep 0.3; seq 300000; echo end", background=True).id
    request = f"GET /command/{execution_id}/stream HTTP/1.1\r\nHost: x\r\n\r\n"
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", execd.port))
        slow.sendall(request.encode())
        started = time.monotonic()
        fast = attach(execd, execution_id)
        assert time.monotonic() - started < 15
        assert fast.last["type"] == "execution_complete"
        assert fast.output().endswith(b"300000\nend\n")
        # The slow one still gets what is kept, and is told what is not.
        slow.settimeout(10)
        received = b""
        while not received.endswith(b"0\r\n\r\n"):
            received += slow.recv(1 << 16)
        assert b'"type":"execution_complete"' in received


def test_readers_that_go_away_leave_nothing_behind(execd: RunningExecd) -> None:
    execution_id = execd.run("while :; do echo line; sleep 0.01; done", background=True).id
    execd.client.get("/ping")
    before = (execd.descriptors(), execd.rss_kib())

    def look(number: int) -> None:
        with socket.create_connection(("127.0.0.1", execd.port)) as connection:
            path = f"/command/{execution_id}/{'wait' if number % 4 == 3 else 'stream'}"
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            if number % 2:
                connection.recv(100)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(look, [number for number in range(200) if number % 4 != 3 or number % 2 == 0]))
    wait_for(lambda: execd.descriptors() <= before[0])
    assert execd.rss_kib() - before[1] < 8 * 1024
    assert execd.client.delete("/command", params={"id": execution_id, "grace_ms": 0}).status_code == 200


def test_clients_that_vanish_take_their_commands_with_them(execd: RunningExecd) -> None:
    seconds = f"9{time.time_ns()}"  # that no one else on this machine sleeps for
    body = json.dumps({"command": f"sleep {seconds} & sleep {seconds}"}).encode()
    head = b"POST /command HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    execd.client.get("/ping")
    before = execd.descriptors()

    def vanish(number: int) -> None:
        with socket.create_connection(("127.0.0.1", execd.port)) as connection:
            connection.sendall((head + body)[: len(head + body) - (number % 3 == 0)])
            if number % 3 == 2:
                connection.recv(10)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(vanish, range(200)))
    wait_for(lambda: execd.descriptors() <= before, seconds=20)
    listed = execd.client.get("/commands", params={"limit": 1000}).json()["commands"]
    assert {each["reason"] for each in listed} == {"killed_by_client"}
    started = time.monotonic()
    assert execd.run(f"pgrep -c -f -x 'sleep {seconds}'").output() == b"0\n"
    assert time.monotonic() - started < 2


def post(execd: RunningExecd, key: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{execd.url}/command", json=body, headers={"Idempotency-Key": key}, timeout=20)


def events_of(response: httpx.Response) -> Outcome:
    assert response.status_code == 200, response.text
    return Outcome([json.loads(line) for line in response.text.split("\n\n")[:-1]])


def test_a_repeated_request_runs_once_and_gets_the_same_result(
    shared_execd: RunningExecd, tmp_path: Path
) -> None:
    body = {
        "command": f"echo run >>{tmp_path}/runs; sleep 0.3; echo out; exit 3",
        "envs": {"A": "1", "B": "2"},
    }
    with ThreadPoolExecutor(4) as pool:
        responses = list(pool.map(lambda _: post(shared_execd, "key 1", **body), range(4)))
    outcomes = [events_of(response) for response in [*responses, post(shared_execd, "key 1", **body)]]
    assert len({outcome.id for outcome in outcomes}) == 1
    assert [essence(outcome) for outcome in outcomes] == [essence(outcomes[0])] * 5
    assert (tmp_path / "runs").read_text() == "run\n"
    reordered = {"envs": {"B": "2", "A": "1"}, "command": body["command"]}
    assert events_of(post(shared_execd, "key 1", **reordered)).id == outcomes[0].id


def test_a_key_stands_for_one_request(shared_execd: RunningExecd) -> None:
    assert post(shared_execd, "key 2", command="true").status_code == 200
    other = post(shared_execd, "key 2", command="false")
    assert (other.status_code, other.json()["code"]) == (409, "IDEMPOTENCY_KEY_REUSED")
    refused = post(shared_execd, "key 3", command="true", cwd="/no/such")
    assert refused.status_code == 400
    assert post(shared_execd, "key 3", command="true").status_code == 200  # a refused request used nothing up
    for bad in ("x" * 256, "a\tb"):
        response = post(shared_execd, bad, command="true")
        assert (response.status_code, response.json()["code"]) == (400, "INVALID_QUERY")


def test_a_repeated_background_request_gives_the_same_id(shared_execd: RunningExecd) -> None:
    first, second = (
        events_of(post(shared_execd, "key 4", command="sleep 99", background=True)) for _ in range(2)
    )
    assert first.id == second.id
    assert [event["type"] for event in second.events] == ["init", "ping", "execution_complete"]
    shared_execd.client.delete("/command", params={"id": first.id, "grace_ms": 0})


def test_a_command_lives_as_long_as_one_of_the_clients_of_its_key(
    execd: RunningExecd, tmp_path: Path
) -> None:
    body = {"command": f"echo $$ >{tmp_path}/pid; echo ready; sleep 99"}

    @contextmanager
    def client() -> Iterator[Iterator[dict[str, Any]]]:
        headers = {"Idempotency-Key": "key"}
        url = f"{execd.url}/command"
        with httpx.stream("POST", url, json=body, headers=headers, timeout=20) as response:
            yield read_events(response)

    with client() as second:
        with client() as first:
            until(first, "ready")
            until(second, "ready")
        pid = int((tmp_path / "pid").read_text())
        execd.run("sleep 0.2")
        assert is_alive(pid)
    wait_for(lambda: not is_alive(pid), seconds=2)


def test_more_commands_than_may_run_are_refused_and_outputs_do_not_mix(execd: RunningExecd) -> None:
    def run(number: int) -> tuple[int, bytes]:
        body = {"command": f"for i in 1 2 3; do echo {number}; done; sleep 2"}
        response = httpx.post(f"{execd.url}/command", json=body, timeout=60)
        if response.status_code != 200:
            return response.status_code, response.json()["code"].encode()
        return 200, events_of(response).output()

    with ThreadPoolExecutor(200) as pool:
        answers = list(pool.map(run, range(200)))
    for number, (status, text) in enumerate(answers):
        expected = f"{number}\n".encode() * 3 if status == 200 else b"TOO_MANY_COMMANDS"
        assert (status, text) in ((200, expected), (429, expected))
    assert 100 <= sum(status == 200 for status, _ in answers) <= 200


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"stdin_b64": "AAE"}, "stdin_b64"),
        ({"stdin_b64": "A A="}, "stdin_b64"),
        ({"stdin_b64": 5}, "stdin_b64"),
        ({"stdin": "a", "stdin_b64": "AAE="}, "stdin_b64"),
    ],
)
def test_bad_binary_input_is_refused(
    shared_execd: RunningExecd, fields: dict[str, Any], message: str
) -> None:
    response = shared_execd.client.post("/command", json={"command": "cat", **fields})
    assert (response.status_code, response.json()["code"]) == (400, "INVALID_REQUEST_BODY")
    assert message in response.json()["message"]


def test_binary_input_arrives_exactly(shared_execd: RunningExecd) -> None:
    outcome = shared_execd.run("od -An -tx1", stdin_b64="AP8KgA==")
    assert outcome.output().split() == [b"00", b"ff", b"0a", b"80"]
