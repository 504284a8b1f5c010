"""Bodies of the lifecycle API: read, and held against their schema; what is wrong is told as its clients expect."""

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from api.json_body import parse_json
from api.schemas.problems import describe
from api.wire.errors import WireSchemaError
from core.errors import InvalidRequestError, PayloadTooLargeError
from services.problems import InvalidFieldsError

__all__ = ["read_body", "read_json", "read_object"]

Model = TypeVar("Model", bound=BaseModel)


def read_json(body: bytes) -> Any:
    """Parse a body. Raises WireSchemaError for what is no JSON; InvalidFieldsError names what is wrong inside it."""
    try:
        return parse_json(body.removeprefix(b"\xef\xbb\xbf"))
    except (InvalidFieldsError, PayloadTooLargeError):
        raise
    except InvalidRequestError as error:
        raise WireSchemaError([{"loc": ("body",), "msg": error.message, "type": "json_invalid"}]) from error


def read_body(schema: type[Model], value: Any) -> Model:
    """Hold a parsed body against its schema. Raises WireSchemaError with all that is wrong."""
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        details = [
            {"loc": ("body", *item["loc"]), "msg": describe(item), "type": item["type"]}
            for item in error.errors(include_url=False)
        ]
        raise WireSchemaError(details) from error


def read_object(body: bytes) -> dict[str, Any]:
    """Parse a body that has to be an object. Raises as the others."""
    value = read_json(body)
    if not isinstance(value, dict):
        raise WireSchemaError([{"loc": ("body",), "msg": "must be an object", "type": "dict_type"}])
    return value
