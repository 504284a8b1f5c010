"""The lifecycle API beside the create: lists, metadata, expiry, endpoints, the record, and how all of it refuses."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote, urlencode

import httpx
import pytest
from redis import Redis

from core.ids import new_id
from services.wake import TRAFFIC_CHANNEL
from tests.integration.api.conftest import ApiWorld, changed_settings
from tests.support.invariants import SANDBOXES_BY_HAND
from tests.support.spellings import OTHER_SPELLINGS

pytestmark = pytest.mark.usefixtures("no_waiting")

BODY: dict[str, Any] = {
    "image": {"uri": "python:3.12"},
    "timeout": 600,
    "resourceLimits": {"cpu": "1", "memory": "2Gi"},
    "entrypoint": ["tail", "-f", "/dev/null"],
}


def make(api: ApiWorld, **changes: Any) -> str:
    response = api.client.post("/v1/sandboxes", json={**BODY, **changes})
    assert response.status_code == 202, response.text
    return response.json()["id"]


def listed(api: ApiWorld, query: str = "") -> dict[str, Any]:
    response = api.client.get(f"/v1/sandboxes{query}")
    assert response.status_code == 200, response.text
    return response.json()


def ids(api: ApiWorld, query: str = "") -> list[str]:
    return [item["id"] for item in listed(api, query)["items"]]


def put_in_state(api: ApiWorld, sandbox_id: str, state: str, **columns: Any) -> None:
    """Move the row as a node would; the history goes with it."""
    reason = columns.pop("state_reason", "TEST")
    changes = "".join(f", {name} = %({name})s" for name in columns)
    sql = f"UPDATE sandbox_sessions SET state = %(state)s, state_reason = %(reason)s{changes} WHERE trial_id = %(id)s"
    api.rows(f"{sql} RETURNING 1", id=sandbox_id, state=state, reason=reason, **columns)
    api.rows(
        "INSERT INTO sandbox_events (trial_id, actor, reason) VALUES (%(id)s, 'test', %(reason)s) RETURNING 1",
        id=sandbox_id,
        reason=reason,
    )


def test_list_is_newest_first_in_pages(api):
    made = [make(api) for _ in range(5)]
    assert ids(api) == made[::-1]
    first = listed(api, "?page=1&pageSize=2")
    assert [item["id"] for item in first["items"]] == made[:2:-1]
    assert first["pagination"] == {
        "page": 1, "pageSize": 2, "totalItems": 5, "totalPages": 3, "hasNextPage": True,
    }  # fmt: skip
    last = listed(api, "?page=3&pageSize=2")
    assert [item["id"] for item in last["items"]] == [made[0]]
    assert last["pagination"]["hasNextPage"] is False
    beyond = listed(api, "?page=2147483647&pageSize=200")
    assert beyond["items"] == []
    assert beyond["pagination"]["totalItems"] == 5


def test_empty_list_has_no_pages(api):
    assert listed(api) == {
        "items": [],
        "pagination": {"page": 1, "pageSize": 20, "totalItems": 0, "totalPages": 0, "hasNextPage": False},
    }


@pytest.mark.parametrize(
    ("query", "loc", "kind"),
    [
        ("page=0", ["query", "page"], "greater_than_equal"),
        ("page=x", ["query", "page"], "int_parsing"),
        ("page=99999999999999999999", ["query", "page"], "less_than_equal"),
        ("pageSize=0", ["query", "pageSize"], "greater_than_equal"),
        ("pageSize=201", ["query", "pageSize"], "less_than_equal"),
    ],
)
def test_page_that_is_none_is_told_by_place(api, query, loc, kind):
    response = api.client.get(f"/v1/sandboxes?{query}")
    assert response.status_code == 422
    (detail,) = response.json()["detail"]
    assert (detail["loc"], detail["type"]) == (loc, kind)


@SANDBOXES_BY_HAND
def test_states_are_joined_and_their_case_counts_for_nothing(api):
    one, two, three = (make(api) for _ in range(3))
    put_in_state(api, one, "Running")
    put_in_state(api, two, "Paused")
    assert ids(api, "?state=running&state=PAUSED") == [two, one]
    assert ids(api, "?state=Pending") == [three]
    # The protocol knows more states than there are here.
    assert ids(api, "?state=Allocated&state=UNKNOWN") == []
    assert ids(api, "?state=Allocated&state=Paused") == [two]
    assert listed(api, "?state=Running")["pagination"]["totalItems"] == 1


@pytest.mark.parametrize(
    "query", ["state=Runing", "state=Running&state=dead", "state=", "state=%00", "state=a,b"]
)
@pytest.mark.parametrize("path", ["/v1/sandboxes", "/v1/snapshots"])
def test_state_that_is_none_is_refused_by_name(api, path, query):
    response = api.client.get(f"{path}?{query.replace('Running', 'Failed')}")
    assert response.status_code == 400
    answer = response.json()
    assert answer["code"] == "SANDBOX::INVALID_PARAMETER"
    assert answer["message"].startswith("state: ")
    assert "Failed" in answer["message"].partition("is none of ")[2].split(", ")


def test_metadata_is_encoded_twice_and_all_of_it_has_to_fit(api):
    one = make(api, metadata={"a": "b", "c": "d"})
    two = make(api, metadata={"a": "b", "c": "x"})
    assert ids(api, f"?metadata={quote(urlencode({'a': 'b'}))}") == [two, one]
    assert ids(api, f"?metadata={quote(urlencode({'a': 'b', 'c': 'd'}))}") == [one]
    assert ids(api, f"?metadata={quote(urlencode({'a': ''}))}") == []
    # As the official client sends values of any kind.
    assert ids(api, "?metadata=a%3Db%2520c%26d%3De%2526f") == []
    sql = 'UPDATE sandbox_sessions SET metadata = \'{"a": "b c", "d": "e&f"}\' WHERE trial_id = %(id)s RETURNING 1'
    api.rows(sql, id=one)
    assert ids(api, "?metadata=a%3Db%2520c%26d%3De%2526f") == [one]


@pytest.mark.parametrize("text", ["a", "a=b&c", "&", "a=b&&", "a=%FF", "a=%00", "a=1&a=2"])
def test_metadata_filter_that_is_none_is_refused(api, text):
    response = api.client.get(f"/v1/sandboxes?metadata={quote(text)}")
    assert response.status_code == 400, response.text
    assert response.json()["code"] == "INVALID_METADATA_FORMAT"


def test_unknown_parameters_are_ignored(api):
    assert listed(api, "?colour=red&pageSize=1&pageSize=2")["pagination"]["pageSize"] == 2


def test_list_follows_create_and_delete_at_once(api):
    """B-133."""
    for _ in range(10):
        sandbox = make(api)
        assert sandbox in ids(api)
        assert api.client.delete(f"/v1/sandboxes/{sandbox}").status_code == 204
        assert sandbox not in ids(api)


def patch(api: ApiWorld, sandbox: str, body: Any, prefix: str = "/v1") -> httpx.Response:
    return api.client.patch(f"{prefix}/sandboxes/{sandbox}/metadata", json=body)


def test_metadata_is_merged(api):
    sandbox = make(api, metadata={"a": "1", "b": "2"})
    changed = patch(api, sandbox, {"a": None, "c": "3", "never": None})
    assert changed.status_code == 200
    assert changed.json()["metadata"] == {"b": "2", "c": "3"}
    assert changed.json()["id"] == sandbox
    assert patch(api, sandbox, {}, prefix="").json() == changed.json()
    assert api.client.get(f"/v1/sandboxes/{sandbox}").json()["metadata"] == {"b": "2", "c": "3"}


def test_metadata_that_is_bad_changes_nothing(api):
    sandbox = make(api, metadata={"a": "1"})
    for body, code in (
        ({"b": "2", "opensandbox.io/x": None}, "INVALID_METADATA_LABEL"),
        ({"b": "2", "-": "x"}, "SANDBOX::INVALID_METADATA_LABEL"),
        ({"b": "-"}, "SANDBOX::INVALID_METADATA_LABEL"),
        ({"b": 1}, "SANDBOX::INVALID_METADATA_LABEL"),
        ({f"k{n}": "v" for n in range(64)}, "SANDBOX::INVALID_METADATA_LABEL"),
    ):
        response = patch(api, sandbox, body)
        assert (response.status_code, response.json()["code"]) == (400, code)
    for text in ("[]", '"x"', "null"):
        response = api.client.patch(
            f"/v1/sandboxes/{sandbox}/metadata", content=text, headers={"Content-Type": "application/json"}
        )
        assert response.status_code == 422
    assert api.client.get(f"/v1/sandboxes/{sandbox}").json()["metadata"] == {"a": "1"}


def test_nothing_else_of_a_sandbox_can_be_changed(api):
    """B-019."""
    sandbox = make(api)
    for method in ("PATCH", "PUT", "POST"):
        response = api.client.request(method, f"/v1/sandboxes/{sandbox}", json={"image": {"uri": "other"}})
        assert response.status_code == 405
        assert set(response.json()) == {"code", "message"}
        assert response.json()["code"] == "GENERAL::UNKNOWN_ERROR"
        assert set(response.headers["Allow"].split(", ")) <= {"GET", "DELETE"}


def renew(api: ApiWorld, sandbox: str, value: Any) -> httpx.Response:
    return api.client.post(f"/v1/sandboxes/{sandbox}/renew-expiration", json={"expiresAt": value})


def test_expiry_moves_both_ways(api):
    sandbox = make(api)
    for delta in (timedelta(hours=5), timedelta(minutes=1)):
        wanted = datetime.now(UTC) + delta
        response = renew(api, sandbox, wanted.isoformat())
        assert response.status_code == 200
        assert set(response.json()) == {"expiresAt"}
        assert datetime.fromisoformat(response.json()["expiresAt"]) == wanted
        seen = api.client.get(f"/v1/sandboxes/{sandbox}").json()
        assert datetime.fromisoformat(seen["expiresAt"]) == wanted
    # The longest timeout is one of creates.
    with changed_settings(api.app, max_sandbox_timeout_seconds=60):
        assert renew(api, sandbox, (datetime.now(UTC) + timedelta(hours=1)).isoformat()).status_code == 200


def test_expiry_in_another_zone_is_the_same_moment(api):
    sandbox = make(api)
    assert renew(api, sandbox, "2050-01-01T02:00:00.123456+02:00").status_code == 200
    assert renew(api, sandbox, "2050-01-01T00:00:00Z").status_code == 200
    seen = api.client.get(f"/v1/sandboxes/{sandbox}").json()["expiresAt"]
    assert datetime.fromisoformat(seen) == datetime(2050, 1, 1, tzinfo=UTC)


def test_expiry_that_cannot_be_is_refused(api):
    sandbox = make(api)
    before = api.client.get(f"/v1/sandboxes/{sandbox}").json()["expiresAt"]
    past = renew(api, sandbox, (datetime.now(UTC) - timedelta(seconds=1)).isoformat())
    assert (past.status_code, past.json()["code"]) == (400, "DOCKER::INVALID_EXPIRATION")
    longest = datetime.now(UTC) + timedelta(seconds=10**9)
    for value in (
        (longest + timedelta(minutes=1)).isoformat(),
        "2100-01-01T00:00:00Z",
        "9999-12-30T00:00:00Z",
    ):
        far = renew(api, sandbox, value)
        assert (far.status_code, far.json()["code"]) == (400, "DOCKER::INVALID_EXPIRATION"), value
        assert (
            far.json()["message"]
            == "expiresAt: must be at most 1000000000 s from now, as the timeout of a create"
        )
    for value in ("x", "2050-01-01T00:00:00", "9999-12-31T23:59:59-14:00", None, {}):
        response = renew(api, sandbox, value)
        assert response.status_code == 422, response.text
        assert response.json()["detail"][0]["loc"][:2] == ["body", "expiresAt"]
    missing = api.client.post(f"/v1/sandboxes/{sandbox}/renew-expiration", json={})
    assert missing.json()["detail"][0]["type"] == "missing"
    assert api.client.get(f"/v1/sandboxes/{sandbox}").json()["expiresAt"] == before
    assert renew(api, sandbox, (longest - timedelta(minutes=1)).isoformat()).status_code == 200
    endless = make(api, timeout=None)
    conflict = renew(api, endless, "2050-01-01T00:00:00Z")
    assert (conflict.status_code, conflict.json()["code"]) == (409, "DOCKER::INVALID_EXPIRATION")


def test_expiry_is_judged_by_the_clock_of_the_database(api, monkeypatch):
    """T89: whatever the clock of the API says."""
    sandbox = make(api)
    soon = datetime.now(UTC) + timedelta(minutes=1)
    far = datetime(2200, 1, 1, tzinfo=UTC)
    monkeypatch.setattr("repositories.live_sandboxes.LiveSandboxRepository.now", lambda _: far)
    refused = renew(api, sandbox, soon.isoformat())
    assert (refused.status_code, refused.json()["code"]) == (400, "DOCKER::INVALID_EXPIRATION")


@SANDBOXES_BY_HAND
@pytest.mark.parametrize("state", ["Stopping", "Terminated", "Failed"])
def test_expiry_of_one_that_ends_is_not_moved(api, state):
    """B-001: a renewal that comes with the expiry either counts or says that it does not."""
    sandbox = make(api)
    ended = {} if state == "Stopping" else {"ended_at": datetime.now(UTC)}
    put_in_state(api, sandbox, state, **ended)
    response = renew(api, sandbox, "2050-01-01T00:00:00Z")
    assert (response.status_code, response.json()["code"]) == (409, "DOCKER::SANDBOX_NOT_RUNNING")


@SANDBOXES_BY_HAND
def test_a_renewal_is_told_to_who_leads_traffic(api):
    """An ingress remembers a sandbox until it expires: it has to hear that this is sooner now."""
    sandbox = make(api)
    put_in_state(api, sandbox, "Running", expires_at=datetime.now(UTC) + timedelta(hours=1))
    client = Redis.from_url(api.settings.redis_url.get_secret_value())
    with client, client.pubsub(ignore_subscribe_messages=True) as heard:
        heard.subscribe(TRAFFIC_CHANNEL.format(sandbox_id=sandbox))
        assert heard.get_message(timeout=1) is None
        response = renew(api, sandbox, (datetime.now(UTC) + timedelta(seconds=30)).isoformat())
        assert response.status_code == 200
        told = heard.get_message(timeout=5) or heard.get_message(timeout=5)
    assert told is not None


@pytest.fixture
def apart(own_api: ApiWorld) -> Iterator[ApiWorld]:
    """An application of its own: what a node offers there counts for all tests that share one."""
    with changed_settings(own_api.app, sandbox_create_wait_seconds=0.0):
        yield own_api


def node_with_ingress(api: ApiWorld) -> Any:
    node_id = new_id()
    api.world.session(
        node=node_id,
        ingress_address="sandboxes.example:28888",
        ingress_url="http://127.0.0.1:1",
        runtimes=["nothing"],
    )
    return node_id


def endpoint(api: ApiWorld, sandbox: str, port: Any, query: str = "", prefix: str = "/v1") -> httpx.Response:
    return api.client.get(f"{prefix}/sandboxes/{sandbox}/endpoints/{port}{query}")


@SANDBOXES_BY_HAND
def test_endpoints_of_one_that_runs(apart):
    sandbox = make(apart)
    put_in_state(apart, sandbox, "Running", node_id=node_with_ingress(apart))
    (row,) = apart.rows("SELECT access_token FROM sandbox_sessions WHERE trial_id = %(id)s", id=sandbox)
    execd = endpoint(apart, sandbox, 44772).json()
    assert execd == {
        "endpoint": f"sandboxes.example:28888/{sandbox}/44772",
        "headers": {"OpenSandbox-Secure-Access": row["access_token"]},
    }
    # Also without any policy: official clients ask for it before anything else.
    assert endpoint(apart, sandbox, 18080).json() == {"endpoint": f"sandboxes.example:28888/{sandbox}/18080"}
    host = httpx.URL(apart.url).netloc.decode()
    for prefix in ("/v1", ""):
        proxied = endpoint(apart, sandbox, 8080, "?use_server_proxy=true", prefix).json()
        assert proxied["endpoint"] == f"{host}{prefix}/sandboxes/{sandbox}/proxy/8080"
    assert endpoint(apart, sandbox, 8080, "?use_server_proxy=false").status_code == 200
    put_in_state(apart, sandbox, "Paused")
    assert endpoint(apart, sandbox, 8080).status_code == 200


@SANDBOXES_BY_HAND
def test_every_port_of_a_secure_one_needs_its_token(apart):
    sandbox = make(apart, secureAccess=True)
    put_in_state(apart, sandbox, "Running", node_id=node_with_ingress(apart))
    for query in ("", "?use_server_proxy=true"):
        assert "OpenSandbox-Secure-Access" in endpoint(apart, sandbox, 8080, query).json()["headers"]


@pytest.mark.parametrize("port", [0, 65536, -1])
def test_port_out_of_range_is_refused(api, port):
    response = endpoint(api, make(api), port)
    assert (response.status_code, response.json()["code"]) == (400, "DOCKER::INVALID_PORT")


def test_port_that_is_no_number_is_told_by_place(api):
    response = endpoint(api, make(api), "x")
    assert response.status_code == 422
    assert response.json()["detail"][0]["loc"] == ["path", "port"]


@SANDBOXES_BY_HAND
def test_what_has_expired_has_no_endpoint_though_nobody_has_ended_it_yet(apart):
    sandbox = make(apart)
    node_id = node_with_ingress(apart)
    put_in_state(
        apart, sandbox, "Running", node_id=node_id, expires_at=datetime.now(UTC) + timedelta(hours=1)
    )
    assert endpoint(apart, sandbox, 8080).status_code == 200
    put_in_state(apart, sandbox, "Running", expires_at=datetime.now(UTC) - timedelta(seconds=1))
    response = endpoint(apart, sandbox, 8080)
    assert (response.status_code, response.json()["code"]) == (409, "DOCKER::SANDBOX_NOT_RUNNING")


def test_signed_endpoints_are_refused_in_the_protocols_words(api):
    sandbox = make(api)
    plain = endpoint(api, sandbox, 8080, "?expires=2000000000")
    assert (plain.status_code, plain.json()["code"]) == (400, "SANDBOX::API_NOT_SUPPORTED")
    proxied = endpoint(api, sandbox, 8080, "?expires=2000000000&use_server_proxy=true")
    assert (proxied.status_code, proxied.json()["code"]) == (400, "SANDBOX::INVALID_PARAMETER")
    for bad in ("x", "-1", str(2**64)):
        assert endpoint(api, sandbox, 8080, f"?expires={bad}").status_code == 422


def test_endpoint_of_one_that_waits_is_the_refusal_that_clients_repeat(api, monkeypatch):
    monkeypatch.setattr("api.wire.sandboxes._ENDPOINT_WAIT_SECONDS", 0.05)
    response = endpoint(api, make(api), 44772)
    assert (response.status_code, response.json()["code"]) == (404, "KUBERNETES::POD_IP_NOT_AVAILABLE")


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE"])
def test_network_policy_is_refused_clearly(api, method):
    sandbox = make(api)
    response = api.client.request(method, f"/v1/sandboxes/{sandbox}/networkpolicy")
    assert (response.status_code, response.json()["code"]) == (501, "SANDBOX::API_NOT_SUPPORTED")
    missing = api.client.request(method, f"/v1/sandboxes/{new_id()}/networkpolicy")
    assert missing.status_code == 404


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_templates_are_refused_clearly(api, method):
    for prefix in ("/v1", ""):
        response = api.client.request(method, f"{prefix}/templates")
        assert (response.status_code, response.json()["code"]) == (501, "FSB::API_NOT_SUPPORTED")
    assert api.client.delete("/v1/templates/tpl-1").status_code == 501


ENDS = {
    "deleted": (
        {"state": "Terminated", "end_reason": "SANDBOX_DELETED", "ended_by": "key:k"},
        "Terminated: deleted by key:k at 2026-01-02T03:04:05Z (SANDBOX_DELETED)",
    ),
    "expired": (
        {"state": "Terminated", "end_reason": "SANDBOX_EXPIRED", "ended_by": "scheduler"},
        "Terminated: expired at 2026-01-01T00:00:00Z, ended by scheduler (SANDBOX_EXPIRED)",
    ),
    "failed and then deleted": (
        {
            "state": "Failed",
            "end_reason": "NODE_LOST",
            "ended_by": "scheduler",
            "state_message": "its node is silent",
        },
        "Failed: found by scheduler at 2026-01-02T03:04:05Z (NODE_LOST: its node is silent)",
    ),
}
TELLING = [
    ("GET", "/sandboxes/{id}"),
    ("PATCH", "/sandboxes/{id}/metadata"),
    ("POST", "/sandboxes/{id}/renew-expiration"),
    ("POST", "/sandboxes/{id}/pause"),
    ("POST", "/sandboxes/{id}/resume"),
    ("GET", "/sandboxes/{id}/endpoints/80"),
    ("POST", "/sandboxes/{id}/snapshots"),
]


@SANDBOXES_BY_HAND
@pytest.mark.parametrize(("row", "told"), ENDS.values(), ids=ENDS)
def test_how_a_sandbox_ended_is_told_to_its_tenant_alone(api, row, told):
    """B-005, B-023: on every route; `expired at` is the expiry, not the moment of the clean-up."""
    sandbox = make(api)
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    expiry = datetime(2026, 1, 1, tzinfo=UTC)
    put_in_state(api, sandbox, **row, ended_at=at, hidden_at=at, expires_at=expiry)
    for method, path in TELLING:
        answer = call(api.client, method, path, sandbox)
        said = {"code": "DOCKER::SANDBOX_NOT_FOUND", "message": f"sandbox {sandbox} has ended, it is {told}"}
        assert (answer.status_code, answer.json()) == (404, said), path
    with api.new_client("somebody-else") as other:
        for method, path in TELLING:
            foreign = call(other, method, path, sandbox)
            assert (foreign.status_code, foreign.json()["message"]) == (404, f"no sandbox {sandbox}"), path


def test_a_deleted_sandbox_tells_whose_key_deleted_it(api):
    sandbox = make(api)
    api.client.delete(f"/v1/sandboxes/{sandbox}")
    key = api.rows("SELECT id FROM api_keys WHERE tenant_id = %(me)s")[0]["id"]
    message = api.client.get(f"/v1/sandboxes/{sandbox}").json()["message"]
    assert f"it is Terminated: deleted by key:{key} at 20" in message


def test_record_outlives_the_sandbox(api):
    sandbox = make(api)
    api.client.delete(f"/v1/sandboxes/{sandbox}")
    assert api.client.get(f"/v1/sandboxes/{sandbox}").status_code == 404
    record = api.client.get(f"/v1/sandboxes/{sandbox}/record").json()
    assert record["status"]["state"] == "Terminated"
    assert record["endReason"] == "SANDBOX_DELETED"
    assert record["endedBy"].startswith("key:")
    assert datetime.fromisoformat(record["endedAt"]) >= datetime.fromisoformat(record["createdAt"])
    assert [set(event) >= {"at", "actor", "reason"} for event in record["events"]] == [True] * 3


METRICS = {
    "eventType": "sandbox.create",
    "createDurationMs": 44,
    "success": True,
    "sandboxId": "s",
    "image": "i",
}


def test_metrics_event_is_taken_under_its_one_path(api):
    taken = api.client.post("/v1/metrics/events", json=METRICS)
    assert (taken.status_code, taken.content) == (204, b"")
    assert api.client.post("/metrics/events", json=METRICS).status_code == 404
    for change in ({"createDurationMs": -1}, {"eventType": "x"}, {"success": None}):
        response = api.client.post("/v1/metrics/events", json={**METRICS, **change})
        assert response.status_code == 422
        assert response.json()["detail"][0]["loc"] == ["body", *change]


def test_health_and_version_need_no_key(api):
    with api.new_client() as nobody:
        assert nobody.get("/health").json() == {"status": "healthy"}
        assert nobody.get("/v1/health").json() == {"status": "healthy"}
        assert nobody.get("/version").json()["version"] == nobody.get("/v1/version").json()["version"]


CALLS = [
    ("POST", "/sandboxes"),
    ("GET", "/sandboxes"),
    ("GET", "/sandboxes/{id}"),
    ("DELETE", "/sandboxes/{id}"),
    ("PATCH", "/sandboxes/{id}/metadata"),
    ("POST", "/sandboxes/{id}/pause"),
    ("POST", "/sandboxes/{id}/resume"),
    ("POST", "/sandboxes/{id}/renew-expiration"),
    ("GET", "/sandboxes/{id}/endpoints/8080"),
    ("GET", "/sandboxes/{id}/record"),
    ("GET", "/sandboxes/{id}/networkpolicy"),
    ("GET", "/templates"),
]


def call(client: httpx.Client, method: str, path: str, sandbox: str, prefix: str = "/v1") -> httpx.Response:
    body: dict[str, Any] = BODY if path == "/sandboxes" else {}
    if path.endswith("renew-expiration"):
        body = {"expiresAt": "2050-01-01T00:00:00Z"}
    with_body = {"json": body} if method in {"POST", "PATCH"} else {}
    return client.request(method, prefix + path.replace("{id}", sandbox), **with_body)


@pytest.mark.parametrize(("method", "path"), CALLS)
@pytest.mark.parametrize("prefix", ["/v1", ""])
def test_key_is_needed_and_the_refusal_says_which_way_it_is_wrong(api, method, path, prefix):
    sandbox = str(new_id())
    with api.new_client() as nobody:
        missing = call(nobody, method, path, sandbox, prefix)
        assert (missing.status_code, missing.json()["code"]) == (401, "MISSING_API_KEY")
        nobody.headers["OPEN-SANDBOX-API-KEY"] = "sm_wrong"
        wrong = call(nobody, method, path, sandbox, prefix)
        assert (wrong.status_code, wrong.json()["code"]) == (401, "INVALID_API_KEY")
    for response in (missing, wrong):
        assert set(response.json()) == {"code", "message"}
        assert re.fullmatch(r"[0-9a-f]{32}", response.headers["X-Request-ID"])


def test_clients_header_counts_before_any_other(api):
    """A gateway in front may use Authorization for itself."""
    with api.new_client() as client:
        client.headers.update({"OPEN-SANDBOX-API-KEY": api.key, "Authorization": "Bearer of-somebody-else"})
        assert client.get("/v1/sandboxes").status_code == 200
        client.headers["Authorization"] = "Basic dTpw"
        assert client.get("/v1/sandboxes").status_code == 200


@pytest.mark.parametrize(("method", "path"), [pair for pair in CALLS if "{id}" in pair[1]])
def test_foreign_and_unknown_ones_look_alike(api, method, path):
    """T59."""
    sandbox = make(api, metadata={"a": "b"})
    before = api.client.get(f"/v1/sandboxes/{sandbox}/record").json()
    unknown = str(new_id())
    with api.new_client("somebody-else") as other:
        foreign, missing = call(other, method, path, sandbox), call(other, method, path, unknown)
    assert (foreign.status_code, foreign.json()["code"]) == (404, "DOCKER::SANDBOX_NOT_FOUND")
    assert foreign.json()["message"].replace(sandbox, "-") == missing.json()["message"].replace(unknown, "-")
    assert api.client.get(f"/v1/sandboxes/{sandbox}/record").json() == before


@pytest.mark.parametrize(
    "name",
    ["x", "%00", "%2e%2e", "0" * 32, "{%7B", "urn:uuid:01a22df5-0f1a-77b5-862e-5845949efcf1", "a" * 5000],
)
def test_what_is_no_id_is_nobodys(api, name):
    """T64, T70: one spelling per sandbox, whatever a parser of ids would take."""
    response = api.client.get(f"/v1/sandboxes/{name}")
    assert response.status_code == 404
    assert response.json()["code"] in {"DOCKER::SANDBOX_NOT_FOUND", "GENERAL::UNKNOWN_ERROR"}


@pytest.mark.parametrize("spell", OTHER_SPELLINGS.values(), ids=OTHER_SPELLINGS)
def test_a_sandbox_has_one_name(api, spell):
    sandbox = make(api)
    assert api.client.get(f"/v1/sandboxes/{sandbox}").status_code == 200
    for path in ("", "/record", "/endpoints/80", "/proxy/80/", "/diagnostics/summary"):
        response = api.client.get(f"/v1/sandboxes/{spell(sandbox)}{path}")
        assert (response.status_code, response.json()["code"]) == (404, "DOCKER::SANDBOX_NOT_FOUND"), path


@pytest.mark.parametrize(
    "path", ["/v1/sandboxes/a/b/c/d", "/sandboxes/", "/v1/templates/a/b", "/v1/pools/a/b/c"]
)
def test_unknown_path_is_refused_in_the_same_shape(api, path):
    response = api.client.get(path)
    assert response.status_code == 404
    assert response.json() == {"code": "GENERAL::UNKNOWN_ERROR", "message": f"there is no {path} here"}
    assert "X-Request-ID" in response.headers


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/sandboxes", 200),
        ("/v1/sandboxes/x", 404),
        ("/v1/sandboxes?page=0", 422),
        ("/v1/sandboxes/a/b/c", 404),
    ],
)
def test_request_id_is_echoed_on_every_answer(api, path, status):
    for given in ("abc-1", "trace/1:2;3", "x" * 128):
        response = api.client.get(path, headers={"X-Request-ID": given})
        assert (response.status_code, response.headers["X-Request-ID"]) == (status, given)
    made = api.client.get(path).headers["X-Request-ID"]
    assert re.fullmatch(r"[0-9a-f]{32}", made)


def test_failure_of_ours_has_the_shape_too(api, monkeypatch):
    """T98: nothing of the inside in it."""

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("secret inside")

    monkeypatch.setattr("services.live_sandboxes.LiveSandboxService.page", fail)
    response = api.client.get("/v1/sandboxes", headers={"Origin": "https://page.example"})
    assert response.status_code == 500
    assert set(response.json()) == {"code", "message"}
    assert response.json()["code"] == "GENERAL::UNKNOWN_ERROR"
    assert "secret" not in response.text
    assert response.headers["Access-Control-Allow-Origin"] == "*"


def test_pages_of_any_origin_may_call(api):
    """T71: what they may do, the key decides; there is no cookie that a page could borrow."""
    asked = {
        "Origin": "https://page.example",
        "Access-Control-Request-Method": "DELETE",
        "Access-Control-Request-Headers": "open-sandbox-api-key",
    }
    with api.new_client() as page:
        for path in ("/v1/sandboxes", "/sandboxes/x/metadata", "/v1/metrics/events", "/health"):
            before = page.request("OPTIONS", path, headers=asked)
            assert before.status_code == 200
            assert before.headers["Access-Control-Allow-Origin"] == "*"
            assert "DELETE" in before.headers["Access-Control-Allow-Methods"]
            assert before.headers["Access-Control-Allow-Headers"] == "open-sandbox-api-key"
            assert "Access-Control-Allow-Credentials" not in before.headers
            assert "X-Request-ID" in before.headers
        refused = page.get("/v1/sandboxes", headers={"Origin": "https://page.example"})
        assert refused.status_code == 401
        assert refused.headers["Access-Control-Allow-Origin"] == "*"
        exposed = refused.headers["Access-Control-Expose-Headers"].split(", ")
        assert "OPEN-SANDBOX-ORIGIN" in exposed
        # The rest of the API is for programs.
        elsewhere = page.get("/v1/batches", headers={"Origin": "https://page.example"})
        assert "Access-Control-Allow-Origin" not in elsewhere.headers
        assert page.request("OPTIONS", "/v1/batches", headers=asked).status_code == 405


def test_too_large_body_is_refused(api):
    """T65."""
    body = json.dumps({**BODY, "env": {"A": "x" * (1 << 20)}}).encode()
    response = api.client.post("/v1/sandboxes", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 413
    assert set(response.json()) == {"code", "message"}
    deep = b'{"metadata":' + b"[" * 100_000
    response = api.client.post("/v1/sandboxes", content=deep, headers={"Content-Type": "application/json"})
    assert response.status_code == 422
