"""Webhooks and schedules, as they come back. Times are aware."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sandmill.record import Record

__all__ = ["Schedule", "Webhook"]


@dataclass(frozen=True, slots=True)
class Webhook:
    """A receiver of events. secret: known right after it was made, else None."""

    id: str
    name: str
    url: str
    created_at: datetime
    disabled_at: datetime | None
    secret: str | None

    @classmethod
    def from_json(cls, value: Any) -> "Webhook":
        """Read the wire form."""
        found = Record(value, "webhook")
        return cls(
            id=found.text("id"),
            name=found.text("name"),
            url=found.text("url"),
            created_at=found.time("created_at"),
            disabled_at=found.time_or_none("disabled_at"),
            secret=found.text_or_none("secret"),
        )


@dataclass(frozen=True, slots=True)
class Schedule:
    """A batch that is submitted by the clock. paused_at: None while it fires."""

    id: str
    name: str
    cron: str
    timezone: str
    paused_at: datetime | None
    created_at: datetime

    @classmethod
    def from_json(cls, value: Any) -> "Schedule":
        """Read the wire form."""
        found = Record(value, "schedule")
        return cls(
            id=found.text("id"),
            name=found.text("name"),
            cron=found.text("cron"),
            timezone=found.text("timezone"),
            paused_at=found.time_or_none("paused_at"),
            created_at=found.time("created_at"),
        )
