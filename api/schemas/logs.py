"""Logs and blobs on the wire."""

from datetime import datetime

from pydantic import Field

from api.schemas.base import ResponseSchema

__all__ = ["BlobView", "LogChunkView", "LogPageView"]


class LogChunkView(ResponseSchema):
    """A run of output of one stream, at most 64 KiB."""

    seq: int = Field(description="One order over both streams, from 0, without gaps.")
    t: datetime
    stream: str = Field(description="stdout or stderr.")
    step: str
    b64: str = Field(description="The exact bytes.")
    text: str = Field(description="The same as text; what is not UTF-8 is replaced by U+FFFD.")


class LogPageView(ResponseSchema):
    """A part of a log."""

    items: list[LogChunkView]
    next_cursor: str | None = Field(
        description="The next `after`; null when the log has ended with this part."
    )
    closed: bool = Field(description="Nothing will be added.")
    truncated_bytes: int = Field(description="Cut from the middle by the size limit.")


class BlobView(ResponseSchema):
    """A stored blob."""

    digest: str
    size_bytes: int
