"""Anything at all on any route: never a 5xx, and every refusal in the one shape."""

import json
import re
from typing import Any
from urllib.parse import quote

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.ids import new_id
from tests.integration.api.conftest import make_batch, make_job

TEXTS = st.text(max_size=20) | st.sampled_from(
    ["", "..", "/", "%00", "\0", "null", "-1", "\u202e", "'", "x" * 5000]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
IDS = st.sampled_from([str(new_id()), "sha256:" + "0" * 64])
DEFAULTS = {name: value for name, value in make_job().items() if name != "key"}
CODE = re.compile(r"[a-z_]+")


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """A valid body with junk put in somewhere, or junk."""
    base = draw(
        st.sampled_from([make_job(), make_batch(), make_batch(defaults=DEFAULTS), {"mode": "force"}, {}])
    )
    if not draw(st.booleans()):
        return draw(st.binary(max_size=50) | VALUES.map(lambda value: json.dumps(value).encode()))
    value = json.loads(json.dumps(base))
    for _ in range(draw(st.integers(0, 2))):
        value[draw(st.sampled_from([*value, "timeouts", "verdict", "env", "inputs", "priority"]))] = draw(
            VALUES
        )
    return json.dumps(value).encode()


def operations(document: dict[str, Any]) -> list[tuple[str, str, list[dict[str, Any]]]]:
    return [
        (method.upper(), path, operation.get("parameters", []))
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_request_breaks_the_server(api, data):
    method, path, parameters = data.draw(st.sampled_from(operations(api.app.openapi())))
    query = {}
    headers = {"Content-Type": data.draw(st.sampled_from(["application/json", "text/plain", ""]))}
    for parameter in parameters:
        name = parameter["name"]
        if parameter["in"] == "path":
            path = path.replace("{" + name + "}", quote(data.draw(IDS | TEXTS), safe="") or "x")
        elif parameter["in"] == "query" and name != "follow" and data.draw(st.booleans()):
            query[name] = data.draw(TEXTS | st.integers().map(str))
        elif parameter["in"] == "header" and data.draw(st.booleans()):
            headers[name] = data.draw(
                st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), max_size=30)
            )
    if data.draw(st.booleans()):
        query[data.draw(TEXTS)] = data.draw(TEXTS)
    body = data.draw(bodies()) if method == "POST" else b""
    response = api.client.request(method, path, params=query, content=body, headers=headers)

    assert response.status_code < 500, response.text
    if response.status_code >= 400 and method != "HEAD":
        refusal = response.json()
        assert set(refusal) == {"code", "message", "field", "request_id", "details"}
        assert CODE.fullmatch(refusal["code"])
