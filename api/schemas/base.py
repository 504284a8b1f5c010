"""What all wire schemas share: strict types, and no field we do not know."""

from pydantic import BaseModel, ConfigDict

__all__ = ["RequestSchema", "ResponseSchema"]


class RequestSchema(BaseModel):
    """Base of what clients send. "1" is not 1, true is not 1, NaN is not a number, unknown fields are refused."""

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, allow_inf_nan=False, populate_by_name=False
    )


class ResponseSchema(BaseModel):
    """Base of what is answered. Field order is the order on the wire."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_bytes="base64")
