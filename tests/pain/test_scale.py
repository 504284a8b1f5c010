"""What users of similar services found wrong under many calls at once, against one running installation.

| case | by |
|---|---|
| B-128 | below, with 64 sandboxes in place of 128: they are told to run before their first command does |
| B-130 | below, with creates that the database holds up and creates whose bodies do not come |
| B-131 | below; that the client spreads its repeats: `tests/unit/sdk/test_retry.py` |
| B-133 | below, 50 rounds in place of 500 |
"""

import contextlib
import json
import socket
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest

from launcher.ports import find_free_port
from launcher.programs import api_command
from tests.support.installation import Installation, fake, installation, local, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    with installation(tmp_path_factory.mktemp("scale")) as running:
        yield running


def test_nothing_runs_before_it_is_shown_to_run(home: Installation):
    """B-128: what is seen in the sandbox is never ahead of what the API says."""
    batch = home.submit(local("date -u +%s.%N", trials={"count": 64}))
    home.wait(batch)
    for trial in home.trials(batch):
        assert trial["outcome"] == "passed"
        (attempt,) = home.http.get(f"/v1/trials/{trial['id']}").json()["attempts"]
        text = home.http.get(f"/v1/attempts/{attempt['id']}/logs", params={"format": "text"}).text
        inside = datetime.fromtimestamp(float(text), UTC)
        assert datetime.fromisoformat(attempt["started_at"]) <= inside
        assert inside <= datetime.fromisoformat(attempt["finished_at"])


@contextlib.contextmanager
def creates_that_the_database_holds_up(home: Installation, count: int):
    """Creates that wait for a lock, as behind a migration or a stuck transaction; all end well afterwards."""
    http = home.new_tenant("held-up")
    with http, ThreadPoolExecutor(count) as pool:
        with psycopg.connect(home.database_url) as blocker:
            blocker.execute("LOCK TABLE batches IN SHARE MODE")
            answers = [pool.submit(http.post, "/v1/jobs", json=fake()) for _ in range(count)]
            waiting = (
                "SELECT pid FROM pg_stat_activity WHERE application_name = 'sandmill-api'"
                " AND wait_event_type = 'Lock'"
            )
            wait_for(lambda: len(home.rows(waiting)) >= 4)
            yield
        assert Counter(answer.result().status_code for answer in answers) == {202: count}


@contextlib.contextmanager
def creates_whose_bodies_do_not_come(home: Installation, count: int):
    parts = urlsplit(home.stack.api_url)
    head = (
        f"POST /v1/batches HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {home.stack.api_key}\r\n"
        "Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n{"
    )
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            sender = stack.enter_context(socket.create_connection((parts.hostname, parts.port), timeout=10))
            sender.sendall(head.encode())
        yield


@pytest.mark.parametrize("count", [10, 60])
@pytest.mark.parametrize("held_up", [creates_that_the_database_holds_up, creates_whose_bodies_do_not_come])
def test_others_are_answered_while_creates_wait(home: Installation, held_up, count: int):
    """B-130: neither the connections nor the threads of the API are all theirs."""
    with held_up(home, count):
        for _ in range(20):
            assert home.http.get("/healthz", timeout=5).status_code == 200
            assert home.http.get("/v1/batches", timeout=5).status_code == 200
            assert home.http.get("/readyz", timeout=5).status_code == 200


@pytest.mark.parametrize("count", [150, 1000])
def test_a_burst_of_creates_is_accepted_or_told_when_to_come_again(home: Installation, count: int):
    """B-131: from one process, each over a connection of its own, all opened before the first is used."""
    tenant = f"burst-{count}"
    http = home.new_tenant(tenant)
    http.close()
    assert home.admin.post(f"/v1/admin/tenants/{tenant}/pause").status_code == 200
    parts = urlsplit(home.stack.api_url)
    body = json.dumps(fake()).encode()
    key = http.headers["Authorization"]
    head = (
        f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: {key}\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with contextlib.ExitStack() as stack:
        senders = [
            stack.enter_context(socket.create_connection((parts.hostname, parts.port), timeout=60))
            for _ in range(count)
        ]
        for sender in senders:
            sender.sendall(head.encode() + body)
        answers = [read_answer(sender) for sender in senders]
    told = Counter(status for status, _ in answers)
    assert set(told) <= {202, 429, 503}
    assert told[202] >= 150
    assert all("retry-after:" in head.lower() for status, head in answers if status != 202)
    stored = home.rows(
        "SELECT count(*) AS n FROM trials WHERE tenant_id = (SELECT id FROM tenants WHERE name = %s)", tenant
    )
    assert stored[0]["n"] >= told[202]


def read_answer(sender: socket.socket) -> tuple[int, str]:
    """All of it; ConnectionResetError is what must not happen."""
    data = b""
    while piece := sender.recv(65536):
        data += piece
    head = data.partition(b"\r\n\r\n")[0].decode()
    return int(head.split()[1]), head


def test_what_was_written_is_seen_by_every_api(home: Installation):
    """B-133: made by one process and looked at through another, and the other way round."""
    port = find_free_port()
    with home.program(api_command("127.0.0.1", port)[1:]):
        other = httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=home.http.headers, timeout=30)
        with other:
            wait_for(lambda: answers(other))
            for number in range(50):
                one, two = (home.http, other) if number % 2 else (other, home.http)
                batch = one.post("/v1/jobs", json=fake("sleep 60")).json()["batch_id"]
                assert two.get("/v1/batches", params={"limit": 1}).json()["items"][0]["id"] == batch
                assert two.get(f"/v1/batches/{batch}").json()["trials"]["total"] == 1
                trials = f"/v1/batches/{batch}/trials"
                assert len(two.get(trials).json()["items"]) == 1
                assert one.post(f"/v1/batches/{batch}/pause", json={}).is_success
                assert two.get(trials).json()["items"][0]["paused"] is True
                assert two.post(f"/v1/batches/{batch}/cancel", json={}).is_success
                found = one.get(trials).json()["items"][0]
                assert found["cancel_requested"] or found["state"] == "finished"
                assert one.get(trials, params={"state": "queued"}).json()["items"] == []
                assert one.get(trials, params={"state": "paused"}).json()["items"] == []


def answers(http: httpx.Client) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return http.get("/readyz").status_code == 200
    threading.Event().wait(0.1)
    return False
