"""specs/lifecycle.yaml says what the lifecycle API is: the same routes, fields and states."""

import importlib
import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import api.wire
from api.wire.schemas import CreateSandboxRequest, SandboxView
from models.live_sandboxes import WireState

SPEC: dict[str, Any] = yaml.safe_load((Path(__file__).parents[3] / "specs" / "lifecycle.yaml").read_text())
METHODS = {"get", "post", "put", "patch", "delete"}


def served() -> set[tuple[str, str]]:
    routers = [
        importlib.import_module(f"api.wire.{module.name}")
        for module in pkgutil.iter_modules(api.wire.__path__)
    ]
    return {
        (method, route.path)
        for module in routers
        if hasattr(module, "router")
        for route in module.router.routes
        for method in route.methods
    }


def test_the_routes_are_those_that_are_served():
    described = {
        (method.upper(), path)
        for path, methods in SPEC["paths"].items()
        for method in METHODS & methods.keys()
    }
    assert described == served()


def test_every_reference_leads_somewhere():
    for reference in re.findall(r"'\$ref': '#/([^']+)'", str(SPEC)):
        place: Any = SPEC
        for part in reference.split("/"):
            place = place[part]


@pytest.mark.parametrize(
    ("name", "model"), [("CreateSandboxRequest", CreateSandboxRequest), ("Sandbox", SandboxView)]
)
def test_the_fields_are_those_of_the_schema(name, model):
    described = set(SPEC["components"]["schemas"][name]["properties"])
    assert described == {field.alias for field in model.model_fields.values()}


def test_the_states_are_those_there_are():
    assert SPEC["components"]["schemas"]["Status"]["properties"]["state"]["enum"] == [*WireState]
