"""Health, metrics, log lines, and services that go away and come back."""

import json
import os
import socket
import subprocess
import sys
import threading
import time

import httpx
import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families
from redis import Redis
from sqlalchemy.engine import make_url

from services.wake import CANCEL_CHANNEL, SCHEDULER_CHANNEL, Wake
from tests.integration.api.conftest import ApiWorld, make_batch, make_job, make_settings, open_api, submit
from tests.support.launching import REPOSITORY


def test_health_version_and_readiness_need_no_key(api):
    with api.new_client() as client:
        assert client.get("/healthz").json() == {"status": "ok"}
        assert client.get("/readyz").json() == {"status": "ok"}
        assert client.get("/version").json()["name"] == "sandmill-server"
        assert "paths" in client.get("/openapi.json").json()
        described = client.get("/v1/lifecycle.yaml")
    assert described.headers["Content-Type"].startswith("application/yaml")
    assert described.content == (REPOSITORY / "specs/lifecycle.yaml").read_bytes()


def metrics(api: ApiWorld) -> dict[str, dict[tuple, float]]:
    """Samples by name, then by their labels."""
    found: dict[str, dict[tuple, float]] = {}
    for family in text_string_to_metric_families(api.client.get("/metrics").text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def test_metrics_count_trials_and_requests_under_closed_labels(own_api):
    api = own_api
    batch = submit(api.client, make_batch(jobs=[make_job(trials={"count": 3})]))
    trial = api.client.get(f"/v1/batches/{batch['id']}/trials").json()["items"][0]
    api.client.post(f"/v1/trials/{trial['id']}/cancel")
    api.client.get("/no/such/place")
    api.client.request("BREW", "/v1/batches")
    found = metrics(api)

    assert found["sandmill_trials_open"][(("state", "queued"),)] == 2
    assert found["sandmill_trials_finished"][(("outcome", "cancelled"),)] == 1
    assert found["sandmill_queue_oldest_seconds"][()] > 0
    assert found["sandmill_database_up"][()] == 1
    labels = {dict(key)["route"] for key in found["sandmill_api_requests_total"]}
    assert {"/v1/batches", "/v1/trials/{trial_id}/cancel", "unmatched"} <= labels
    assert not any(trial["id"] in label or "/no/such" in label for label in labels)
    methods = {dict(key)["method"] for key in found["sandmill_api_requests_total"]}
    assert methods <= {"GET", "POST", "other"}


def test_the_served_program_leaves_one_line_per_request_with_its_tenant(api):
    """As its own process: logging is set up once per process."""
    environment = {
        **os.environ,
        "DATABASE_URL": api.settings.database_url.get_secret_value(),
        "REDIS_URL": api.settings.redis_url.get_secret_value(),
        "SANDMILL_HOME": str(api.settings.home),
        "SANDMILL_RUNTIME": "fake",
    }
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "uvicorn",
        "--factory",
        "api.app:create_app",
        "--port",
        str(port),
        "--no-access-log",
    ]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as served:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=api.client.headers) as client:
                wait_until_up(client)
                submit(client)
                client.get("/v1/batches?cursor=x", headers={"X-Request-ID": "mine"})
        finally:
            served.terminate()
            text = served.communicate(timeout=20)[1]
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    requests = [line for line in lines if line["event"] == "http_request"]
    assert [(r["method"], r["route"], r["status"], r["tenant_id"]) for r in requests] == [
        ("POST", "/v1/batches", 202, api.tenant_id),
        ("GET", "/v1/batches", 422, api.tenant_id),
    ], text
    assert requests[1]["request_id"] == "mine"
    assert api.key[10:] not in text


def wait_until_up(client: httpx.Client) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            client.get("/healthz")
        except httpx.ConnectError:
            assert time.monotonic() < deadline
            threading.Event().wait(0.05)
        else:
            return


def test_creates_and_cancels_wake_those_concerned(own_api):
    api = own_api
    node = api.world.session(slots=1).node_id
    client = Redis.from_url(api.settings.redis_url.get_secret_value())
    with client, client.pubsub(ignore_subscribe_messages=True) as heard:
        heard.subscribe(SCHEDULER_CHANNEL, CANCEL_CHANNEL.format(node_id=node))

        def next_message() -> dict:
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline:
                message = heard.get_message(timeout=0.1)
                if message is not None:
                    return message
            pytest.fail("nothing was heard")

        batch = submit(api.client)
        assert next_message()["channel"] == SCHEDULER_CHANNEL.encode()
        api.world.dispatcher.tick()
        api.client.post(f"/v1/batches/{batch['id']}/cancel")
        told = next_message()
        assert told["channel"] == CANCEL_CHANNEL.format(node_id=node).encode()
        assert len(json.loads(told["data"])["trial_ids"]) == 1


def test_without_redis_all_but_readiness_works(database_url, tmp_path):
    settings = make_settings(database_url, "redis://127.0.0.1:1/0", tmp_path / "home")
    with open_api(settings) as running, running.new_tenant() as api:
        submit(api.client)
        refused = api.client.get("/readyz")
        assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")


def test_a_redis_that_does_not_answer_costs_one_timeout_only():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = Wake.connect(f"redis://127.0.0.1:{silent.getsockname()[1]}/0")
        wake = Wake(client)
        started = time.monotonic()
        for _ in range(50):
            wake.scheduler()
        assert time.monotonic() - started < 3
        client.close()


def test_a_database_away_is_503_and_comes_back_by_itself(own_services, tmp_path):
    from migrations.migrate import upgrade  # noqa: PLC0415 -- only this test makes its own schema

    upgrade(own_services.database_url)
    settings = make_settings(
        own_services.database_url, own_services.redis_url, tmp_path / "home", api_pool_size=3
    )
    with open_api(settings) as running, running.new_tenant() as api:
        submit(api.client)
        api.client.get("/v1/batches")
        with blocked_database(own_services.database_url):
            for path in ("/v1/batches", "/readyz"):
                refused = api.client.get(path)
                assert refused.status_code == 503, refused.text
                assert refused.json()["code"] == "unavailable"
                assert refused.headers["Retry-After"] == "2"
            refused = api.client.post("/v1/batches", json=make_batch())
            assert refused.status_code == 503
            assert api.client.get("/healthz").status_code == 200
        deadline = time.monotonic() + 10
        while api.client.get("/v1/batches").status_code != 200:
            assert time.monotonic() < deadline
            threading.Event().wait(0.1)
        submit(api.client)
        assert api.count("batches") == 2


class blocked_database:  # noqa: N801 -- used as a verb
    """Nobody may connect, and all who are connected are thrown out: what a client sees of a server that went down."""

    def __init__(self, url: str) -> None:
        parsed = make_url(url)
        self._name = parsed.database
        self._admin = parsed.set(database="template1", drivername="postgresql").render_as_string(
            hide_password=False
        )

    def __enter__(self) -> None:
        self._execute("ALTER DATABASE {} ALLOW_CONNECTIONS false")
        self._execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname <> current_database()"
        )

    def __exit__(self, *_: object) -> None:
        self._execute("ALTER DATABASE {} ALLOW_CONNECTIONS true")

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self._admin, autocommit=True) as connection:
            connection.execute(psycopg.sql.SQL(statement).format(psycopg.sql.Identifier(self._name)))
