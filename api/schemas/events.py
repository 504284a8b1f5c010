"""Events of a batch on the wire."""

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from pydantic import Field

from api.schemas.base import ResponseSchema
from api.schemas.trials import OutcomeName

__all__ = ["EventPageView", "EventView"]


class EventView(ResponseSchema):
    """Something that happened in a batch."""

    seq: int = Field(description="Its place, from 1, without gaps.")
    type: Literal["trial.finished", "trial.regraded", "batch.stopped", "batch.finished", "batch.reopened"]
    at: datetime = Field(description="When it was counted.")
    trial_id: UUID | None
    job_id: UUID | None
    job_key: str | None
    index: int | None
    outcome: OutcomeName | None
    failure_code: str | None = Field(description="Of the trial as it is now.")
    rewards: dict[str, float] | None = Field(description="Of the trial as it is now.")
    detail: dict[str, Any] | None


class EventPageView(ResponseSchema):
    """A part of the events."""

    items: list[EventView]
    next_cursor: str | None = Field(
        description="The next `after`; null when the batch is finished and this was the last part."
    )
