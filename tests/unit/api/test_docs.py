"""The guide to the job schema, against the schema."""

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from api.schemas.batches import BatchRequest
from services.waiting import WaitReason

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "jobs.md").read_text(encoding="utf-8")
CODE = " ".join(re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL)))
WORDS = set(re.findall(r"\w+", CODE))


def models() -> list[tuple[str, dict[str, Any]]]:
    kinds: list[tuple[type[BaseModel], Any]] = [(BatchRequest, "validation")]
    found = models_json_schema(kinds)[1]["$defs"]
    return [(name, schema) for name, schema in found.items() if "properties" in schema]


@pytest.mark.parametrize(
    ("name", "schema"), models(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_field_is_explained(name, schema):
    example = set(re.findall(r'"(\w+)":', TEXT)) if name == "BatchRequest" else set()
    assert set(schema["properties"]) <= WORDS | example


def test_every_reason_to_wait_is_explained():
    assert {reason.value for reason in WaitReason} <= WORDS


def row(name: str) -> str:
    return next(line for line in TEXT.splitlines() if line.startswith(f"| `{name}` |"))


def test_defaults_of_the_guide_are_those_of_the_schema():
    schemas = dict(models())
    step, resources, timeouts = (
        schemas[f"{name}Request"]["properties"] for name in ("Step", "Resources", "Timeouts")
    )
    assert row("timeout").endswith(f"| {step['timeout']['default']:g} |")
    assert row("role").endswith(f"| `{step['role']['default']}` |")
    sizes = [resources[name]["default"] for name in ("cpu", "memory_mb")]
    sizes = [size["limit"] for size in sizes] + [
        resources[name]["default"] for name in ("disk_mb", "pids", "gpu")
    ]
    assert row("resources").endswith(f"| {', '.join(f'{size:g}' for size in sizes)} |")
    waits = [timeouts[name]["default"] for name in ("queue", "start", "run", "idle", "total", "grace")]
    words = ["none" if wait is None else f"{wait:g}" for wait in waits]
    assert row("timeouts").endswith(f"| {', '.join(words)} |")
    assert schemas["PatchRequest"]["properties"]["strip"]["default"] == 1
    assert "`strip` (1)" in row("patch")
    assert schemas["JunitRequest"]["properties"]["allow_skip"]["default"] is True
    assert "| none, true |" in TEXT
