"""Webhooks with what was sent to them, and schedules with their times, as they come back. Times are aware."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sandmill.record import Record

__all__ = ["Schedule", "ScheduleFire", "Webhook", "WebhookDelivery"]


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
class WebhookDelivery:
    """One message to one receiver. id: its header `webhook-id`, the same at every try.

    event: trial.finished or batch.finished; subject_id: of that trial or batch. state: pending, delivered or dead.
    last_status: of the receiver's last answer; last_error: why the last try failed.
    """

    id: str
    webhook_id: str
    url: str
    event: str
    subject_id: str
    state: str
    tries: int
    next_try_at: datetime | None
    last_status: int | None
    last_error: str | None
    payload: dict[str, Any]
    created_at: datetime
    finished_at: datetime | None

    @classmethod
    def from_json(cls, value: Any) -> "WebhookDelivery":
        """Read the wire form."""
        found = Record(value, "webhook delivery")
        return cls(
            id=found.text("id"),
            webhook_id=found.text("webhook_id"),
            url=found.text("url"),
            event=found.text("event"),
            subject_id=found.text("subject_id"),
            state=found.text("state"),
            tries=found.integer("tries"),
            next_try_at=found.time_or_none("next_try_at"),
            last_status=found.integer_or_none("last_status"),
            last_error=found.text_or_none("last_error"),
            payload=found.json_object("payload"),
            created_at=found.time("created_at"),
            finished_at=found.time_or_none("finished_at"),
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


@dataclass(frozen=True, slots=True)
class ScheduleFire:
    """What became of one time of a schedule. outcome: submitted, overlapped, missed or refused; detail: why."""

    fire_at: datetime
    outcome: str
    batch_id: str | None
    detail: str | None
    fired_at: datetime

    @classmethod
    def from_json(cls, value: Any) -> "ScheduleFire":
        """Read the wire form."""
        found = Record(value, "schedule fire")
        return cls(
            fire_at=found.time("fire_at"),
            outcome=found.text("outcome"),
            batch_id=found.text_or_none("batch_id"),
            detail=found.text_or_none("detail"),
            fired_at=found.time("fired_at"),
        )
