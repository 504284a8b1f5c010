import threading

import psycopg
import pytest

from tests.integration.api.conftest import make_settings, open_api


@pytest.fixture
def impatient_api(database_url, redis_url, tmp_path):
    settings = make_settings(database_url, redis_url, tmp_path / "home", request_deadline_seconds=0.5)
    with open_api(settings) as running, running.new_tenant() as api:
        yield api


def test_frozen_database_is_503_in_time_and_comes_back_by_itself(impatient_api, database_url):
    client = impatient_api.client
    assert client.get("/v1/batches").status_code == 200
    with psycopg.connect(database_url) as blocker:
        blocker.execute("LOCK TABLE batches IN ACCESS EXCLUSIVE MODE")
        answer = client.get("/v1/batches", timeout=5)
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
        assert int(answer.headers["Retry-After"]) > 0
        assert client.get("/healthz").status_code == 200
    assert client.get("/v1/batches").status_code == 200


def test_frozen_database_is_told_to_official_clients_in_their_words(impatient_api, database_url):
    client = impatient_api.client
    with psycopg.connect(database_url) as blocker:
        blocker.execute("LOCK TABLE sandbox_sessions IN ACCESS EXCLUSIVE MODE")
        answer = client.get("/v1/sandboxes", timeout=5)
        assert (answer.status_code, answer.json()["code"]) == (503, "SANDBOX::UNAVAILABLE")
        assert int(answer.headers["Retry-After"]) > 0
    assert client.get("/v1/sandboxes").status_code == 200


def test_slow_upload_is_not_cut_by_the_deadline(impatient_api):
    """The deadline counts from the end of the body."""

    def slowly():
        for _ in range(4):
            threading.Event().wait(0.3)
            yield b"part"

    answer = impatient_api.client.post("/v1/blobs", content=slowly())
    assert answer.status_code in {200, 201}, answer.text
