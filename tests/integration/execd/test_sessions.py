"""Bash sessions: what is carried from run to run, and what no run can break."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.execd import Outcome, RunningExecd, is_alive, read_events, running_execd, until, wait_for


class Shell:
    """One session."""

    def __init__(self, execd: RunningExecd, **body: Any) -> None:
        self.execd = execd
        response = execd.client.post("/session", json=body) if body else execd.client.post("/session")
        assert response.status_code == 200, response.text
        self.id = response.json()["session_id"]

    def run(self, command: str, **fields: Any) -> Outcome:
        with self.streaming(command, **fields) as events:
            outcome = Outcome(list(events))
        assert outcome.id == self.id
        return outcome

    def output(self, command: str, **fields: Any) -> str:
        outcome = self.run(command, **fields)
        assert outcome.last["type"] == "execution_complete", outcome.events
        assert outcome.last["state_saved"] is True
        return outcome.output().decode()

    @contextmanager
    def streaming(self, command: str, **fields: Any) -> Iterator[Iterator[dict[str, Any]]]:
        url = f"{self.execd.url}/session/{self.id}/run"
        with httpx.stream("POST", url, json={"command": command, **fields}, timeout=20) as response:
            assert response.status_code == 200, response.read()
            yield read_events(response)


@pytest.fixture
def shell(shared_execd: RunningExecd) -> Shell:
    return Shell(shared_execd)


def test_variables_exported_or_not_are_carried(shell: Shell) -> None:
    shell.output(
        "A='one two'; export B=$'x\\ny'; C=(1 '2 3' 4); declare -A D=([k]='v w'); declare -i N=5; readonly R=r"
    )
    script = 'printf "%s|" "$A" "$B" "${C[1]}" "${D[k]}" "$R"; N+=2; echo $N; sh -c \'echo "$A-$B"\''
    assert shell.output(script) == "one two|x\ny|2 3|v w|r|7\n-x\ny\n"


def test_a_variable_that_was_unset_stays_unset(bundle: Path, tmp_path: Path) -> None:
    env = {"PATH": os.environ["PATH"], "GIVEN": "by the image"}
    with running_execd(bundle, tmp_path, env=env) as execd:
        shell = Shell(execd)
        assert shell.output('echo "$GIVEN"; unset GIVEN') == "by the image\n"
        assert shell.output('echo "${GIVEN-unset}"; env | grep -c GIVEN || true') == "unset\n0\n"


def test_functions_aliases_options_umask_and_directory_are_carried(shell: Shell, tmp_path: Path) -> None:
    shell.output(
        "greet() { echo \"hello $1\"; }; export -f greet\nalias up='echo UP'\nshopt -s extglob nullglob\n"
        "set -o pipefail -u; umask 027; matches() { [[ $1 == @(a|b) ]]; }\n"
        f"mkdir -p '{tmp_path}/a $b'; cd '{tmp_path}/a $b'"
    )
    script = "greet you; bash -c 'greet me'\nup\nmatches b && echo extglob; false | true; echo $?; umask; pwd; echo no*"
    assert shell.output(script) == f"hello you\nhello me\nUP\nextglob\n1\n0027\n{tmp_path}/a $b\n\n"
    assert shell.run('echo "$NOT_SET"').last["exit_code"] != 0


def test_the_directory_of_the_session_is_where_it_begins_and_that_of_a_run_is_for_the_run(
    shared_execd: RunningExecd, tmp_path: Path
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "link").symlink_to("sub")
    shell = Shell(shared_execd, cwd=str(tmp_path))
    assert shell.output("pwd") == f"{tmp_path}\n"
    assert shell.output("pwd; cd /", cwd="/usr") == "/usr\n"
    assert shell.output("pwd; cd link") == f"{tmp_path}\n"
    assert shell.output("pwd; pwd -P; cd - >/dev/null; pwd; cd link; rmdir ../sub") == (
        f"{tmp_path}/link\n{tmp_path}/sub\n{tmp_path}\n"
    )
    assert shell.output("pwd") == f"{tmp_path}\n"  # where it was is gone
    refused = shared_execd.client.post(f"/session/{shell.id}/run", json={"command": "pwd", "cwd": "/no/such"})
    assert (refused.status_code, refused.json()["code"]) == (400, "INVALID_REQUEST_BODY")


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("cat <<'EOF' >f; cat f\nhello\nEOF", 0),
        ("KEPT=2; exit 3", 3),
        ("KEPT=2; f() { exit 3; }; f", 3),
        ("KEPT=2; { exit 3; } >/dev/null", 3),
        ("KEPT=2; while :; do exit 3; done", 3),
        ("KEPT=2; set -e; false; exit 9", 1),
        ("KEPT=2; set -u; echo $NOPE", 127),
        ("KEPT=2; trap 'echo theirs' EXIT; exit 3", 3),
        ("KEPT=2; trap 'exit 4' EXIT; exit 3", 4),
        ("KEPT=2; set -x; PS1='$ '; PROMPT_COMMAND='echo prompt'; trap 'echo x' DEBUG; (exit 3)", 3),
        ("KEPT=2; exec 2>&1 3>/dev/null; echo $'\\x1e0\\x1e'; exit 3", 3),
        ("KEPT=2; (while :; do echo noise; sleep 0.01; done) & sleep 0.1; exit 3", 3),
        ("KEPT=2; cd() { echo mine; }; printf() { :; }; exit 3", 3),
        ("KEPT=2; set -f +B -C; exit 3", 3),
        ("KEPT=2; return 3", 2),
    ],
)
def test_the_exit_code_is_right_and_the_state_is_kept(
    shell: Shell, tmp_path: Path, script: str, code: int
) -> None:
    shell.output(f"KEPT=1; cd {tmp_path}")
    last = shell.run(script).last
    assert (last["exit_code"] or 0, last["state_saved"]) == (code, True)
    kept = "2" if "KEPT" in script else "1"
    after = shell.run('set +xeu; trap - DEBUG; echo "KEPT=$KEPT"').output().decode()
    assert f"KEPT={kept}\n" in after
    shell.execd.run("pkill -f 'echo noise'")


def test_functions_may_have_the_names_of_builtins(shell: Shell) -> None:
    names = (
        *(
            "alias",
            "break",
            "continue",
            "declare",
            "eval",
            "exec",
            "local",
            "printf",
            "read",
            "return",
            "set",
        ),
        *("shift", "shopt", "umask", "unset"),
    )
    shell.output("".join(f"{name}() {{ echo mine; }}; " for name in names) + "KEPT=1; builtin set -f +B")
    for kept in (1, 2):
        outcome = shell.run("trap 'echo left' EXIT; eval; echo $KEPT {a,b} *; KEPT=2; (exit 6)")
        assert outcome.output() == b"mine\n%d {a,b} *\nleft\n" % kept
        assert (outcome.last["exit_code"], outcome.last["state_saved"]) == (6, True)


@pytest.mark.parametrize(
    "script",
    [
        "echo 'unbalanced",
        "fi",
        "if true; then",
        "exec true",
        "exec sh -c 'exit 3'",
        "kill -9 $$",
        "cat <<EOF",
        "\\",
    ],
)
def test_a_run_that_breaks_off_leaves_the_session_usable(shell: Shell, script: str) -> None:
    shell.output("KEPT=1")
    started = time.monotonic()
    shell.run(script)
    assert time.monotonic() - started < 5
    assert shell.output('echo "$KEPT"') == "1\n"


def test_a_timeout_kills_the_run_and_not_the_session(shell: Shell, tmp_path: Path) -> None:
    shell.output(f"KEPT=1; cd {tmp_path}")
    last = shell.run("KEPT=2; setsid sleep 99 & echo $! >pid; sleep 99", timeout=300).last
    assert (last["reason"], last["state_saved"]) == ("timeout", False)
    assert not is_alive(int((tmp_path / "pid").read_text()))
    assert shell.output('echo "$KEPT"; pwd', timeout=0) == f"1\n{tmp_path}\n"


def test_traps_of_the_code_run_once_and_see_the_exit_code(shell: Shell) -> None:
    assert (
        shell.run("trap 'echo bye $?' EXIT; trap -p EXIT; exit 3").output()
        == b"trap -- 'echo bye $?' EXIT\nbye 3\n"
    )
    assert shell.output("trap 'echo one' EXIT; trap 'echo two' 0") == "two\n"
    assert shell.output("trap 'echo one' EXIT; trap - EXIT") == ""
    assert shell.output("trap 'echo one' EXIT; trap EXIT; (trap 'echo inner' EXIT)") == "inner\n"
    assert shell.output("trap 'echo usr' USR1; kill -USR1 $$; echo end") == "usr\nend\n"


def test_output_is_nothing_but_that_of_the_code(shell: Shell) -> None:
    script = "echo out\necho err >&2\nls /proc/self/fd\nreadlink /proc/self/fd/0\ncat\nnosuchcommand"
    outcome = shell.run(script)
    lines = outcome.output().decode().splitlines()
    assert lines[:7] == ["out", "err", "0", "1", "2", "3", "/dev/null"]  # 3 is the directory that ls reads
    assert lines[7:] == ["bash: line 6: nosuchcommand: command not found"]
    assert outcome.output("stderr") == b""
    assert outcome.last["exit_code"] == 127
    assert shell.run("set -x; : traced").output() == b"++ : traced\n"
    assert shell.run(": next").output() == b"++ : next\n"


def test_prompts_and_long_values_are_not_carried(shell: Shell) -> None:
    shell.output("export PS1=p PS4=q PROMPT_COMMAND=r SMALL=$(printf %8192s x) LARGE=$(printf %8193s x)")
    script = 'echo "${PS1-} $PS4 ${PROMPT_COMMAND-} ${#SMALL} ${#LARGE}"'
    assert shell.output(script) == " +   8192 0\n"


def test_a_state_that_is_too_large_is_left_behind(shell: Shell) -> None:
    shell.output("KEPT=1")
    many = 'KEPT=2; for i in $(seq 1100); do eval "V$i=$(printf %01000d 1)"; done'
    assert shell.run(many).last["state_saved"] is False
    assert shell.output('echo "$KEPT ${V1-unset}"') == "1 unset\n"


def test_long_code_and_any_characters_pass(shell: Shell) -> None:
    code = "# filler\n" * 20_000 + "X='ü€ \"quoted\" \\ $'; printf '%s' \"$X\""
    assert shell.output(code) == 'ü€ "quoted" \\ $'
    assert shell.output('printf %s "$X"') == 'ü€ "quoted" \\ $'


def test_two_runs_at_a_time_are_refused(shell: Shell) -> None:
    with shell.streaming("echo ready; sleep 99") as events:
        until(events, "ready")
        response = shell.execd.client.post(f"/session/{shell.id}/run", json={"command": "true"})
        assert (response.status_code, response.json()["code"]) == (409, "SESSION_BUSY")
        assert (
            shell.execd.client.delete("/command", params={"id": shell.id, "grace_ms": 0}).status_code == 200
        )
        assert list(events)[-1]["reason"] == "killed_by_client"
    assert shell.output("echo free") == "free\n"


def test_a_client_that_leaves_ends_the_run(shell: Shell, tmp_path: Path) -> None:
    with shell.streaming(f"sleep 99 & echo $! >{tmp_path}/pid; echo ready; wait") as events:
        until(events, "ready")
    pid = int((tmp_path / "pid").read_text())
    wait_for(lambda: not is_alive(pid), seconds=2)
    wait_for(lambda: "SESSION_BUSY" not in json.dumps(_try_run(shell)))


def _try_run(shell: Shell) -> Any:
    response = shell.execd.client.post(f"/session/{shell.id}/run", json={"command": "true"})
    return response.json() if response.status_code != 200 else {}


def test_deleting_ends_what_runs(shell: Shell, tmp_path: Path) -> None:
    with shell.streaming(f"sleep 99 & echo $! >{tmp_path}/pid; echo ready; wait") as events:
        until(events, "ready")
        assert shell.execd.client.delete(f"/session/{shell.id}").status_code == 200
        assert not is_alive(int((tmp_path / "pid").read_text()))
        assert list(events)[-1]["type"] == "error"
    for response, status, code in (
        (shell.execd.client.delete(f"/session/{shell.id}"), 404, "CONTEXT_NOT_FOUND"),
        (shell.execd.client.post(f"/session/{shell.id}/run", json={"command": "true"}), 500, "RUNTIME_ERROR"),
    ):
        assert (response.status_code, response.json()["code"]) == (status, code)


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/session", {"cwd": "/no/such"}, "cwd"),
        ("/session", {"cwd": 5}, "cwd"),
        ("/session", {"dir": "/"}, "dir"),
        ("/session", [], "object"),
        ("run", {}, "command"),
        ("run", {"command": " "}, "command"),
        ("run", {"command": "a\0b"}, "command"),
        ("run", {"command": "a", "timeout": -1}, "timeout"),
        ("run", {"command": "a", "envs": {}}, "envs"),
    ],
)
def test_bad_requests_are_refused_by_name(shell: Shell, path: str, body: Any, field: str) -> None:
    url = path if path != "run" else f"/session/{shell.id}/run"
    response = shell.execd.client.post(url, json=body)
    assert (response.status_code, response.json()["code"]) == (400, "INVALID_REQUEST_BODY")
    assert field in response.json()["message"]


def test_there_is_a_bound_on_sessions(execd: RunningExecd) -> None:
    ids = [Shell(execd).id for _ in range(64)]
    response = execd.client.post("/session")
    assert (response.status_code, response.json()["code"]) == (429, "TOO_MANY_SESSIONS")
    execd.client.delete(f"/session/{ids[0]}")
    assert execd.client.post("/session").status_code == 200


def test_runs_leak_neither_descriptors_nor_tasks(execd: RunningExecd) -> None:
    shell = Shell(execd)
    shell.output("true")
    before = execd.descriptors()
    for script in ("true", "exit 3", "exec true", "echo 'x", "kill -9 $$") * 3:
        shell.run(script)
    execd.client.post(f"/session/{shell.id}/run", json={"command": "true", "cwd": "/no/such"})
    wait_for(lambda: execd.descriptors() <= before)
