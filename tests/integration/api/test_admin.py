"""Operators: their role, keys, nodes, named queues, and the record of what they change."""

import pytest

from services.tenants import create_admin_key
from tests.integration.api.conftest import submit


@pytest.fixture
def admin(own_api):
    with own_api.engine.begin() as connection:
        key = create_admin_key(connection, "operator")
    with own_api.new_client(key=key) as client:
        yield client


def test_every_route_of_operators_refuses_a_tenants_key(api):
    paths = {path for path in api.app.openapi()["paths"] if path.startswith("/v1/admin")}
    assert paths
    for path in paths:
        for method in api.app.openapi()["paths"][path]:
            url = path.replace("{node_id}", "0" * 8 + "-0000-7000-8000-" + "0" * 12).replace("{name}", "x")
            url = url.replace("{key_id}", "0" * 8 + "-0000-7000-8000-" + "0" * 12)
            url = url.replace("{trial_id}", "0" * 8 + "-0000-7000-8000-" + "0" * 12)
            response = api.client.request(method, url, json={})
            assert response.status_code == 403, (method, path, response.text)
            assert response.json()["code"] == "forbidden"


def test_operators_key_acts_for_no_tenant(own_api, admin):
    for method, path in (("GET", "/v1/batches"), ("POST", "/v1/jobs"), ("GET", "/v1/usage")):
        response = admin.request(method, path)
        assert response.status_code == 403, (method, path)
        assert "key of the tenant" in response.json()["message"]


def test_operators_key_is_made_shown_once_and_revoked(own_api, admin):
    made = admin.post("/v1/admin/keys", json={"name": "second"})
    assert made.status_code == 201
    assert (made.json()["role"], made.json()["tenant"]) == ("admin", None)
    with own_api.new_client(key=made.json()["key"]) as second:
        listed = second.get("/v1/admin/keys").json()["items"]
        assert [key["name"] for key in listed] == ["second", "operator"]
        assert "key" not in listed[0]
        own = second.post(f"/v1/admin/keys/{made.json()['id']}/revoke")
        assert (own.status_code, own.json()["code"]) == (409, "conflict")
    revoked = admin.post(f"/v1/admin/keys/{made.json()['id']}/revoke")
    assert revoked.json()["revoked_at"]
    own_api.app.state.services.authenticator.forget()
    with own_api.new_client(key=made.json()["key"]) as second:
        assert second.get("/v1/admin/keys").status_code == 401


def test_node_is_cordoned_drained_and_let_go(own_api, admin):
    seat = own_api.world.session(slots=2)
    path = f"/v1/admin/nodes/{seat.node_id}"
    assert admin.get(path).json()["state"] == "ready"
    submit(own_api.client)
    assert admin.post(f"{path}/cordon").json()["state"] == "cordoned"
    world = own_api.world
    assert world.dispatcher.tick() == 0
    assert admin.post(f"{path}/uncordon").json()["state"] == "ready"
    assert world.dispatcher.tick() == 1
    node = admin.get(path).json()
    assert (node["running"], node["used_cpu_millicores"]) == (1, 1000)
    assert admin.post(f"{path}/drain").json()["state"] == "draining"
    assert admin.get("/v1/admin/nodes").json()["items"][0]["id"] == str(seat.node_id)


def test_queue_gets_a_cap_is_paused_and_resumed(own_api, admin):
    assert admin.put("/v1/admin/queues/gpu", json={"max_running": 1}).json()["max_running"] == 1
    assert [queue["name"] for queue in admin.get("/v1/admin/queues").json()["items"]] == ["default", "gpu"]
    assert admin.post("/v1/admin/queues/gpu/pause").json()["paused"]
    assert not admin.post("/v1/admin/queues/gpu/resume").json()["paused"]
    assert admin.put("/v1/admin/queues/gpu", json={"max_running": None}).json()["max_running"] is None


def test_cap_and_pause_of_a_queue_hold_at_the_next_look(own_api, admin):
    own_api.world.session(slots=8)
    assert admin.put("/v1/admin/queues/default", json={"max_running": 1}).json()["max_running"] == 1
    submit(
        own_api.client,
        {"jobs": [{"key": str(n), "image": "fake", "steps": [{"name": "a", "run": "x"}]} for n in range(3)]},
    )
    world = own_api.world
    assert world.dispatcher.tick() == 1
    assert world.dispatcher.tick() == 0
    assert admin.get("/v1/admin/queues").json()["items"][0]["running"] == 1
    assert admin.post("/v1/admin/queues/default/pause").json()["paused"]
    admin.put("/v1/admin/queues/default", json={"max_running": None})
    assert world.dispatcher.tick() == 0
    assert not admin.post("/v1/admin/queues/default/resume").json()["paused"]
    assert world.dispatcher.tick() == 2


@pytest.mark.parametrize(
    ("call", "body", "wanted"),
    [
        ("PUT /v1/admin/queues/UPPER", {"max_running": 1}, (422, "name")),
        ("PUT /v1/admin/queues/gpu", {"max_running": -1}, (422, "max_running")),
        ("PUT /v1/admin/queues/gpu", {"max_running": 1, "x": 1}, (422, "x")),
        ("PUT /v1/admin/queues/gpu", {}, (422, "max_running")),
        ("POST /v1/admin/keys", {"name": ""}, (422, "name")),
        ("POST /v1/admin/queues/none/resume", None, (404, None)),
        ("GET /v1/admin/nodes/not-an-id", None, (422, "node_id")),
    ],
)
def test_bad_calls_name_the_field(own_api, admin, call, body, wanted):
    response = admin.request(*call.split(), json=body)
    assert (response.status_code, response.json()["field"]) == wanted, response.text
    assert [row["name"] for row in own_api.rows("SELECT name FROM queues")] == ["default"]


def test_changes_are_recorded_with_the_key_that_made_them(own_api, admin):
    admin.put("/v1/admin/queues/gpu", json={"max_running": 3})
    admin.post("/v1/admin/queues/gpu/pause")
    made = admin.post("/v1/admin/keys", json={"name": "second"}).json()
    events = admin.get("/v1/admin/events").json()["items"]
    assert [event["action"] for event in events] == ["create_key", "pause_queue", "put_queue"]
    assert len({event["key_id"] for event in events}) == 1
    assert made["key"] not in str(events)
    mine = admin.get("/v1/admin/events", params={"subject": "queue:gpu", "limit": 1}).json()
    assert mine["items"][0]["action"] == "pause_queue"
    rest = admin.get(
        "/v1/admin/events", params={"subject": "queue:gpu", "cursor": mine["next_cursor"]}
    ).json()
    assert [event["detail"] for event in rest["items"]] == [{"max_running": 3}]
