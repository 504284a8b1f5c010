"""The API killed while it passes a command on: its client is told, and nothing in the sandbox is harmed."""

import json
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.live import LiveServer, live_server

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(os.geteuid() != 0, reason="the zygote needs root"),
]

API = "api.app:create_app"


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[LiveServer]:
    with live_server("local", tmp_path_factory.mktemp("live-faults")) as made:
        yield made


@pytest.fixture
def client(server) -> Iterator[httpx.Client]:
    headers = {"OPEN-SANDBOX-API-KEY": server.key}
    with httpx.Client(base_url=f"{server.stack.api_url}/v1", headers=headers, timeout=30) as made:
        yield made


def eventually(ask: Any, *, seconds: float = 60.0) -> httpx.Response:
    """Ask until there is a 200."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            answer = ask()
            if answer.status_code == 200:
                return answer
            said = answer.text
        except httpx.TransportError as error:
            said = repr(error)
        assert time.monotonic() < deadline, said
        threading.Event().wait(0.1)


def output_of(answer: httpx.Response) -> str:
    """What a command wrote, by the events of its answer."""
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if "{" in line]
    return "".join(event["text"] for event in map(json.loads, lines) if event["type"] == "stdout").strip()


def test_api_killed_under_a_command_tells_its_client_and_loses_no_sandbox(server, client):
    body = {
        "image": {"uri": server.image},
        "timeout": 600,
        "resourceLimits": {"cpu": "1", "memory": "256Mi"},
        "entrypoint": ["tail", "-f", "/dev/null"],
    }
    made = client.post("/sandboxes", json=body)
    assert made.status_code == 202, made.text
    path = f"/sandboxes/{made.json()['id']}"
    eventually(lambda: client.get(f"{path}/endpoints/44772"))
    endpoint = client.get(f"{path}/endpoints/44772", params={"use_server_proxy": "true"}).json()
    headers = endpoint["headers"]
    run = f"{path}/proxy/44772/command"
    script = "echo begun; sleep 600; echo never"

    def read_and_kill() -> None:
        with client.stream("POST", run, json={"command": script}, headers=headers) as stream:
            for line in stream.iter_lines():
                if "begun" in line:
                    server.stack.kill(API)

    with pytest.raises(httpx.TransportError):
        read_and_kill()
    eventually(lambda: client.get("/sandboxes"))
    seen = client.get(path).json()
    assert seen["status"]["state"] == "Running"
    again = eventually(lambda: client.post(run, json={"command": "echo after"}, headers=headers))
    assert output_of(again) == "after"
    # Its client has left, and so has the command.
    count = "cat /proc/[0-9]*/comm | grep -c sleep"
    deadline = time.monotonic() + 30
    while output_of(client.post(run, json={"command": count}, headers=headers)) != "0":
        assert time.monotonic() < deadline
        threading.Event().wait(0.2)
    beside = client.post(run, json={"command": f"sleep 1 & {count}"}, headers=headers)
    assert output_of(beside) == "1"  # one that is there would have been seen
    assert client.delete(path).status_code == 204
    assert client.get(path).status_code == 404
