"""Bad input of every kind: a clear refusal in the one shape, and nothing stored."""

import json
import re
import socket
import time
from urllib.parse import quote

import httpx
import pytest

from core.ids import new_id
from tests.integration.api.conftest import make_batch, make_job, make_settings, open_api, submit


def assert_shape(response: httpx.Response, status: int) -> dict:
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"code", "message", "field", "request_id", "details"}
    assert body["request_id"] == response.headers["X-Request-ID"]
    return body


def test_everything_wrong_is_listed_and_nothing_is_stored(api):
    jobs = [make_job(), make_job(key="b", steps=[{"name": "x", "run": "true", "timeout": -1}], color="red")]
    body = assert_shape(api.client.post("/v1/batches", json=make_batch(jobs=jobs)), 422)

    assert body["code"] == "invalid_request"
    assert body["field"] == "jobs[1].steps[0].timeout"
    assert [detail["field"] for detail in body["details"]] == ["jobs[1].steps[0].timeout", "jobs[1].color"]
    assert api.count("batches") == 0


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"", {}, 422),
        (b"null", {}, 422),
        (b"[]", {}, 422),
        (b"{", {}, 422),
        (b'{"jobs": NaN}', {}, 422),
        (b'{"a":1,"a":2}', {}, 422),
        (b"\xff\xfe", {}, 422),
        (b"[" * 100_000, {}, 422),
        (b"{}", {"Content-Type": "text/plain"}, 415),
        (b"a=b", {"Content-Type": "application/x-www-form-urlencoded"}, 415),
        (b"\x1f\x8b\x08", {"Content-Encoding": "gzip"}, 415),
        (b"{}", {"Content-Encoding": "br"}, 415),
    ],
    ids=str,
)
@pytest.mark.parametrize("path", ["/v1/batches", "/v1/jobs"])
def test_bodies_that_cannot_be_read_are_refused(api, path, body, headers, status):
    response = api.client.post(path, content=body, headers={"Content-Type": "application/json", **headers})
    assert_shape(response, status)


@pytest.mark.parametrize("text", ["\ud800", "a\u0000b"], ids=["surrogate", "NUL"])
def test_text_that_cannot_be_stored_is_refused(api, text):
    body = json.dumps(make_batch(jobs=[make_job(), make_job(key="b", env={"A": text})])).encode()
    response = api.client.post("/v1/batches", content=body, headers={"Content-Type": "application/json"})
    refusal = assert_shape(response, 422)
    assert refusal["field"] == "jobs[1].env.A"
    assert [detail["field"] for detail in refusal["details"]] == ["jobs[1].env.A"]


def every_path(api) -> list[tuple[str, str]]:
    values = {"digest": "sha256:" + "0" * 64, "path": "x"}
    paths = api.app.openapi()["paths"]
    return [("GET", "/openapi.json")] + [
        (method.upper(), re.sub(r"{(\w+)}", lambda match: values.get(match[1], str(new_id())), path))
        for path, methods in paths.items()
        for method in methods
    ]


def test_unknown_query_parameters_are_refused_on_every_route(api):
    found = every_path(api)
    assert len(found) > 20
    for method, path in found:
        response = api.client.request(method, f"{path}?limit_=5")
        assert response.status_code == 422, (method, path)
        if method != "HEAD":
            refusal = assert_shape(response, 422)
            assert (refusal["field"], refusal["code"]) == ("limit_", "invalid_request"), (method, path)


def test_a_mistyped_filter_is_told_what_there_is(api):
    batch = submit(api.client)["id"]
    refusal = assert_shape(
        api.client.get(f"/v1/batches/{batch}/trials?outcom=failed&limit=1&limit=2&x=1"), 422
    )
    assert [detail["field"] for detail in refusal["details"]] == ["outcom", "limit", "x"]
    assert "it takes cursor, job, limit, outcome, state" in refusal["message"]
    assert refusal["details"][1]["message"] == "is given more than once"


def test_thousands_of_parameters_are_refused_quickly(api):
    started = time.monotonic()
    assert_shape(api.client.get("/v1/batches?" + "limit=1&" * 5_000), 422)
    assert time.monotonic() - started < 3


def test_hostile_names_come_back_in_errors_without_harm(api):
    response = api.client.post("/v1/jobs", json={"\x1b[31m</script>\u202e": 1, "é" * 500: 2, "image": "host"})
    body = assert_shape(response, 422)
    assert "\x1b" not in response.text
    assert all(len(detail["field"]) <= 200 for detail in body["details"])


INJECTIONS = ["' OR '1'='1", "'; DROP TABLE trials; --", "%(tenant_id)s", "%s%s%n", "{0}", "\\'; --", "$$"]


@pytest.mark.parametrize("text", INJECTIONS)
def test_sql_in_any_string_is_only_a_string(api, text):
    job = make_job(env={"A": text}, labels={"a": text}, steps=[{"name": "run", "run": text}])
    batch = submit(api.client, make_batch(name=text, labels={"x": text}, jobs=[job]))
    assert (batch["name"], batch["labels"]) == (text, {"x": text})
    quoted = quote(text, safe="")
    for query in (
        f"cursor={quoted}",
        f"limit={quoted}",
        f"state={quoted}",
        f"outcome={quoted}",
        f"job={quoted}",
    ):
        assert_shape(api.client.get(f"/v1/batches/{batch['id']}/trials?{query}"), 422)
    for path in (f"/v1/batches/{quoted}", f"/v1/blobs/{quoted}"):
        assert_shape(api.client.get(path), 422)
    assert api.client.post(
        "/v1/jobs", json=make_job(), headers={"Idempotency-Key": text.replace(" ", "_")}
    ).is_success
    assert api.count("trials") == 2


@pytest.mark.parametrize("key", ["", "a b", "x" * 256, "é"], ids=["empty", "blank", "long", "not ASCII"])
def test_bad_idempotency_keys_are_refused(api, key):
    response = api.client.post("/v1/jobs", json=make_job(), headers={"Idempotency-Key": key.encode()})
    assert assert_shape(response, 422)["field"] == "Idempotency-Key"


@pytest.mark.parametrize("value", ["0", "501", "-1", "x", "1.5", "1e3", "", "99999999999999999999"])
def test_bad_limits_are_refused(api, value):
    assert assert_shape(api.client.get(f"/v1/batches?limit={value}"), 422)["field"] == "limit"


def test_unknown_routes_and_methods_have_the_same_shape(api):
    assert assert_shape(api.client.get("/v1/nothing"), 404)["code"] == "not_found"
    refused = api.client.delete("/v1/batches")
    assert assert_shape(refused, 405)["code"] == "method_not_allowed"
    assert set(refused.headers["Allow"].split(", ")) & {"GET", "POST"}


def test_a_body_larger_than_the_limit_is_refused_by_its_length_or_while_it_comes(
    database_url, redis_url, tmp_path
):
    settings = make_settings(
        database_url, redis_url, tmp_path / "home", max_body_bytes=1 << 20, max_blob_bytes=1 << 20
    )
    with open_api(settings) as running, running.new_tenant() as api:
        big = b" " * ((1 << 20) + 1)
        for path in ("/v1/batches", "/v1/blobs"):
            assert_shape(api.client.post(path, content=big), 413)
            assert_shape(api.client.post(path, content=iter([big[:1000]] * 2000)), 413)
        assert_shape(api.client.post(f"/v1/batches/{new_id()}/cancel", content=b" " * 70_000), 413)
        assert not [path for path in (tmp_path / "home").rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/sandboxes", 413),
        ("/v1/nothing", 404),
        ("/v1/batches", 401),
        (f"/v1/sandboxes/{new_id()}/proxy/80/", 404),
    ],
    ids=["length", "path", "key", "proxy"],
)
@pytest.mark.parametrize("is_chunked", [False, True], ids=["counted", "chunked"])
def test_an_early_answer_reaches_a_client_that_closes_and_first_sends_all(api, path, status, is_chunked):
    """A connection closed over bytes that nobody has read would be reset, and the answer lost with it."""
    host, port = api.url.removeprefix("http://").split(":")
    size = 8 << 20
    framing = "Transfer-Encoding: chunked" if is_chunked else f"Content-Length: {size}"
    key = "none" if status == 401 else api.key
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nConnection: close\r\n{framing}\r\n\r\n"
    body = b" " * size
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(head.encode())
        connection.sendall(b"%x\r\n%b\r\n0\r\n\r\n" % (size, body) if is_chunked else body)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 %d" % status)
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["message"]


def test_an_early_answer_leaves_a_kept_connection_in_order(api):
    host, port = api.url.removeprefix("http://").split(":")
    head = f"POST /v1/nothing HTTP/1.1\r\nHost: x\r\nContent-Length: {8 << 20}\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        for _ in range(2):
            connection.sendall(head.encode() + b" " * (8 << 20))
            answer = b""
            while b"\r\n\r\n" not in answer or not answer.endswith(b"}"):
                piece = connection.recv(65536)
                assert piece, answer
                answer += piece
            assert answer.startswith(b"HTTP/1.1 404")


def test_an_early_answer_is_over_soon_for_a_client_that_sends_no_more(api, monkeypatch):
    monkeypatch.setattr("api.lingering._IDLE_SECONDS", 0.2)
    host, port = api.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        head = (
            "POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 9999999\r\n\r\n"
        )
        connection.sendall(head.encode() + b"abc")
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 401")


def test_a_client_that_stops_in_its_body_is_let_go(api, monkeypatch):
    monkeypatch.setattr("api.body._IDLE_SECONDS", 0.3)
    host, port = api.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        head = f"POST /v1/blobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.key}\r\nContent-Length: 100\r\n\r\n"
        connection.sendall(head.encode() + b"abc")
        assert connection.recv(1000).startswith(b"HTTP/1.1 408")


def test_request_ids_are_taken_over_when_sane_and_always_given(api):
    assert (
        api.client.get("/healthz", headers={"X-Request-ID": "abc-1.2_3"}).headers["X-Request-ID"]
        == "abc-1.2_3"
    )
    for bad in ("", "a b", "x" * 129):
        given = api.client.get("/healthz", headers={"X-Request-ID": bad}).headers["X-Request-ID"]
        assert given != bad
        assert len(given) == 32


def test_an_unforeseen_error_tells_nothing_but_its_id(api, monkeypatch):
    def explode(*_args, **_kwargs):
        message = "password=hunter2"
        raise RuntimeError(message)

    monkeypatch.setattr("services.batches.BatchService.page", explode)
    response = api.client.get("/v1/batches")
    body = assert_shape(response, 500)
    assert body["code"] == "internal_error"
    assert "hunter2" not in response.text


def test_hostile_json_is_refused_within_a_second_or_so(api):
    headers = {"Content-Type": "application/json"}
    for body in (
        b"[" * 3_000_000,
        b"[" + b"[]," * 3_000_000 + b"1]",
        b'{"jobs":[' + b"{}," * 9_999 + b"{}]}",
    ):
        started = time.monotonic()
        assert api.client.post("/v1/batches", content=body, headers=headers).status_code in {413, 422}
        assert time.monotonic() - started < 3
