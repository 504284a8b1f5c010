"""Pieces of the published document that FastAPI cannot find by itself, because we read bodies ourselves."""

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from api.schemas.admin import KeyRequest, QueueRequest, TenantChange, TenantRequest
from api.schemas.batches import (
    AppendRequest,
    BatchRequest,
    CancelRequest,
    RegradeRequest,
    RunAgainRequest,
)
from api.schemas.dead_letters import ReplayRequest
from api.schemas.jobs import JobRequest
from api.schemas.schedules import SchedulePatch, ScheduleRequest
from api.schemas.webhooks import WebhookRequest, WebhookSecretRequest

__all__ = ["BINARY_REQUEST", "add_request_schemas", "json_request"]

_REF = "#/components/schemas/{model}"
_REQUESTS: tuple[type[BaseModel], ...] = (
    AppendRequest,
    BatchRequest,
    JobRequest,
    CancelRequest,
    RunAgainRequest,
    RegradeRequest,
    KeyRequest,
    QueueRequest,
    ReplayRequest,
    SchedulePatch,
    ScheduleRequest,
    TenantChange,
    TenantRequest,
    WebhookRequest,
    WebhookSecretRequest,
)

BINARY_REQUEST: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


def json_request(model: type[BaseModel], example: object, *, required: bool = True) -> dict[str, Any]:
    """Describe a JSON body. model: one of those that `add_request_schemas` publishes."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {
        "requestBody": {
            "required": required,
            "content": {"application/json": {"schema": schema, "example": example}},
        }
    }


def add_request_schemas(document: dict[str, Any]) -> None:
    """Publish the schemas of all JSON bodies, and all fields of a job but its key, none required, as `JobDefaults`."""
    _, found = models_json_schema([(model, "validation") for model in _REQUESTS], ref_template=_REF)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas.update(found["$defs"])
    schemas["JobDefaults"] = {
        "title": "JobDefaults",
        "type": "object",
        "description": "Any fields of a job but its key; objects may hold a part of their fields.",
        "properties": {
            name: value for name, value in schemas["JobRequest"]["properties"].items() if name != "key"
        },
        "additionalProperties": False,
    }
    for name in ("BatchRequest", "AppendRequest"):
        schemas[name]["properties"]["defaults"] = {"$ref": "#/components/schemas/JobDefaults"}
