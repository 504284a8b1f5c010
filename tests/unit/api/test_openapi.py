"""The published document: complete, up to date, and true to what the code checks."""

import json
from typing import Any

import pytest

from api.openapi import TARGET, main, render

DOCUMENT: dict[str, Any] = json.loads(render())
OPERATIONS = [
    (f"{method.upper()} {path}", operation)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
]


def test_the_file_in_specs_is_up_to_date():
    assert main(["--check"]) == 0, "run python -m api.openapi"
    assert TARGET.read_text(encoding="utf-8") == render()


def test_a_stale_file_is_noticed(monkeypatch, tmp_path, capsys):
    stale = tmp_path / "openapi.json"
    monkeypatch.setattr("api.openapi.TARGET", stale)
    assert main(["--check"]) == 1
    assert "out of date" in capsys.readouterr().err
    assert main([]) == 0
    assert main(["--check"]) == 0


@pytest.mark.parametrize(("name", "operation"), OPERATIONS, ids=[name for name, _ in OPERATIONS])
def test_every_operation_is_described(name, operation):
    assert operation["summary"]
    assert operation["description"]
    assert len(operation["tags"]) == 1
    if "operation" not in operation["tags"]:
        assert {"401", "422", "503"} <= set(operation["responses"])
        assert operation["security"]
    # A verb on one thing, such as POST /v1/admin/nodes/{node_id}/cordon, may need no words.
    if name.startswith("POST") and "}/" not in name:
        assert operation["requestBody"]["content"]


@pytest.mark.parametrize(("name", "operation"), OPERATIONS, ids=[name for name, _ in OPERATIONS])
def test_every_refusal_has_the_one_shape(name, operation):
    for status, response in operation["responses"].items():
        if int(status) >= 400:
            assert response["content"]["application/json"]["schema"]["$ref"].endswith("/ErrorView"), (
                name,
                status,
            )


def test_every_reference_leads_somewhere():
    def walk(value: Any) -> None:
        if isinstance(value, dict):
            reference = value.get("$ref")
            if isinstance(reference, str):
                kind, name = reference.removeprefix("#/components/").split("/")
                assert name in DOCUMENT["components"][kind], reference
            for inner in value.values():
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)

    walk(DOCUMENT)


def test_schemas_refuse_unknown_fields_and_bound_their_text():
    schemas = DOCUMENT["components"]["schemas"]
    assert schemas["JobRequest"]["additionalProperties"] is False
    assert schemas["StepRequest"]["properties"]["name"]["pattern"]
    assert schemas["BatchRequest"]["properties"]["defaults"]["$ref"].endswith("/JobDefaults")
    assert "required" not in schemas["JobDefaults"]
