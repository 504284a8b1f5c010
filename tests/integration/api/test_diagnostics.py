"""Diagnostics on the wire, and what becomes of entrypoints: over the fake runtime, then over real sandboxes."""

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import pytest

from runtimes.base import Command
from runtimes.fake import FakeOutcome, FakeRuntime
from runtimes.local.config import LocalConfig
from runtimes.local.runtime import LocalRuntime
from tests.support.live_sandboxes import LiveNode, create_body, live_node, wait_for_state, wait_until
from tests.support.runtime_fixtures import real_kind, runtime_folder  # noqa: F401 -- fixtures are found by name

SERVE = ["serve", "--port", "80"]
RUNS = FakeOutcome(stdout=b"listening\n", stderr=b"warned\n", seconds=1e9)


class Program:
    """What the entrypoint does; changed by tests."""

    def __init__(self) -> None:
        self.outcome: FakeOutcome = RUNS

    def __call__(self, _image: str, command: Command) -> FakeOutcome | None:
        return self.outcome if command.argv is not None and command.argv[0] == "serve" else None


@pytest.fixture
def program() -> Program:
    return Program()


@pytest.fixture
def node(own_api, program) -> Iterator[LiveNode]:
    runtime = FakeRuntime(program)
    runtime.outlives = True
    with live_node(own_api.settings, own_api.world, {"fake": runtime}) as made:
        yield made


@pytest.fixture
def client(own_api, node):
    return own_api.client


def create(client, **changes: Any) -> str:
    response = client.post("/v1/sandboxes", json=create_body(**{"entrypoint": SERVE, **changes}))
    assert response.status_code == 202, response.text
    wait_for_state(client, f"/v1/sandboxes/{response.json()['id']}", "Running")
    return response.json()["id"]


def ask(client, sandbox: str, what: str, **query: Any) -> dict[str, Any]:
    response = client.get(f"/v1/sandboxes/{sandbox}/diagnostics/{what}", params=query)
    assert response.status_code == 200, response.text
    return response.json()


def log(client, sandbox: str, **query: Any) -> str:
    response = client.get(f"/v1/sandboxes/{sandbox}/diagnostics/logs", params=query)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/plain; charset=utf-8"
    assert response.headers["deprecation"] == "true"
    return response.text


def reasons(client, sandbox: str) -> list[str]:
    return [event["reason"] for event in client.get(f"/v1/sandboxes/{sandbox}/record").json()["events"]]


def test_output_is_read_while_the_entrypoint_runs(client, program):
    sandbox = create(client)
    content = ask(client, sandbox, "logs", scope="container")
    assert content == {
        "sandboxId": sandbox,
        "kind": "logs",
        "scope": "container",
        "delivery": "inline",
        "contentType": "text/plain; charset=utf-8",
        "content": "listening\nwarned\n",
        "contentLength": 17,
        "truncated": False,
    }
    program.outcome = dataclasses.replace(RUNS, stdout=b"listening\nserved\n")
    assert log(client, sandbox) == "listening\nserved\nwarned\n"
    assert log(client, sandbox, tail=2, since="10m", container="main") == "served\nwarned\n"


def test_long_output_is_cut_at_its_beginning_and_says_so(client, program):
    program.outcome = dataclasses.replace(
        RUNS, stdout=b"".join(b"%06d\n" % n for n in range(20_000)), stderr=b""
    )
    sandbox = create(client)
    content = ask(client, sandbox, "logs", scope="container")
    lines = content["content"].splitlines()
    assert (content["truncated"], len(lines), lines[0], lines[-1]) == (True, 100, "019900", "019999")
    many = log(client, sandbox, tail=10_000).splitlines()
    # 64 KiB in all, and no half line.
    assert (len(many), many[0]) == ((64 << 10) // 7, f"{20_000 - (64 << 10) // 7:06}")


def test_last_output_is_there_after_the_end(client, program):
    sandbox = create(client)
    program.outcome = dataclasses.replace(RUNS, stdout=b"last words\n", stderr=b"")
    assert client.delete(f"/v1/sandboxes/{sandbox}").status_code == 204
    assert client.get(f"/v1/sandboxes/{sandbox}").status_code == 404
    assert log(client, sandbox) == "last words\n"
    assert "SANDBOX_DELETED" in ask(client, sandbox, "events", scope="lifecycle")["content"]
    assert "state: Terminated" in client.get(f"/v1/sandboxes/{sandbox}/diagnostics/inspect").text


def test_paused_sandbox_shows_what_was_read_before(client, node, program):
    sandbox = create(client)
    log(client, sandbox)
    client.post(f"/v1/sandboxes/{sandbox}/pause")
    wait_for_state(client, f"/v1/sandboxes/{sandbox}", "Paused")
    content = ask(client, sandbox, "logs", scope="container")
    assert content["content"] == "listening\nwarned\n"
    assert "paused" in content["warnings"][0]


def test_node_that_is_away_leaves_what_was_read_before(client, node, monkeypatch):
    sandbox = create(client)
    log(client, sandbox)
    node.lose()
    monkeypatch.setattr("api.wire.diagnostics._ANSWER_SECONDS", 0.3)
    content = ask(client, sandbox, "logs", scope="container")
    assert content["content"] == "listening\nwarned\n"
    assert "has not answered" in content["warnings"][0]
    node.start()
    assert "warnings" not in ask(client, sandbox, "logs", scope="container")


def test_entrypoint_that_fails_at_once_fails_the_sandbox_with_its_last_lines(client, node, program):
    program.outcome = FakeOutcome(exit_code=3, stdout=b"x\n" * 500, stderr=b"no module named app\n")
    response = client.post("/v1/sandboxes", json=create_body(entrypoint=SERVE))
    sandbox, status = response.json()["id"], response.json()["status"]
    assert (status["state"], status["reason"]) == ("Failed", "CONTAINER_EXITED_ERROR")
    assert status["message"].startswith(
        "the entrypoint 'serve' exited with code 3 at once; it wrote at last: x"
    )
    assert status["message"].endswith("no module named app")
    assert len(status["message"]) < 1200
    assert len(log(client, sandbox, tail=1000).splitlines()) == 501
    assert reasons(client, sandbox).count("ENTRYPOINT_EXITED") == 1
    assert list(node.runtimes["fake"].list()) == []
    endpoint = client.get(f"/v1/sandboxes/{sandbox}/endpoints/44772")
    assert (endpoint.status_code, "no module named app" in endpoint.json()["message"]) == (500, True)


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (FakeOutcome(exit_code=0, stdout=b"done\n"), "exited with code 0"),
        (FakeOutcome(signal=9, oom=True), "was ended by the signal SIGKILL (the sandbox ran out of memory)"),
    ],
    ids=["well", "by signal"],
)
def test_later_end_is_an_event_and_the_sandbox_lives_on(client, program, outcome, words, monkeypatch):
    monkeypatch.setattr("workers.outputs._FIRST_SECONDS", 0.0)
    monkeypatch.setattr("workers.sessions._LOOK_SECONDS", 0.1)
    sandbox = create(client)
    program.outcome = outcome
    wait_until(lambda: reasons(client, sandbox), lambda found: "ENTRYPOINT_EXITED" in found)
    time.sleep(0.5)  # further looks tell it no second time
    events = client.get(f"/v1/sandboxes/{sandbox}/record").json()["events"]
    assert [event["message"] for event in events if event["reason"] == "ENTRYPOINT_EXITED"] == [words]
    assert client.get(f"/v1/sandboxes/{sandbox}").json()["status"]["state"] == "Running"
    assert f"entrypoint_ended: {words}" in client.get(f"/v1/sandboxes/{sandbox}/diagnostics/inspect").text


def test_entrypoint_that_ends_well_at_once_is_no_failure(client, program):
    program.outcome = FakeOutcome(exit_code=0, stdout=b"set up\n")
    sandbox = create(client)
    assert log(client, sandbox) == "set up\n"


def test_output_of_a_sandbox_that_died_is_what_was_seen_of_it(client, node, program, monkeypatch):
    monkeypatch.setattr("workers.outputs._FIRST_SECONDS", 0.0)
    monkeypatch.setattr("workers.sessions._LOOK_SECONDS", 0.1)
    sandbox = create(client)
    wait_until(lambda: ask(client, sandbox, "logs", scope="lifecycle"), bool)
    wait_until(
        lambda: node._world.execute("SELECT output FROM sandbox_outputs"),
        lambda rows: [bytes(row["output"]) for row in rows] == [b"listening\nwarned\n"],
    )
    runtime = node.runtimes["fake"]
    for handle in runtime.list():
        runtime.live(handle).is_alive = False
    wait_for_state(client, f"/v1/sandboxes/{sandbox}", "Failed")
    assert log(client, sandbox) == "listening\nwarned\n"


@pytest.mark.parametrize("idle", [["tail", "-f", "/dev/null"], ["sleep", "infinity"]])
def test_sandbox_that_only_waits_has_no_output(client, node, idle):
    sandbox = create(client, entrypoint=idle)
    content = ask(client, sandbox, "logs", scope="container")
    assert (content["content"], content["contentLength"]) == ("", 0)
    assert "only waits" in content["warnings"][0]
    assert client.get(f"/v1/sandboxes/{sandbox}").json()["entrypoint"] == idle


def test_scopes_of_logs_and_events(client, own_api):
    sandbox = create(client)
    key = own_api.rows("SELECT actor FROM sandbox_events WHERE trial_id = %(i)s ORDER BY n", i=sandbox)[0][
        "actor"
    ]
    told = ask(client, sandbox, "events", scope="lifecycle")["content"]
    assert next(line.split()[1:4] for line in told.splitlines()) == ["SANDBOX_ACCEPTED", "by", f"{key}:"]
    runtime = ask(client, sandbox, "events", scope="runtime")["content"]
    assert "CONTAINER_RUNNING by worker:" in runtime
    assert "SANDBOX_ACCEPTED" not in runtime
    everything = ask(client, sandbox, "logs", scope="all")
    assert everything["content"] == f"=== lifecycle ===\n{told}=== container ===\nlistening\nwarned\n"
    assert len(everything["warnings"]) == 1
    assert ask(client, sandbox, "events", scope="all")["warnings"] == everything["warnings"]
    assert ask(client, sandbox, "logs", scope="lifecycle")["content"] == told
    text = client.get(f"/v1/sandboxes/{sandbox}/diagnostics/events", params={"limit": 1})
    assert text.text == told.splitlines(keepends=True)[-1]
    assert text.headers["deprecation"] == "true"


@pytest.mark.parametrize(
    ("path", "query", "code", "words"),
    [
        ("logs", {"scope": "network"}, "DIAGNOSTICS_SCOPE_UNSUPPORTED", "container"),
        ("logs", {"scope": "runtime"}, "DIAGNOSTICS_SCOPE_UNSUPPORTED", "container"),
        ("events", {"scope": "container"}, "DIAGNOSTICS_SCOPE_UNSUPPORTED", "runtime"),
        ("logs", {"since": "yesterday"}, "SANDBOX::INVALID_PARAMETER", "since"),
    ],
)
def test_what_cannot_be_asked_is_refused(client, path, query, code, words):
    sandbox = create(client)
    response = client.get(f"/v1/sandboxes/{sandbox}/diagnostics/{path}", params=query)
    assert (response.status_code, response.json()["code"]) == (400, code)
    assert words in response.json()["message"]


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("logs", {"tail": 0}),
        ("logs", {"tail": 10_001}),
        ("events", {"limit": 501}),
        ("summary", {"tail": 0}),
        ("summary", {"event_limit": 501}),
    ],
)
def test_numbers_out_of_range_are_refused(client, path, query):
    response = client.get(f"/v1/sandboxes/{create(client)}/diagnostics/{path}", params=query)
    assert response.status_code == 422
    assert response.json()["detail"][0]["loc"][-1] == next(iter(query))


def test_inspection_shows_no_secret(client, own_api):
    env = {
        "MY_SECRET": "s1", "github_token": "s2", "DB_PASSWORD_FILE": "s3", "AWS_ACCESS_KEY_ID": "s4", "PLAIN": "shown",
    }  # fmt: skip
    sandbox = create(
        client, env=env, metadata={"team": "blue"}, extensions={"opensandbox.extensions.key": "s5"}
    )
    token = own_api.rows("SELECT access_token FROM sandbox_sessions WHERE trial_id = %(i)s", i=sandbox)[0]
    for path in ("inspect", "summary"):
        response = client.get(f"/v1/sandboxes/{sandbox}/diagnostics/{path}")
        assert response.headers["content-type"] == "text/plain; charset=utf-8"
        text = response.text
        assert "  PLAIN: shown\n" in text
        assert "  team: blue\n" in text
        assert "  MY_SECRET: ***\n" in text
        assert all(
            secret not in text.replace("\n", " ").split(" ") for secret in ("s1", "s2", "s3", "s4", "s5")
        )
        assert token["access_token"] not in text


def test_summary_has_all_parts(client):
    sandbox = create(client)
    text = client.get(
        f"/v1/sandboxes/{sandbox}/diagnostics/summary", params={"tail": 1, "event_limit": 1}
    ).text
    parts = [line for line in text.splitlines() if line.startswith("===")]
    assert parts == ["=== Sandbox ===", "=== Events (last 1) ===", "=== Logs (last 1 lines) ==="]
    assert text.endswith("warned\n")
    assert "listening" not in text


@pytest.mark.parametrize("path", ["logs", "events", "inspect", "summary"])
def test_others_learn_nothing(client, own_api, path):
    sandbox = create(client)
    with own_api.new_client(tenant="other") as other:
        response = other.get(f"/v1/sandboxes/{sandbox}/diagnostics/{path}")
        assert (response.status_code, response.json()["code"]) == (404, "DOCKER::SANDBOX_NOT_FOUND")
    assert client.get(f"/v1/sandboxes/no-id/diagnostics/{path}").status_code == 404


@pytest.fixture
def local(own_api, tmp_path, runtime_folder):  # noqa: F811
    """A node with real sandboxes, and how to give it a new runtime object, as a new worker has."""
    config = LocalConfig(state_dir=tmp_path / "local", bundle_dir=runtime_folder / "bundles", outlives=True)
    made = [LocalRuntime(config)]
    runtimes: dict[str, Any] = {"local": made[0]}
    with live_node(own_api.settings, own_api.world, runtimes) as node:

        def restart() -> None:
            node.lose()
            made.append(LocalRuntime(config))
            runtimes["local"] = made[-1]
            node.start()

        yield restart
    for runtime in reversed(made):
        runtime.close()


ON_LOCAL = {"extensions": {"sandmill.runtime": "local"}}


def test_real_entrypoint_is_heard_by_a_worker_that_adopted_it_and_after_the_end(local, own_api):
    client = own_api.client
    script = "echo one; echo two >&2; while ! [ -e /tmp/go ]; do sleep 0.1; done; echo three; exit 4"
    sandbox = create(client, entrypoint=["sh", "-c", script], **ON_LOCAL)
    assert log(client, sandbox) == "one\ntwo\n"
    local()
    assert log(client, sandbox) == "one\ntwo\n"
    client.delete(f"/v1/sandboxes/{sandbox}")
    assert log(client, sandbox) == "one\ntwo\n"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["sh", "-c", "echo no luck >&2; exit 7"], ["'sh' exited with code 7 at once", "no luck"]),
        (["/no/such/program"], ["/no/such/program", "No such file"]),
        (["sh", "-c", "kill -9 $$"], ["was ended by the signal SIGKILL at once", "without a word"]),
    ],
    ids=["exits", "missing", "killed"],
)
def test_real_entrypoint_that_fails_at_once_says_why(local, own_api, argv, words):
    response = own_api.client.post("/v1/sandboxes", json=create_body(entrypoint=argv, **ON_LOCAL))
    status = wait_for_state(own_api.client, f"/v1/sandboxes/{response.json()['id']}", "Failed")["status"]
    for word in words:
        assert word in status["message"]
