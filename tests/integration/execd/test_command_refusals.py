"""Commands that are refused, or cannot start."""

import pytest

from tests.support.execd import RunningExecd, wait_for


@pytest.fixture
def execd(shared_execd: RunningExecd) -> RunningExecd:
    return shared_execd


@pytest.mark.parametrize(
    ("fields", "text", "kind"),
    [
        ({"argv": ["/no/such/program"]}, "/no/such/program: No such file or directory", "not_found"),
        ({"argv": ["no-such-program"]}, "no-such-program: No such file or directory", "not_found"),
        ({"argv": ["/etc/passwd"]}, "/etc/passwd: Permission denied", "not_executable"),
        ({"argv": ["/bin/true", "x" * 200_000]}, "/bin/true: Argument list too long", "too_long"),
        ({"command": "true", "envs": {"BIG": "x" * 200_000}}, "Argument list too long", "too_long"),
    ],
    ids=["missing path", "not in PATH", "not executable", "argument too long", "variable too long"],
)
def test_a_command_that_cannot_start_says_why_in_its_stream(
    execd: RunningExecd, fields: dict[str, object], text: str, kind: str
) -> None:
    outcome = execd.run(**fields)
    assert [event["type"] for event in outcome.events] == ["init", "ping", "error"]
    assert text in outcome.last["error"]["evalue"]
    assert (outcome.last["exit_code"], outcome.last["reason"]) == (None, "start_failed")
    assert outcome.last["start_failure"] == kind


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"{", "JSON"),
        (b"[]", "object"),
        (b'"x"', "object"),
        (b"\xff", "UTF-8"),
        (b"[" * 100_000, "nested"),
        (b'{"command": NaN}', "JSON"),
        (b"{}", "command"),
        (b'{"command":"a","argv":["a"]}', "command"),
        (b'{"command":5}', "command"),
        (b'{"command":"  "}', "command"),
        (b'{"command":"a\\u0000b"}', "command"),
        (b'{"command":"\\ud800"}', "command"),
        (b'{"argv":[]}', "argv"),
        (b'{"argv":"ls"}', "argv"),
        (b'{"argv":["a","b\\u0000"]}', "argv[1]"),
        (b'{"argv":["a",1]}', "argv[1]"),
        (b'{"argv":[""]}', "argv[0]"),
        (b'{"command":"a","cwd":"/no/such/dir"}', "cwd"),
        (b'{"command":"a","cwd":"/etc/passwd"}', "cwd"),
        (b'{"command":"a","cwd":"$NOT_SET_HERE"}', "cwd: variable NOT_SET_HERE"),
        (b'{"command":"a","cwd":"/\\u0000"}', "cwd"),
        (b'{"command":"a","envs":{"A":"b\\u0000"}}', "envs.A"),
        (b'{"command":"a","envs":{"A=B":"b"}}', "envs.A=B"),
        (b'{"command":"a","envs":{"":"b"}}', "envs."),
        (b'{"command":"a","envs":{"A":1}}', "envs.A"),
        (b'{"command":"a","envs":[]}', "envs"),
        (b'{"command":"a","envs":{"SANDMILL_EXECUTION_ID":"x"}}', "envs.SANDMILL_EXECUTION_ID"),
        (b'{"command":"a","envs":{"SANDMILL_ORIG_PATH":"x"}}', "envs.SANDMILL_ORIG_PATH"),
        (b'{"command":"a","envs":{"EXECD_ENVS":"x"}}', "envs.EXECD_ENVS"),
        (b'{"command":"a","envs":{"EXECD_ACCESS_TOKEN":"x"}}', "envs.EXECD_ACCESS_TOKEN"),
        (b'{"command":"a","timeout":0}', "timeout"),
        (b'{"command":"a","timeout":-5}', "timeout"),
        (b'{"command":"a","timeout":true}', "timeout"),
        (b'{"command":"a","timeout":1.5}', "timeout"),
        (b'{"command":"a","timeout":1e999}', "timeout"),
        (b'{"command":"a","timeout":' + b"9" * 5000 + b"}", "JSON"),
        (b'{"command":"a","uid":-1}', "uid"),
        (b'{"command":"a","uid":4294967295}', "uid"),
        (b'{"command":"a","gid":5}', "gid"),
        (b'{"command":"a","merge_stderr":"yes"}', "merge_stderr"),
        (b'{"command":"a","kill_leftovers":1}', "kill_leftovers"),
        (b'{"command":"a","stdin":5}', "stdin"),
        (b'{"command":"a","timeout_seconds":5}', "timeout_seconds"),
    ],
)  # fmt: skip
def test_a_bad_body_is_refused_naming_the_field(execd: RunningExecd, body: bytes, field: str) -> None:
    response = execd.client.post("/command", content=body)
    assert response.status_code == 400
    assert response.json()["code"] == "INVALID_REQUEST_BODY"
    assert field in response.json()["message"]


def test_null_means_absent(execd: RunningExecd) -> None:
    assert execd.run("echo x", cwd=None, envs=None, timeout=None, uid=None, stdin=None).output() == b"x\n"


def test_input_that_no_one_reads_is_bounded(shared_execd: RunningExecd) -> None:
    text = "x" * 12_000_000
    ids = [shared_execd.run("sleep 99", background=True, stdin=text).id for _ in range(2)]
    response = shared_execd.client.post("/command", json={"command": "cat", "stdin": text})
    assert (response.status_code, response.json()["code"]) == (429, "TOO_MANY_COMMANDS")
    assert response.json()["message"].startswith("stdin: ")
    assert response.headers["retry-after"] == "1"
    for execution_id in ids:
        shared_execd.client.delete("/command", params={"id": execution_id, "grace_ms": 0})
    body = {"command": "cat >/dev/null", "stdin": text}
    wait_for(lambda: shared_execd.client.post("/command", json=body).status_code == 200)
