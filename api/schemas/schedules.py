"""Schedules on the wire."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import Field

from api.schemas.base import RequestSchema, ResponseSchema
from api.schemas.batches import BatchRequest
from api.schemas.fields import ResourceName

__all__ = ["FireView", "ScheduleEnvelope", "SchedulePatch", "ScheduleRequest", "ScheduleView"]

CatchUp = Literal["none", "one", "all"]
Overlap = Literal["allow", "skip"]
Cron = Annotated[
    str,
    Field(
        max_length=200,
        description="Minute, hour, day of month, month, day of week.",
        examples=["0 3 * * MON-FRI"],
    ),
]
Zone = Annotated[
    str, Field(max_length=100, description="A name of the IANA time zones.", examples=["Europe/Berlin"])
]


class ScheduleEnvelope(RequestSchema):
    """A schedule whose batch is not looked at yet."""

    name: ResourceName
    cron: Cron
    timezone: Zone = "UTC"
    batch: dict[str, Any]
    catch_up: CatchUp = "none"
    overlap: Overlap = "allow"
    paused: bool = False


class ScheduleRequest(ScheduleEnvelope):
    """A batch that is submitted by the clock.

    catch_up: what becomes of times that passed while no scheduler ran: `none`, the latest `one`, or `all`, the newest
    100. overlap: `skip` submits nothing while the batch before is still running.
    """

    batch: BatchRequest  # type: ignore[assignment] # the published form of the same field


class SchedulePatch(RequestSchema):
    """What is to change; what is left out stays."""

    name: ResourceName | None = None
    cron: Cron | None = None
    timezone: Zone | None = None
    batch: dict[str, Any] | None = None
    catch_up: CatchUp | None = None
    overlap: Overlap | None = None


class ScheduleView(ResponseSchema):
    """One schedule."""

    id: UUID
    name: str
    cron: str
    timezone: str
    batch: dict[str, Any] = Field(description="As it was sent.")
    catch_up: CatchUp
    overlap: Overlap
    paused_at: datetime | None
    next_fires: list[datetime] = Field(description="The next five times; none while it is paused.")
    created_at: datetime
    updated_at: datetime


class FireView(ResponseSchema):
    """What became of one time of a schedule."""

    fire_at: datetime = Field(description="When it was due.")
    outcome: Literal["submitted", "overlapped", "missed", "refused"]
    batch_id: UUID | None = Field(description="The batch that was submitted.")
    detail: str | None = Field(description="Why nothing was submitted.")
    fired_at: datetime = Field(description="When that was decided.")
