"""Lists on the wire."""

from typing import Annotated, Generic, TypeVar

from fastapi import Query
from pydantic import Field

from api.schemas.base import ResponseSchema

__all__ = ["Cursor", "Limit", "Page"]

Item = TypeVar("Item")

Limit = Annotated[int, Query(ge=1, le=500, description="Most items to answer.")]
Cursor = Annotated[
    str | None, Query(max_length=8192, description="`next_cursor` of the page before, with the same filters.")
]


class Page(ResponseSchema, Generic[Item]):
    """A part of a list."""

    items: list[Item]
    next_cursor: str | None = Field(description="Where to go on; null at the end.")
