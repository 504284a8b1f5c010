"""Who may call, and that nobody reaches what belongs to others."""

import re
import threading
import time

import httpx
import pytest
from psycopg.types.json import Jsonb

from core.ids import new_id
from services.tenants import create_api_key, ensure_tenant, revoke_api_key
from tests.integration.api.conftest import ApiWorld, first_trial, make_batch, make_job, submit
from tests.integration.api.test_logs import make_writer

OPEN_ROUTES = {"/healthz", "/readyz", "/version", "/metrics"}
BODIES = {"/v1/batches/{batch_id}/jobs": {"jobs": [make_job()]}}
MISSING_DIGEST = "sha256:" + "0" * 64


def routes(api: ApiWorld) -> list[tuple[str, str]]:
    paths = api.app.openapi()["paths"].items()
    return [
        (method.upper(), path) for path, methods in paths for method in methods if path not in OPEN_ROUTES
    ]


def victim(api: ApiWorld) -> dict[str, str]:
    """One of each thing, all of api's tenant."""
    writer = make_writer(api)
    trial = api.client.get(f"/v1/trials/{writer.trial_id}").json()
    digest = api.client.post("/v1/blobs", content=f"secret {trial['id']}").json()["digest"]
    api.rows(
        "INSERT INTO artifacts (trial_id, fence, path, tenant_id, digest, size_bytes)"
        " VALUES (%(t)s, 1, '/out.txt', %(me)s, %(d)s, 6)",
        t=trial["id"],
        d=digest,
    )
    writer.write(b"secret")
    writer.redis.close()
    api.rows(
        "INSERT INTO dead_letters (trial_id, tenant_id, batch_id, job_id, code, failure, attempts, lost_on)"
        " VALUES (%(t)s, %(me)s, %(b)s, %(j)s, 'poison', %(f)s, 1, '{}')",
        t=trial["id"],
        b=trial["batch_id"],
        j=trial["job_id"],
        f=Jsonb({"class": "infra", "code": "poison", "message": "secret", "retryable": False}),
    )
    api.rows(
        "INSERT INTO batch_history (id, tenant_id, batch, outcomes)"
        " SELECT id, tenant_id, to_jsonb(b) || jsonb_build_object('finished_at', now()), '{}'"
        " FROM batches b WHERE id = %(b)s",
        b=trial["batch_id"],
    )
    body = {"name": "mine", "url": "http://127.0.0.1:9/", "events": ["trial.finished"]}
    webhook = api.client.post("/v1/webhooks", json=body).json()
    delivery = new_id()
    api.rows(
        "INSERT INTO webhook_deliveries (id, tenant_id, endpoint_id, target, event, subject_id, payload)"
        " VALUES (%(id)s, %(me)s, %(w)s, 'http://127.0.0.1:9', 'trial.finished', %(t)s, '{}')",
        id=delivery,
        w=webhook["id"],
        t=trial["id"],
    )
    schedule = {"name": "mine", "cron": "0 3 * * *", "batch": make_batch()}
    return {
        "schedule_id": api.client.post("/v1/schedules", json=schedule).json()["id"],
        "webhook_id": webhook["id"],
        "delivery_id": str(delivery),
        "batch_id": trial["batch_id"],
        "job_id": trial["job_id"],
        "trial_id": trial["id"],
        "attempt_id": str(writer.attempt_id),
        "digest": digest,
        "path": "out.txt",
    }


def fill(path: str, values: dict[str, str]) -> str:
    return path.format(**values)


def snapshot(api: ApiWorld) -> list:
    tables = (
        "batches",
        "jobs",
        "trials",
        "attempts",
        "blobs",
        "artifacts",
        "idempotency",
        "dead_letters",
        "schedules",
        "webhook_endpoints",
        "webhook_deliveries",
        "log_chunks",
        "log_heads",
    )
    return [
        api.rows(f"SELECT count(*), md5(string_agg(t::text, '|' ORDER BY t::text)) FROM {table} t")
        for table in tables
    ]


@pytest.mark.breaks_invariants("attempts_miscounted", reason="its attempt is inserted by hand")
def test_every_id_of_another_tenant_is_as_if_it_did_not_exist(own_api):
    api = own_api
    mine = victim(api)
    none = {**{name: str(new_id()) for name in mine}, "digest": MISSING_DIGEST, "path": "none"}
    # Those of operators know no tenant.
    with_ids = [(m, path) for m, path in routes(api) if "{" in path and not path.startswith("/v1/admin/")]
    assert len(with_ids) >= 14
    with api.new_client("stranger") as stranger:
        before = snapshot(api)
        for method, path in with_ids:
            own = api.client.request(method, fill(path, mine)) if method in {"GET", "HEAD"} else None
            assert own is None or own.status_code == 200, (method, path)
            body = (
                {"json": BODIES.get(path, {})}
                if method == "PATCH" or path in BODIES or path.endswith("/regrade")
                else {}
            )
            foreign = stranger.request(method, fill(path, mine), **body)
            missing = stranger.request(method, fill(path, none), **body)
            assert (foreign.status_code, missing.status_code) == (404, 404), (method, path)
            if method != "HEAD":
                assert _without_ids(foreign) == _without_ids(missing), (method, path)
        assert snapshot(api) == before
        for path in ("/v1/batches", "/v1/jobs"):
            assert stranger.get(path).json() == {"items": [], "next_cursor": None}


def _without_ids(response: httpx.Response) -> dict:
    body = response.json()
    return {"code": body["code"], "field": body["field"], "kind": body["message"].rsplit(" ", 1)[0]}


def test_a_batch_that_names_a_foreign_blob_is_refused_whole(api):
    digest = api.client.post("/v1/blobs", content=b"mine alone").json()["digest"]
    with api.new_client("stranger") as stranger:
        own = stranger.post("/v1/blobs", content=b"theirs").json()["digest"]
        jobs = [
            make_job(key="a", inputs=[{"path": "/a", "blob": own}]),
            make_job(key="b", inputs=[{"path": "/a", "blob": own}, {"path": "/b", "blob": digest}]),
        ]
        refused = stranger.post("/v1/batches", json=make_batch(jobs=jobs))
        assert (refused.status_code, refused.json()["field"]) == (422, "jobs[1].inputs[1].blob")
        assert stranger.get("/v1/batches").json()["items"] == []


def test_a_blob_both_have_sent_is_both_tenants(api):
    digest = api.client.post("/v1/blobs", content=b"common").json()["digest"]
    with api.new_client("stranger") as stranger:
        assert stranger.get(f"/v1/blobs/{digest}").status_code == 404
        assert stranger.post("/v1/blobs", content=b"common").status_code == 201
        assert stranger.get(f"/v1/blobs/{digest}").content == b"common"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer x"},
        {"Authorization": "Bearer sm_" + "x" * 40},
        {"Authorization": "Bearer sm_" + "x" * 39},
        {"Authorization": "Bearer sm_" + "x" * 10_000},
        {"Authorization": "Bearer ' OR 1=1 --"},
        {"Authorization": b"Bearer \xff\xfe"},
        {"Authorization": "Basic dXNlcjpwYXNz"},
        {"OPEN-SANDBOX-API-KEY": "sm_" + "x" * 40},
        {"X-API-Key": "{key}"},
        {"Authorization": "{key}"},
        {"Authorization": "Bearer {prefix}"},
        {"Authorization": "Bearer {key}x"},
        {"Cookie": "key={key}"},
    ],
    ids=lambda headers: str(headers)[:50],
)
def test_bad_keys_get_one_and_the_same_answer(api, headers):
    filled = {
        name: value
        if isinstance(value, bytes)
        else value.replace("{key}", api.key).replace("{prefix}", api.key[:10])
        for name, value in headers.items()
    }
    with api.new_client() as client:
        response = client.get("/v1/batches", headers=filled)
    body = response.json()
    assert response.status_code == 401
    assert response.headers["WWW-Authenticate"] == "Bearer"
    assert (body["code"], body["message"]) == (
        "unauthenticated",
        "send a valid API key: 'Authorization: Bearer sm_...'",
    )


def test_every_route_but_those_of_operation_needs_a_key(api):
    with api.new_client() as client:
        for method, path in routes(api):
            assert client.request(method, re.sub(r"\{\w+\}", "x", path)).status_code == 401, (method, path)


def test_both_headers_take_the_same_keys(api):
    with api.new_client() as client:
        for headers in ({"Authorization": f"bearer {api.key}"}, {"OPEN-SANDBOX-API-KEY": api.key}):
            assert client.get("/v1/batches", headers=headers).status_code == 200


def test_a_key_is_stored_as_its_hash_only(api):
    for row in api.rows("SELECT k::text AS line FROM api_keys k WHERE tenant_id = %(me)s"):
        assert api.key not in row["line"]
        assert api.key[10:] not in row["line"]


def test_a_revoked_key_is_dead_within_five_seconds(own_api):
    api = own_api
    assert api.client.get("/v1/batches").status_code == 200
    key_id = api.rows("SELECT id FROM api_keys")[0]["id"]
    with api.engine.begin() as connection:
        assert revoke_api_key(connection, api.tenant_id, key_id)
        assert not revoke_api_key(connection, api.tenant_id, key_id)
    started = time.monotonic()
    while api.client.get("/v1/batches").status_code != 401:
        assert time.monotonic() - started < 6
        threading.Event().wait(0.2)


@pytest.mark.breaks_invariants("attempts_miscounted", reason="its attempt is inserted by hand")
def test_a_stream_ends_soon_after_its_key_is_revoked(own_api, monkeypatch):
    api = own_api
    monkeypatch.setattr("api.log_stream.CHECK_SECONDS", 0.2)
    monkeypatch.setattr("services.tenants._CACHE_SECONDS", 0.2)
    writer = make_writer(api)
    # A stream that goes on is silent until its first heartbeat, and so runs into this timeout.
    with api.client.stream("GET", f"/v1/attempts/{writer.attempt_id}/logs?follow=1", timeout=8) as response:
        writer.wait_for_readers()
        api.rows("UPDATE api_keys SET revoked_at = clock_timestamp()")
        assert "event: end" not in response.read().decode()
    writer.redis.close()


def test_an_address_with_too_many_bad_keys_is_slowed_but_good_keys_are_not(own_api):
    api = own_api
    with api.new_client(key="sm_" + "x" * 40) as client:
        statuses = [client.get("/v1/batches").status_code for _ in range(105)]
        assert statuses[:100] == [401] * 100
        assert statuses[-1] == 429
        assert client.get("/v1/batches").headers["Retry-After"]
    assert api.client.get("/v1/batches").status_code == 200


def test_keys_given_by_name_are_checked_and_unique(api):
    key = "sm_" + "A1" * 20
    with api.engine.begin() as connection:
        one = ensure_tenant(connection, f"t-{new_id()}")
        two = ensure_tenant(connection, f"t-{new_id()}")
        assert ensure_tenant(connection, "same") == ensure_tenant(connection, "same")
        assert create_api_key(connection, one, "boot", key=key) == key
        assert create_api_key(connection, one, "boot", key=key) == key
        with pytest.raises(Exception, match="in use"):
            create_api_key(connection, two, "boot", key=key)
        for bad in ("", "sm_", key + "x", "sk_" + "A1" * 20):
            with pytest.raises(Exception, match="sm_"):
                create_api_key(connection, one, "boot", key=bad)
        with pytest.raises(Exception, match="tenant name"):
            ensure_tenant(connection, "a b")


def test_a_method_override_changes_nothing(api):
    batch = submit(api.client)
    response = api.client.post(
        f"/v1/batches/{batch['id']}", headers={"X-HTTP-Method-Override": "DELETE"}, json={}
    )
    assert response.status_code == 405
    assert first_trial(api.client, batch["id"])["state"] == "queued"
