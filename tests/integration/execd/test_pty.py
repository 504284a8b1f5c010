"""Terminals: the protocol's frames over a real WebSocket, with real shells."""

import os
import re
import signal
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus

from tests.support.execd import RunningExecd, is_alive, wait_for
from tests.support.terminal import TerminalClient, attached, new_terminal


@pytest.fixture
def execd(shared_execd: RunningExecd) -> RunningExecd:
    return shared_execd


def status(execd: RunningExecd, session: str) -> dict[str, object]:
    return dict(execd.client.get(f"/pty/{session}").json())


def pid_of(client: TerminalClient, mark: str = "PID") -> int:
    """Let the shell print its own pid."""
    client.type(f"echo {mark}=$$.\n")
    return number_after(client, mark)


def number_after(client: TerminalClient, mark: str) -> int:
    """Wait for MARK=number. (the echo of what was typed has no number) and give the number."""
    found = None
    while found is None:
        found = re.search(rf"{mark}=(\d+)\.".encode(), client.stdout) or client.step()
    return int(found[1])


def test_the_shell_starts_with_the_first_client_on_a_terminal_of_80_by_24(execd: RunningExecd) -> None:
    session = new_terminal(execd)
    before = {"session_id": session, "running": False, "output_offset": 0}
    assert before.items() <= status(execd, session).items()
    with attached(execd, session) as client:
        assert client.frame("connected") == {"type": "connected", "session_id": session, "mode": "pty"}
        client.type("stty size; tty; echo $TERM; exit 3\n")
        assert client.end() == (1000, "process exited")
        assert client.frame("exit") == {"type": "exit", "exit_code": 3, "signal": None}
    assert b"24 80\r\n/dev/pts/" in client.stdout
    assert b"\r\nxterm-256color\r\n" in client.stdout
    after = {"running": False, "output_offset": len(client.stdout), "exit_code": 3}
    assert after.items() <= status(execd, session).items()
    assert execd.client.delete(f"/pty/{session}").status_code == 200
    assert execd.client.get(f"/pty/{session}").status_code == 404


def test_the_program_has_the_terminal_and_nothing_else_of_execd(execd: RunningExecd) -> None:
    command = (
        "ls -x /proc/$$/fd; grep -E '^Sig(Ign|Blk)' /proc/self/status;"
        " cut -d' ' -f5-8 /proc/$$/stat | tr ' ' :; echo $$; umask"
    )
    session = new_terminal(execd, command=command)
    with attached(execd, session) as client:
        client.end()
    *lines, pid, umask = client.stdout.decode().split("\r\n")[:-1]
    group, sid, tty, foreground = lines.pop().split(":")
    assert lines[0].split() == ["0", "1", "2"]
    assert lines[1:] == ["SigBlk:\t0000000000000000", "SigIgn:\t0000000000000000"]
    assert group == sid == pid
    assert int(tty) != 0
    assert int(foreground) > 0
    assert umask == "0022"


def test_in_pipe_mode_both_streams_come_apart_and_input_can_end(execd: RunningExecd) -> None:
    session = new_terminal(execd, command="cat; echo err >&2; exit 5")
    with attached(execd, session, "?pty=0") as client:
        assert client.frame("connected")["mode"] == "pipe"
        client.type("bytes\n")
        client.say(type="stdin", data="text\n")
        client.say(type="eof")
        client.end()
        assert client.frame("exit")["exit_code"] == 5
    assert (client.stdout, client.stderr) == (b"bytes\ntext\n", b"err\n")


def test_the_end_of_input_is_a_key_on_a_terminal(execd: RunningExecd) -> None:
    with attached(execd, new_terminal(execd, command="cat; echo over")) as client:
        client.say(type="eof")
        client.end()
    assert b"over" in client.stdout


def test_resizing_reaches_the_program(execd: RunningExecd) -> None:
    command = "trap 'stty size; exit' WINCH; echo READY; while sleep 0.02; do :; done"
    with attached(execd, new_terminal(execd, command=command)) as client:
        client.until("READY")
        client.say(type="resize", cols=132, rows=50)
        client.end()
        assert client.frame("exit")["exit_code"] == 0
    assert client.stdout == b"READY\r\n50 132\r\n"


@pytest.mark.parametrize("name", ["SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP", "SIGKILL"])
def test_signals_go_to_the_program_in_front(execd: RunningExecd, name: str) -> None:
    number = signal.Signals[name]
    with attached(execd, new_terminal(execd)) as client:
        shell = pid_of(client)
        # The job takes the terminal for itself before it says so.
        client.type("sh -c 'echo JOB=$$.; exec sleep 1000'\n")
        job = number_after(client, "JOB")
        client.say(type="signal", signal=name)
        wait_for(lambda: not is_alive(job))
        client.type("echo CODE=$?.\n")
        client.until(f"CODE={128 + number}.")
        assert pid_of(client, "AGAIN") == shell


def test_the_exit_by_a_signal_is_told(execd: RunningExecd) -> None:
    with attached(execd, new_terminal(execd, command="kill -KILL $$"), "?pty=0") as client:
        client.end()
        assert client.frame("exit") == {"type": "exit", "exit_code": -1, "signal": signal.SIGKILL}


def test_a_session_goes_on_without_clients_and_replays_from_an_offset(
    execd: RunningExecd, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    session = new_terminal(execd, command=f"printf 0123456789; read x < {go}; printf abcdef; read x")
    with attached(execd, session, "?pty=0") as client:
        client.until("0123456789")
    with go.open("w") as fifo:
        fifo.write("\n")
    wait_for(lambda: status(execd, session)["output_offset"] == 16)
    for query, expected in (("", (0, b"0123456789abcdef")), ("?since=12", (12, b"cdef"))):
        with attached(execd, session, query) as client:
            client.frame("connected")
            assert client.replays == [expected]
        wait_for(lambda: not status(execd, session)["connected"])
    with attached(execd, session, "?since=16") as client:
        client.frame("connected")
        client.type("\n")
        client.end()
        assert client.replays == []
        assert client.frame("exit")["exit_code"] == 0


def test_the_replay_is_the_last_mebibyte(execd: RunningExecd, tmp_path: Path) -> None:
    program = "head -c 3000000 /dev/zero | tr '\\0' a; head -c 1000000 /dev/zero | tr '\\0' b"
    session = new_terminal(execd, command=program)
    with attached(execd, session, "?pty=0"):
        pass
    wait_for(lambda: status(execd, session)["exit_code"] == 0, seconds=20)
    wait_for(lambda: status(execd, session)["output_offset"] == 4_000_000, seconds=20)
    with attached(execd, session) as client:
        client.end()
    ((offset, data),) = client.replays
    assert len(data) == 4_000_000 - offset == 1024 * 1024 - 9
    assert data.endswith(b"b" * 1_000_000)
    assert data.startswith(b"a")


def test_a_client_that_comes_after_the_end_still_sees_it(execd: RunningExecd) -> None:
    session = new_terminal(execd, command="echo last; exit 7")
    with attached(execd, session) as client:
        client.end()
    with attached(execd, session) as client:
        assert client.end() == (1000, "process exited")
        assert client.frame("exit")["exit_code"] == 7
    assert client.replays == [(0, b"last\r\n")]


def test_a_second_client_is_refused_unless_it_takes_over(execd: RunningExecd) -> None:
    session = new_terminal(execd)
    with attached(execd, session) as first:
        first.type("echo O''NE\n")
        first.until("ONE")
        with pytest.raises(InvalidStatus) as refused, attached(execd, session):
            pass
        assert refused.value.response.status_code == 409
        assert b'"ALREADY_CONNECTED"' in refused.value.response.body
        with attached(execd, session, "?takeover=1") as second:
            assert first.end() == (4001, "TAKEN_OVER")
            second.frame("connected")
            assert b"ONE" in second.replays[0][1]
            second.type("echo T''WO; exit\n")
            second.end()
            assert b"TWO" in second.stdout


def test_a_handshake_that_fails_takes_nothing_over(execd: RunningExecd) -> None:
    session = new_terminal(execd)
    with attached(execd, session) as client:
        client.frame("connected")
        path = f"/pty/{session}/ws?takeover=1"
        head = f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\n"
        key = "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg=="
        rests = (
            f"Sec-WebSocket-Version: 12\r\n{key}",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: short",
            f"Sec-WebSocket-Version: 13\r\n{key}\r\nContent-Length: 1",
        )
        answers = [execd.raw(f"{head}{rest}\r\n\r\n".encode()) for rest in rests]
        assert [answer.split()[1] for answer in answers] == [b"426", b"400", b"400", b"400"]
        assert b"sec-websocket-version: 13" in answers[0]
        assert execd.client.get(path).status_code == 400
        client.type("exit 0\n")
        assert client.end() == (1000, "process exited")


@pytest.mark.parametrize(
    ("query", "word"),
    [("since=-1", "since"), ("since=x", "since"), ("pty=2", "pty"), ("takeover=yes", "takeover")],
)
def test_bad_queries_are_named(execd: RunningExecd, query: str, word: str) -> None:
    response = execd.client.get(f"/pty/{new_terminal(execd)}/ws?{query}")
    assert (response.status_code, response.json()["code"]) == (400, "INVALID_QUERY")
    assert f"'{word}'" in response.json()["message"]


def test_unknown_sessions_are_404_before_any_upgrade(execd: RunningExecd) -> None:
    for method, path in (("GET", "/pty/x"), ("DELETE", "/pty/x"), ("GET", "/pty/x/ws")):
        response = execd.client.request(method, path)
        assert (response.status_code, response.json()["code"]) == (404, "CONTEXT_NOT_FOUND")


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"[]", "object"),
        (b'{"x":1}', "x"),
        (b'{"cwd":1}', "cwd"),
        (b'{"command":""}', "command"),
        (b"{", "JSON"),
    ],
)
def test_bad_bodies_are_named(execd: RunningExecd, body: bytes, word: str) -> None:
    response = execd.client.post("/pty", content=body)
    assert (response.status_code, response.json()["code"]) == (400, "INVALID_REQUEST_BODY")
    assert word in response.json()["message"]


def test_an_empty_body_asks_for_a_shell_and_cwd_is_expanded(execd: RunningExecd, tmp_path: Path) -> None:
    response = execd.client.post("/pty")
    assert response.status_code == 201
    session = new_terminal(execd, cwd="~", command="pwd")
    with attached(execd, session, "?pty=0") as client:
        client.end()
    assert client.stdout.startswith(b"/")


def test_a_program_that_cannot_start_says_why_and_can_be_tried_again(
    execd: RunningExecd, tmp_path: Path
) -> None:
    place = tmp_path / "later"
    session = new_terminal(execd, cwd=str(place), command="pwd")
    with attached(execd, session, "?pty=0") as client:
        assert client.end() == (1011, "START_FAILED")
        error = client.frame("error")
    assert error["code"] == "START_FAILED"
    assert str(place) in error["error"]
    place.mkdir()
    wait_for(lambda: not status(execd, session)["connected"])
    with attached(execd, session, "?pty=0") as client:
        client.end()
    assert client.stdout == f"{place}\n".encode()


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01x",
        "no json",
        "[" * 100_000,
        "[]",
        '{"type":"dance"}',
        '{"type":"stdin"}',
        '{"type":"stdin","data":"x","more":1}',
        '{"type":"signal","signal":"SIGSTOP"}',
        '{"type":"resize","cols":0,"rows":1}',
        '{"type":"resize","cols":true,"rows":1}',
        '{"type":"resize","cols":70000,"rows":1}',
    ],
    ids=range(12),
)
def test_messages_that_mean_nothing_are_answered_and_nothing_else_happens(
    execd: RunningExecd, message: bytes | str
) -> None:
    with attached(execd, new_terminal(execd, command="read x; echo got $x"), "?pty=0") as client:
        client.socket.send(message)
        assert client.frame("error")["code"] == "INVALID_FRAME"
        client.say(type="ping")
        assert client.frame("pong") == {"type": "pong"}
        client.type("on\n")
        client.end()
    assert client.stdout == b"got on\n"


def test_input_that_nobody_takes_is_told(execd: RunningExecd) -> None:
    with attached(
        execd, new_terminal(execd, command="exec <&-; echo closed; sleep 1000"), "?pty=0"
    ) as client:
        client.until("closed")
        client.type("x")
        assert client.frame("error")["code"] == "STDIN_WRITE_FAILED"


def test_deleting_kills_all_that_descends_from_the_shell(execd: RunningExecd) -> None:
    session = new_terminal(execd)
    with attached(execd, session) as client:
        shell = pid_of(client)
        client.type("(setsid env -i sh -c 'echo D=$$.; exec sleep 1000' &) ; sleep 1000 &\n")
        daemon = number_after(client, "D")
        assert execd.client.delete(f"/pty/{session}").status_code == 200
        assert not is_alive(shell)
        assert not is_alive(daemon)
        assert client.end() == (1001, "SESSION_GONE")
        assert client.frame("error")["code"] == "SESSION_GONE"


def test_the_end_of_a_command_spares_terminals_and_the_other_way_round(execd: RunningExecd) -> None:
    session = new_terminal(execd)
    with attached(execd, session) as client:
        pid_of(client)
        started = execd.run("setsid sleep 1000 > /dev/null & echo $!")
        background = int(started.output())
        execd.run("true", kill_leftovers=True)
        shell = pid_of(client, "AGAIN")
        execd.client.delete(f"/pty/{session}")
        assert not is_alive(shell)
    assert is_alive(background)
    os.kill(background, signal.SIGKILL)


def test_what_a_shell_left_running_outlives_its_exit_and_not_its_deletion(execd: RunningExecd) -> None:
    session = new_terminal(execd, command="setsid sleep 1000 > /dev/null 2>&1 & echo $!")
    with attached(execd, session, "?pty=0") as client:
        client.end()
    left = int(client.stdout)
    assert is_alive(left)
    execd.client.delete(f"/pty/{session}")
    assert not is_alive(left)
