"""Creates of every shape: no 5xx but a clear 501; what was accepted is there, whole, and goes when it is deleted."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.usefixtures("no_waiting")

TEXTS = st.text(max_size=12) | st.sampled_from(
    [
        "",
        " ",
        "-",
        "..",
        "/",
        "\0",
        "\ud800",
        "\u202e",
        "'; --",
        "null",
        "1e999",
        "x" * 70,
        "a/b",
        "opensandbox.io/x",
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=5,
)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "image": st.builds(lambda uri: {"uri": uri}, TEXTS | st.sampled_from(["a:1", "h:5000/x", "A", "snapshot:x"])),
    "snapshotId": TEXTS,
    "platform": st.fixed_dictionaries({"os": st.sampled_from(["linux", "windows", "x"]), "arch": TEXTS}),
    "timeout": st.integers(-1, 2**70) | st.sampled_from([60, 59, 10**9, 10**9 + 1, 1e300]),
    "resourceLimits": st.dictionaries(
        st.sampled_from(["cpu", "memory", "gpu", "disk", "pids", "x"]),
        st.sampled_from(["1", "500m", "2Gi", "0", "-1", "9" * 30, "1.5", "٣", "all"]) | TEXTS,
        max_size=3,
    ),
    "env": st.dictionaries(TEXTS | st.sampled_from(["A", "A=B", "SANDMILL_X"]), TEXTS | st.none(), max_size=2),
    "metadata": st.dictionaries(TEXTS | st.just("a"), TEXTS | st.just("b"), max_size=2),
    "entrypoint": st.lists(TEXTS | st.just("a b"), max_size=3),
    "networkPolicy": st.fixed_dictionaries({}, optional={"defaultAction": TEXTS | st.just("deny"), "egress": VALUES}),
    "volumes": st.lists(
        st.fixed_dictionaries({"name": TEXTS | st.just("v"), "mountPath": TEXTS | st.just("/m")},
                              optional={"pvc": VALUES, "host": VALUES, "subPath": TEXTS}),
        max_size=2,
    ),
    "extensions": st.dictionaries(TEXTS | st.just("access.renew.extend.seconds"), TEXTS, max_size=2),
    "secureAccess": st.booleans() | st.none() | TEXTS,
}  # fmt: skip
GOOD: dict[str, Any] = {
    "image": {"uri": "a"},
    "timeout": 600,
    "resourceLimits": {"cpu": "1"},
    "entrypoint": ["tail", "-f", "/dev/null"],
}


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    """A good create in which up to three fields are of the right shape with odd values, or anything at all."""
    body = dict(GOOD)
    for name in draw(st.lists(st.sampled_from(sorted(FIELDS)), max_size=3, unique=True)):
        body[name] = draw(FIELDS[name] if draw(st.booleans()) else VALUES)
    for name in draw(st.lists(st.sampled_from(sorted(GOOD)), max_size=1)):
        body.pop(name, None)
    return body


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=bodies())
def test_no_create_breaks_the_server_or_loses_a_row(api, body):
    before = api.count("sandbox_sessions")
    content = json.dumps(body).encode()
    response = api.client.post("/v1/sandboxes", content=content, headers={"Content-Type": "application/json"})
    answer = response.json()
    if response.status_code == 202:
        path = f"/v1/sandboxes/{answer['id']}"
        assert api.count("sandbox_sessions") == before + 1
        assert api.client.get(path).json()["createdAt"] == answer["createdAt"]
        assert api.client.delete(path).status_code == 204
        assert api.client.get(path).status_code == 404
    else:
        assert response.status_code in {400, 404, 409, 413, 422, 429, 501}, response.text
        assert {"code", "message"} <= set(answer) <= {"code", "message", "detail"}
        assert api.count("sandbox_sessions") == before
        assert (response.status_code == 422) == ("detail" in answer)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    call=st.sampled_from(["", "/metadata", "/renew-expiration", "/endpoints/80", "/pause", "/record"]),
    method=st.sampled_from(["GET", "POST", "PATCH", "DELETE", "PUT"]),
    query=st.dictionaries(
        st.sampled_from(
            ["state", "metadata", "page", "pageSize", "expires", "use_server_proxy", "access", "x"]
        ),
        TEXTS,
    ),
    value=VALUES,
)
def test_no_other_call_breaks_the_server(api, call, method, query, value):
    sandbox = api.client.post("/v1/sandboxes", json=GOOD).json()["id"]
    query = {key: text.encode("utf-8", "replace").decode() for key, text in query.items()}
    for path in (f"/v1/sandboxes/{sandbox}{call}", "/sandboxes"):
        if path == "/sandboxes" and method == "POST":
            continue
        if call.startswith("/endpoints") and method == "GET":
            query.setdefault("expires", "1")  # no waiting for a node
        content = json.dumps(value).encode() if method in {"POST", "PATCH", "PUT"} else b""
        headers = {"Content-Type": "application/json"} if content else {}
        response = api.client.request(method, path, params=query, content=content, headers=headers)
        assert response.status_code < 500, response.text
        if response.status_code >= 400:
            assert {"code", "message"} <= set(response.json())
