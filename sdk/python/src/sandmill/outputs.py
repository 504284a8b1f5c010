"""What a sandbox gave out: its log, chunk by chunk, and the files kept from it."""

import base64
import binascii
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sandmill.errors import ProtocolError
from sandmill.record import Record

__all__ = [
    "ArtifactInfo",
    "LogChunk",
]


@dataclass(frozen=True, slots=True)
class LogChunk:
    """A run of output of one stream. seq: one order over both streams, from 0, without gaps."""

    seq: int
    time: datetime
    stream: str
    step: str
    data: bytes

    @property
    def text(self) -> str:
        """The data as text, what is not UTF-8 replaced. A character cut by the end of the chunk is lost: join data."""
        return self.data.decode("utf-8", "replace")

    @classmethod
    def from_json(cls, value: Any) -> "LogChunk":
        """Read the wire form."""
        found = Record(value, "log chunk")
        try:
            data = base64.b64decode(found.text("b64"), validate=True)
        except binascii.Error as error:
            raise ProtocolError("the answer holds a log chunk that is not base64") from error
        return cls(
            seq=found.integer("seq"),
            time=found.time("t"),
            stream=found.text("stream"),
            step=found.text("step"),
            data=data,
        )


@dataclass(frozen=True, slots=True)
class ArtifactInfo:
    """A file kept from the sandbox. path: as it was there. digest: `sha256:<hex>`."""

    path: str
    digest: str
    size_bytes: int
    created_at: datetime

    @classmethod
    def from_json(cls, value: Any) -> "ArtifactInfo":
        """Read the wire form."""
        found = Record(value, "artifact")
        return cls(
            found.text("path"), found.text("digest"), found.integer("size_bytes"), found.time("created_at")
        )
