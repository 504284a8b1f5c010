"""Batches that are submitted by the clock."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, Index, PrimaryKeyConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from models.base import Base

__all__ = ["Schedule", "ScheduleFire"]

_NOW = text("clock_timestamp()")


class Schedule(Base):
    """A cron expression and the batch it submits.

    template: the batch as the client sent it, to be shown. batch: the same, checked, as `services.batch_template`
    writes it. next_fire_at: None while paused, and when nothing is left to come.
    """

    __tablename__ = "schedules"
    __table_args__ = (
        CheckConstraint("catch_up IN ('none', 'one', 'all')", name="catch_up"),
        CheckConstraint("overlap IN ('allow', 'skip')", name="overlap"),
        Index("schedules_name_idx", "tenant_id", "name", unique=True),
        Index("schedules_due_idx", "next_fire_at", postgresql_where=text("next_fire_at IS NOT NULL")),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str]
    cron: Mapped[str]
    timezone: Mapped[str]
    template: Mapped[dict[str, Any]]
    batch: Mapped[dict[str, Any]]
    catch_up: Mapped[str]
    overlap: Mapped[str]
    next_fire_at: Mapped[datetime | None]
    paused_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    updated_at: Mapped[datetime] = mapped_column(server_default=_NOW)


class ScheduleFire(Base):
    """What became of one time of a schedule. The key keeps two schedulers from firing twice."""

    __tablename__ = "schedule_fires"
    __table_args__ = (
        PrimaryKeyConstraint("schedule_id", "fire_at"),
        CheckConstraint("outcome IN ('submitted', 'overlapped', 'missed', 'refused')", name="outcome"),
        CheckConstraint("(outcome = 'submitted') = (batch_id IS NOT NULL)", name="batch"),
        Index("schedule_fires_fired_at_idx", "fired_at"),
    )

    schedule_id: Mapped[UUID] = mapped_column(ForeignKey("schedules.id", ondelete="CASCADE"))
    fire_at: Mapped[datetime]
    tenant_id: Mapped[int]
    outcome: Mapped[str]
    # No foreign key: the batch may be archived before this row.
    batch_id: Mapped[UUID | None]
    detail: Mapped[str | None]
    fired_at: Mapped[datetime] = mapped_column(server_default=_NOW)
