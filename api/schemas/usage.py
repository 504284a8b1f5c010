"""Usage on the wire."""

from datetime import date

from pydantic import Field

from api.schemas.base import ResponseSchema

__all__ = ["UsageDayView", "UsageTotalView", "UsageView"]


class UsageTotalView(ResponseSchema):
    """What some attempts took."""

    attempts: int
    attempt_seconds: float = Field(description="From the claim to the end, added up.")
    cpu_seconds: float = Field(
        description="Processor time of their sandboxes, where the runtime measures it."
    )
    memory_peak_bytes: int = Field(description="The most that any one of them used.")
    log_bytes: int = Field(description="Output stored.")
    artifact_bytes: int = Field(description="Files kept.")


class UsageDayView(ResponseSchema):
    """One UTC day."""

    day: date
    task: UsageTotalView
    infra: UsageTotalView


class UsageView(ResponseSchema):
    """What was used in a time. Attempts count on the day they end."""

    since: date = Field(alias="from", description="First UTC day.")
    until: date = Field(alias="to", description="The UTC day after the last one.")
    task: UsageTotalView = Field(description="Attempts that ran as the jobs said.")
    infra: UsageTotalView = Field(
        description="Attempts lost or broken by the installation; they are nobody's charge."
    )
    days: list[UsageDayView] = Field(description="By day; days without any attempt are left out.")
