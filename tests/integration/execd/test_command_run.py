"""What a command gets, and what its stream says."""

import json
import os
import time
from pathlib import Path

import httpx
import pytest

from execd.bundle import bundle_command
from tests.support.execd import (
    RunningExecd,
    end_process,
    is_alive,
    running_execd,
    until,
    wait_for,
)


def test_a_stream_begins_with_init_and_ping_and_ends_with_completion(execd: RunningExecd) -> None:
    response = execd.client.post("/command", json={"command": "echo a; echo b"})
    assert response.headers["content-type"] == "text/event-stream"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    frames = response.content.split(b"\n\n")
    assert frames.pop() == b""
    events = [json.loads(frame) for frame in frames]
    assert [event["type"] for event in events] == ["init", "ping", "stdout", "stdout", "execution_complete"]
    assert len(events[0]["text"]) == 32
    assert events[1]["text"] == "pong"
    assert [event["text"] for event in events[2:4]] == ["a\n", "b\n"]
    assert all(abs(event["timestamp"] / 1000 - time.time()) < 60 for event in events)
    last = events[-1]
    assert (last["exit_code"], last["signal"], last["reason"]) == (0, None, "exit")
    assert last["execution_time"] >= 0


def test_a_failing_command_ends_with_its_exit_status(execd: RunningExecd) -> None:
    last = execd.run("echo out; echo err >&2; exit 3").last
    assert last["type"] == "error"
    assert last["error"] == {"ename": "CommandExecError", "evalue": "3", "traceback": ["exit status 3"]}
    assert (last["exit_code"], last["signal"], last["reason"]) == (3, None, "exit")


def test_a_killed_command_ends_with_its_signal(execd: RunningExecd) -> None:
    last = execd.run("kill -SEGV $$").last
    assert (last["type"], last["exit_code"], last["signal"], last["reason"]) == ("error", None, 11, "signal")


def test_argv_is_passed_verbatim(execd: RunningExecd) -> None:
    argv = ["printf", "%s|", "$HOME", "`id`", "--", "-n", "a b", "", "é\n", "*"]
    assert execd.run(argv=argv).output() == "$HOME|`id`|--|-n|a b||é\n|*|".encode()


def test_merged_stderr_keeps_the_exact_order(execd: RunningExecd) -> None:
    script = "for i in $(seq 200); do echo out $i; echo err $i >&2; done"
    outcome = execd.run(script, merge_stderr=True)
    assert outcome.output().decode().splitlines() == [
        f"{s} {i}" for i in range(1, 201) for s in ("out", "err")
    ]
    assert outcome.output("stderr") == b""


def test_streams_are_told_apart(execd: RunningExecd) -> None:
    outcome = execd.run("echo out; echo err >&2")
    assert (outcome.output(), outcome.output("stderr")) == (b"out\n", b"err\n")


def test_output_that_is_not_utf8_arrives_byte_for_byte(execd: RunningExecd, tmp_path: Path) -> None:
    data = bytes(range(256)) * 700 + "é€😀".encode() * 30_000 + b"\xf0\x9f"
    (tmp_path / "data").write_bytes(data)
    outcome = execd.run("cat data")
    assert outcome.output() == data
    texts = [event for event in outcome.events if event["type"] == "stdout"]
    assert all("b64" not in event for event in texts if "\ufffd" not in event["text"])
    assert all("\ufffd" in event["text"] for event in texts if "b64" in event)


def test_a_long_line_of_characters_is_cut_between_them(execd: RunningExecd) -> None:
    outcome = execd.run(argv=["python3", "-c", "print('€' * 100_000, end='')"])
    assert outcome.output().decode() == "€" * 100_000
    assert not any("b64" in event for event in outcome.events)
    assert max(len(event.get("text", "")) for event in outcome.events) <= 65536


def test_output_without_a_final_newline_and_carriage_returns_are_kept(execd: RunningExecd) -> None:
    outcome = execd.run(r"printf '10%%\r20%%\r\nend'")
    assert [e["text"] for e in outcome.events if e["type"] == "stdout"] == ["10%\r20%\r\n", "end"]


def test_the_older_form_strips_line_ends(bundle: Path, tmp_path: Path) -> None:
    env = {"PATH": os.environ["PATH"], "EXECD_STRIP_NEWLINES": "1"}
    with running_execd(bundle, tmp_path, env=env) as execd:
        outcome = execd.run(r"printf 'a\n\nb\r\nc\rd'")
        assert [e["text"] for e in outcome.events if e["type"] == "stdout"] == ["a", "\n", "b", "c", "d"]
        assert execd.run("echo ${EXECD_STRIP_NEWLINES-unset}").events[2]["text"] == "unset"


def test_stdin_is_empty_unless_given(execd: RunningExecd) -> None:
    assert execd.run("readlink /proc/self/fd/0; cat").output() == b"/dev/null\n"


def test_stdin_is_fed_and_then_ends(execd: RunningExecd) -> None:
    text = "zeile ü\n" * 100_000
    assert execd.run("wc -c", stdin=text).output().strip() == str(len(text.encode())).encode()
    assert execd.run("cat; echo end", stdin="").output() == b"end\n"


@pytest.mark.parametrize("script", ["true", "exec <&-; sleep 0.3", "head -c 1 >/dev/null; sleep 0.3"])
def test_a_program_that_does_not_read_its_stdin_ends_cleanly(execd: RunningExecd, script: str) -> None:
    execd.client.get("/ping")
    before = execd.descriptors()
    assert execd.run(script, stdin="x" * 5_000_000).last["type"] == "execution_complete"
    wait_for(lambda: execd.descriptors() <= before)


def test_a_script_larger_than_an_argument_runs_with_its_stdin(execd: RunningExecd) -> None:
    script = (
        "read -r line\necho got $line\n" + "# filler\n" * 25_000 + 'ls /proc/self/fd\necho "$(cat)"; exit 5\n'
    )
    assert len(script) > 200 * 1024
    outcome = execd.run(script, stdin="first\nsecond\n")
    assert outcome.output() == b"got first\n0\n1\n2\n3\nsecond\n"  # 3 is the directory that ls reads
    assert outcome.last["exit_code"] == 5


def test_a_command_has_three_descriptors_default_signals_and_umask_022(bundle: Path, tmp_path: Path) -> None:
    careless = ["bash", "-c", "umask 077; trap '' HUP USR1 CHLD; exec 9</dev/null; exec \"$@\"", "bash"]
    with running_execd(bundle, tmp_path, prefix=careless) as execd:
        outcome = execd.run("ls /proc/$$/fd; umask; grep -E 'SigBlk|SigIgn' /proc/$$/status")
    *descriptors, umask, blocked, ignored = outcome.output().decode().split("\n")[:-1]
    assert [number for number in descriptors if number != "255"] == ["0", "1", "2"]
    assert umask == "0022"
    assert int(blocked.split()[1], 16) == 0
    assert int(ignored.split()[1], 16) == 0


def test_a_command_leads_its_own_session_and_group(execd: RunningExecd) -> None:
    pid, pgid, sid = execd.run("cut -d' ' -f1,5,6 /proc/$$/stat").output().split()
    assert pid == pgid == sid


def test_the_environment_has_three_layers(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "envs").write_text("B=file\nC=file\nD='two\nlines'\nE=\"it's $A\"\n")
    env = {
        "PATH": os.environ["PATH"],
        "A": "own",
        "B": "own",
        "C": "own",
        "EXECD_ENVS": str(tmp_path / "envs"),
    }
    with running_execd(bundle, tmp_path, env=env) as execd:
        outcome = execd.run('printf "%s|" "$A" "$B" "$C" "$D" "$E" "$EXECD_ENVS"', envs={"C": "request"})
        assert outcome.output().decode() == f"own|file|request|two\nlines|it's own|{tmp_path}/envs|"
        (tmp_path / "envs").write_text("B=again\n")
        assert execd.run('echo "$B"').output() == b"again\n"


def test_no_secret_and_no_trace_of_the_daemon_reaches_a_command(bundle: Path, tmp_path: Path) -> None:
    env = {
        "PATH": os.environ["PATH"],
        "EXECD_ACCESS_TOKEN": "hush-hush",
        "EXECD_API_GRACE_SHUTDOWN": "1s",
        "SANDMILL_ORIG_LD_PRELOAD": "",
        "SANDMILL_ORIG_MALLOC_ARENA_MAX": "1",
        "LD_PRELOAD": "",
    }
    with running_execd(bundle, tmp_path, env=env) as execd:
        execd.client.headers["X-EXECD-ACCESS-TOKEN"] = "hush-hush"
        names = {
            line.partition("=")[0]
            for line in execd.run("env -0 | tr '\\0\\n' '\\n '").output().decode().split("\n")
        }
        assert names - {"", "_", "SHLVL", "PWD"} == {
            "PATH", "EXECD_ENVS", "SANDMILL_EXECUTION_ID", "LD_PRELOAD", "MALLOC_ARENA_MAX",
        }  # fmt: skip
        for entry in ("environ", "cmdline"):
            assert "hush" not in Path(f"/proc/{execd.pid}/{entry}").read_text(errors="replace")
        as_other_user = f"su nobody -s /bin/sh -c 'cat /proc/{execd.pid}/environ'"
        assert b"hush" not in execd.run(as_other_user, merge_stderr=True).output()


def test_a_command_cannot_read_or_change_the_daemon_it_runs_under(bundle: Path, tmp_path: Path) -> None:
    # Root could do so by its capabilities alone, which no sandbox has.
    powerless = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"] if os.geteuid() == 0 else []
    with running_execd(bundle, tmp_path, prefix=powerless) as execd:
        for entry in ("mem", "environ", "maps"):
            outcome = execd.run(f"ls /proc/$PPID/{entry}/ || cat /proc/$PPID/{entry}", merge_stderr=True)
            assert b"Permission denied" in outcome.output(), entry
        long_script = "echo long\n" + "# filler\n" * 20_000
        assert execd.run(long_script).output() == b"long\n"


def test_the_token_is_demanded_on_every_route(bundle: Path, tmp_path: Path) -> None:
    with running_execd(bundle, tmp_path, flags=["--access-token", "s3cret"]) as execd:
        for headers in ({}, {"X-EXECD-ACCESS-TOKEN": "s3cre"}, {"X-EXECD-ACCESS-TOKEN": "é"}):
            raw = {name: value.encode("latin-1") for name, value in headers.items()}
            response = execd.client.get("/ping", headers=raw)
            assert response.status_code == 401
            assert response.json()["error"] == "Unauthorized: invalid or missing header X-EXECD-ACCESS-TOKEN"
            assert execd.client.post("/command", json={"command": "true"}, headers=raw).status_code == 401
        assert execd.client.get("/ping", headers={"X-EXECD-ACCESS-TOKEN": "s3cret"}).status_code == 200
        assert "s3cret" not in Path(f"/proc/{execd.pid}/cmdline").read_text()


def test_cwd_expands_home_and_variables(execd: RunningExecd, tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert execd.run("pwd").output().decode().strip() == str(tmp_path)
    assert execd.run("pwd", cwd="~/a").output().decode().strip() == str(tmp_path / "a")
    assert execd.run(
        "pwd", cwd="$TOP/${SUB}", envs={"TOP": str(tmp_path), "SUB": "a/b"}
    ).output().decode().strip() == str(tmp_path / "a" / "b")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_command_may_run_as_another_user(execd: RunningExecd) -> None:
    assert execd.run("id -u; id -g; id -G", uid=65534, cwd="/").output().split() == [b"65534"] * 3
    assert execd.run("id -u; id -g; id -G", uid=1234, gid=77, cwd="/").output().split() == [
        b"1234",
        b"77",
        b"77",
    ]


def test_becoming_another_user_without_the_right_to_is_refused(bundle: Path, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        # Root without the capabilities is as powerless as anyone.
        body = {"command": "true", "uid": 4321, "cwd": "/"}
        line = " ".join(bundle_command(str(bundle)))
        with running_execd(bundle, tmp_path) as execd:
            nested = f"setpriv --bounding-set -setuid,-setgid --inh-caps -setuid,-setgid {line}"
            with execd.streaming(nested + " --port 44873 --host 127.0.0.1"):
                response = wait_for(lambda: _try_post("http://127.0.0.1:44873/command", body))
    else:
        with running_execd(bundle, tmp_path) as execd:
            response = execd.client.post("/command", json={"command": "true", "uid": 4321})
    assert response.status_code == 400
    assert "uid: execd may not become user 4321" in response.json()["message"]


def _try_post(url: str, body: dict[str, object]) -> httpx.Response | None:
    try:
        return httpx.post(url, json=body)
    except httpx.ConnectError:
        return None


def test_a_daemon_left_behind_does_not_hold_the_stream_and_lives_on(execd: RunningExecd) -> None:
    started = time.monotonic()
    # It inherits the pipes and goes on writing: more than a pipe holds, and not fatal to it.
    outcome = execd.run(
        "(for i in $(seq 40); do sleep 0.05; printf '%20000d\\n' 1; done; echo alive >flag; exec sleep 99) & echo $!"
    )
    assert time.monotonic() - started < 3
    assert outcome.last["type"] == "execution_complete"
    pid = int(outcome.output().split()[0])
    try:
        wait_for(lambda: execd.run("cat flag").output() == b"alive\n", seconds=10)
        assert is_alive(pid)
    finally:
        end_process(pid)


@pytest.mark.parametrize("chatter", ["yes", "yes >&2", "while :; do echo x; sleep 0.01; done"])
def test_a_daemon_that_never_stops_writing_does_not_hold_the_stream(
    execd: RunningExecd, chatter: str
) -> None:
    started = time.monotonic()
    outcome = execd.run(f"({chatter}) & echo $!; echo err >&2; seq 1000")
    assert time.monotonic() - started < 3
    assert outcome.last["reason"] == "exit"
    assert b"\n1000\n" in outcome.output()
    assert b"err\n" in outcome.output("stderr")
    (pid, *_) = [int(word) for word in outcome.output().split() if word.isdigit()]
    assert is_alive(pid)
    end_process(pid)


@pytest.mark.parametrize("length", [1000, 200_000])
def test_commands_follow_each_other_on_one_connection(execd: RunningExecd, length: int) -> None:
    # The next request is on its way as soon as the last frame is: it must not be taken for a disconnect.
    for number in range(25):
        assert execd.run(f"echo {number} #" + "x" * length).output() == f"{number}\n".encode()


def test_all_output_of_the_main_process_arrives_though_a_daemon_holds_the_pipe(execd: RunningExecd) -> None:
    outcome = execd.run("sleep 99 & seq 1 200000")
    assert outcome.output().split()[-1] == b"200000"
    execd.run("pkill -f '^sleep 99$'")


def test_output_is_seen_while_the_command_runs_and_pings_come(execd: RunningExecd) -> None:
    with execd.streaming("echo first; sleep 3.2; echo second") as events:
        started = time.monotonic()
        until(events, "first")
        assert time.monotonic() - started < 1
        seen = until(events, "second")
    assert "ping" in [event["type"] for event in seen]


def test_memory_does_not_grow_with_the_output(execd: RunningExecd) -> None:
    execd.run("seq 1000; head -c 200000 /dev/zero")
    before = execd.rss_kib()
    total = 0
    with execd.streaming(
        "head -c 10000000 /dev/zero | tr '\\0' x; yes | head -c 1000000; echo; echo end"
    ) as events:
        for event in events:
            total += len(event.get("text", "")) if event["type"] == "stdout" else 0
    assert total == 10_000_000 + 1_000_000 + len("\nend\n")
    assert execd.rss_kib() - before < 12 * 1024


def test_a_slow_reader_blocks_its_program_and_no_one_else(execd: RunningExecd) -> None:
    with execd.streaming("yes | head -c 300000000") as events:
        next(events)
        before = execd.rss_kib()
        for _ in range(20):
            assert execd.run("echo quick").output() == b"quick\n"
        assert execd.rss_kib() - before < 12 * 1024
    children = Path(f"/proc/{execd.pid}/task/{execd.pid}/children")
    wait_for(lambda: children.read_text() == "")


def test_abandoned_streams_leave_no_process_and_no_descriptor(execd: RunningExecd) -> None:
    execd.client.get("/ping")
    before = execd.descriptors()
    for _ in range(30):
        with execd.streaming("sleep 98.5") as events:
            next(events)
    wait_for(lambda: execd.descriptors() <= before)
    children = Path(f"/proc/{execd.pid}/task/{execd.pid}/children")
    wait_for(lambda: children.read_text() == "")


def test_commands_get_the_limits_of_the_flags(bundle: Path, tmp_path: Path) -> None:
    flags = ["--rlimit", "nofile=512", "--rlimit", "core=0", "--rlimit", "as=2000000000"]
    with running_execd(bundle, tmp_path, flags=flags) as execd:
        assert execd.run("ulimit -Hn; ulimit -Sn; ulimit -Hc; ulimit -Hv").output().split() == [
            b"512", b"512", b"0", b"1953125",
        ]  # fmt: skip
        hungry = "import os; fds = []\ntry:\n  while True: fds.append(os.dup(1))\nexcept OSError: print(len(fds) > 400)"
        with execd.streaming(f'python3 -c "{hungry}"; sleep 5') as events:
            until(events, "True")
            assert execd.client.get("/ping").status_code == 200
