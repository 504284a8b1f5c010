"""Operators govern tenants: limits that make sense and hold, pauses, keys, dead letters."""

import json

import pytest

from core.ids import new_id
from services.tenants import create_admin_key
from tests.integration.api.conftest import make_job, submit

LIMITS = {
    "weight": 2.5,
    "class": 3,
    "max_running": 7,
    "max_queued": 100,
    "max_cpu_millicores": 4000,
    "max_memory_bytes": 1 << 33,
    "max_gpu": 1,
    "rate_per_second": 2.0,
    "rate_burst": 10,
    "budget_period_seconds": 3600,
    "budget_cpu_seconds": 1000,
    "guaranteed_share": 0.5,
}


@pytest.fixture
def admin(own_api):
    with own_api.engine.begin() as connection:
        key = create_admin_key(connection, "operator")
    with own_api.new_client(key=key) as client:
        yield client


def name_of(api):
    return api.rows("SELECT name FROM tenants WHERE id = %(me)s")[0]["name"]


def test_tenant_is_made_with_limits_and_works_with_its_key(own_api, admin):
    made = admin.post("/v1/admin/tenants", json={"name": "research", **LIMITS})
    assert made.status_code == 201, made.text
    assert {name: made.json()[name] for name in LIMITS} == LIMITS
    assert admin.get(made.headers["location"]).json() == made.json()
    key = admin.post("/v1/admin/tenants/research/keys", json={"name": "ci"}).json()
    assert (key["role"], key["tenant"]) == ("tenant", "research")
    with own_api.new_client(key=key["key"]) as client:
        submit(client)
        assert client.get("/v1/batches").json()["items"]
        assert own_api.client.get("/v1/batches").json()["items"] == []
    assert [k["name"] for k in admin.get("/v1/admin/tenants/research/keys").json()["items"]] == ["ci"]
    again = admin.post("/v1/admin/tenants", json={"name": "research"})
    assert (again.status_code, again.json()["field"]) == (409, "name")


def test_change_keeps_what_it_does_not_name_and_null_takes_away(own_api, admin):
    admin.post("/v1/admin/tenants", json={"name": "research", **LIMITS})
    changed = admin.patch(
        "/v1/admin/tenants/research", json={"max_running": 0, "max_gpu": None, "guaranteed_share": None}
    ).json()
    assert {name: changed[name] for name in LIMITS} == {
        **LIMITS,
        "max_running": 0,
        "max_gpu": None,
        "guaranteed_share": None,
    }
    stale = admin.patch("/v1/admin/tenants/research", json={"weight": 9, "version": changed["version"] - 1})
    assert (stale.status_code, stale.json()["field"]) == (409, "version")
    fresh = admin.patch("/v1/admin/tenants/research", json={"weight": 9, "version": changed["version"]})
    assert (fresh.status_code, fresh.json()["weight"]) == (200, 9.0)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"max_running": -1}, "max_running"),
        ({"max_running": None}, "max_running"),
        ({"max_running": 10**12}, "max_running"),
        ({"max_running": 1.5}, "max_running"),
        ({"max_running": "5"}, "max_running"),
        ({"max_queued": -5}, "max_queued"),
        ({"max_cpu_millicores": -1}, "max_cpu_millicores"),
        ({"max_memory_bytes": 1 << 63}, "max_memory_bytes"),
        ({"max_gpu": -1}, "max_gpu"),
        ({"weight": 0}, "weight"),
        ({"weight": -1}, "weight"),
        ({"class": 10}, "class"),
        ({"rate_per_second": 0}, "rate_per_second"),
        ({"rate_burst": 5}, "rate_burst"),
        ({"rate_per_second": 1, "rate_burst": 0}, "rate_burst"),
        ({"budget_cpu_seconds": 100}, "budget_cpu_seconds"),
        ({"budget_period_seconds": 3600}, "budget_period_seconds"),
        ({"budget_period_seconds": 1, "budget_cpu_seconds": 1}, "budget_period_seconds"),
        ({"guaranteed_share": 1.5}, "guaranteed_share"),
        ({"guaranteed_share": 0.5, "max_running": 0}, "guaranteed_share"),
        ({"guaranteed_share": 0.5, "max_cpu_millicores": 0}, "guaranteed_share"),
        ({"max_runing": 5}, "max_runing"),
    ],
)
def test_limits_that_make_no_sense_are_refused_by_name_and_change_nothing(own_api, admin, change, field):
    path = f"/v1/admin/tenants/{name_of(own_api)}"
    before = admin.get(path).json()
    response = admin.patch(path, json=change)
    assert (response.status_code, response.json()["field"]) == (422, field), response.text
    assert admin.get(path).json() == before


def test_contradiction_with_what_is_set_already_is_seen(own_api, admin):
    path = f"/v1/admin/tenants/{name_of(own_api)}"
    assert admin.patch(path, json={"rate_per_second": 2, "rate_burst": 5}).status_code == 200
    response = admin.patch(path, json={"rate_per_second": None})
    assert (response.status_code, response.json()["field"]) == (422, "rate_burst")


def test_no_more_than_everything_is_guaranteed(own_api, admin):
    admin.post("/v1/admin/tenants", json={"name": "one", "guaranteed_share": 0.7})
    more = admin.post("/v1/admin/tenants", json={"name": "two", "guaranteed_share": 0.4})
    assert (more.status_code, more.json()["field"]) == (422, "guaranteed_share")
    assert "0.3 is left" in more.json()["message"]
    assert admin.get("/v1/admin/tenants/two").status_code == 404
    assert admin.patch("/v1/admin/tenants/one", json={"guaranteed_share": 0.9}).status_code == 200


def test_limit_and_pause_hold_at_the_next_look(own_api, admin):
    path = f"/v1/admin/tenants/{name_of(own_api)}"
    own_api.world.session(slots=8)
    admin.patch(path, json={"max_running": 1})
    submit(own_api.client, {"jobs": [make_job(key=str(number)) for number in range(3)]})
    assert own_api.world.dispatcher.tick() == 1
    assert own_api.world.dispatcher.tick() == 0
    seen = admin.get(path).json()
    assert (seen["running"], seen["used_cpu_millicores"]) == (1, 1000)
    assert admin.post(f"{path}/pause").json()["paused"]
    admin.patch(path, json={"max_running": 10})
    assert own_api.world.dispatcher.tick() == 0
    assert not admin.post(f"{path}/resume").json()["paused"]
    assert own_api.world.dispatcher.tick() == 2


def test_dead_letter_is_listed_replayed_and_discarded_for_the_tenant(own_api, admin):
    path = f"/v1/admin/tenants/{name_of(own_api)}"
    infra = {"class": "infra", "code": "poison", "message": "x"}
    trials = []
    for _ in range(2):
        batch = submit(own_api.client)
        trials += own_api.rows(
            "UPDATE trials SET state = 'finished', outcome = 'error', finished_at = now(), failure = %(f)s"
            " WHERE batch_id = %(b)s RETURNING id::text",
            f=json.dumps(infra),
            b=batch["id"],
        )
    assert admin.get(path).json()["dead_letters"] == 2
    listed = admin.get(f"{path}/dead-letters", params={"state": "open"}).json()["items"]
    assert {letter["trial_id"] for letter in listed} == {trial["id"] for trial in trials}
    first, second = (trial["id"] for trial in trials)
    replay = admin.post(f"{path}/dead-letters/{first}/replay")
    assert replay.status_code == 202, replay.text
    assert admin.post(f"{path}/dead-letters/{first}/replay").status_code == 200
    new = own_api.client.get(f"/v1/trials/{replay.json()['trial_id']}")
    assert new.status_code == 200
    assert admin.post(f"{path}/dead-letters/{second}/discard").status_code == 200
    assert admin.get(path).json()["dead_letters"] == 0
    actions = [event["action"] for event in admin.get("/v1/admin/events").json()["items"]]
    assert actions == ["discard_dead_letter", "replay_dead_letter"]


def test_unknown_tenant_is_told_everywhere(admin):
    for method, path in (
        ("GET", ""),
        ("PATCH", ""),
        ("POST", "/pause"),
        ("POST", "/resume"),
        ("GET", "/keys"),
        ("GET", "/usage"),
        ("GET", "/dead-letters"),
        ("POST", f"/dead-letters/{new_id()}/discard"),
    ):
        response = admin.request(
            method, f"/v1/admin/tenants/nobody{path}", json={} if method != "GET" else None
        )
        assert (response.status_code, response.json()["code"]) == (404, "not_found"), (method, path)


def test_list_goes_on_by_name(own_api, admin):
    for name in ("b", "a", "c"):
        admin.post("/v1/admin/tenants", json={"name": name})
    page = admin.get("/v1/admin/tenants", params={"limit": 2}).json()
    rest = admin.get("/v1/admin/tenants", params={"limit": 2, "cursor": page["next_cursor"]}).json()
    names = [tenant["name"] for tenant in page["items"] + rest["items"]]
    assert names == ["a", "b", "c", name_of(own_api)]
