"""Tables of what ties the trials of a batch together: needs, progress, events, later grades."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, Identity, Index, Integer, PrimaryKeyConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from models.base import Base
from models.states import NeedOutcome, Outcome, sql_list

__all__ = ["BatchEvent", "BatchInbox", "BatchProgress", "Grade", "JobNeed", "JobProgress", "Regrade"]

_NOW = text("clock_timestamp()")
_ZERO = text("0")


class JobNeed(Base):
    """An edge: the trials of `job_id` wait until `needs_job_id` has ended as `outcome` says."""

    __tablename__ = "job_needs"
    __table_args__ = (
        PrimaryKeyConstraint("job_id", "needs_job_id"),
        CheckConstraint(f"outcome IN ({sql_list(tuple(NeedOutcome))})", name="outcome"),
        CheckConstraint("job_id <> needs_job_id", name="not_itself"),
        Index("job_needs_needs_job_id_idx", "needs_job_id"),
    )

    job_id: Mapped[UUID] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    needs_job_id: Mapped[UUID] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    outcome: Mapped[str]


class _Counts:
    """Finished trials that count, by outcome. What lies in the inbox is not in here yet."""

    passed: Mapped[int] = mapped_column(Integer, server_default=_ZERO)
    failed: Mapped[int] = mapped_column(Integer, server_default=_ZERO)
    error: Mapped[int] = mapped_column(Integer, server_default=_ZERO)
    cancelled: Mapped[int] = mapped_column(Integer, server_default=_ZERO)
    skipped: Mapped[int] = mapped_column(Integer, server_default=_ZERO)


class BatchProgress(_Counts, Base):
    """Counters of a batch, rolled up by the scheduler so that no row is hot. last_event: its newest event's n."""

    __tablename__ = "batch_progress"
    __table_args__ = ({"postgresql_with": {"fillfactor": 50}},)

    batch_id: Mapped[UUID] = mapped_column(ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True)
    last_event: Mapped[int] = mapped_column(server_default=_ZERO)


class JobProgress(_Counts, Base):
    """Counters of a job, rolled up with those of its batch."""

    __tablename__ = "job_progress"
    __table_args__ = ({"postgresql_with": {"fillfactor": 50}},)

    job_id: Mapped[UUID] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)


class BatchInbox(Base):
    """What the scheduler has yet to take into a batch's progress: ends of trials, and requests to look at the batch.

    A trigger writes an end in the transaction that finishes the trial, whoever does that. trial_id is null for a mere
    request to look. is_counted false: superseded before it was counted.
    """

    __tablename__ = "batch_inbox"
    __table_args__ = (
        Index("batch_inbox_batch_id_idx", "batch_id"),
        Index("batch_inbox_trial_id_idx", "trial_id"),
        {"postgresql_with": {"autovacuum_vacuum_scale_factor": 0.02, "autovacuum_vacuum_cost_delay": 0}},
    )

    n: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    batch_id: Mapped[UUID]
    job_id: Mapped[UUID | None]
    trial_id: Mapped[UUID | None]
    outcome: Mapped[str | None]
    is_counted: Mapped[bool] = mapped_column(server_default=text("true"))


class BatchEvent(Base):
    """What happened in a batch, in the order in which it was counted; n has no gaps within a batch."""

    __tablename__ = "batch_events"
    __table_args__ = (PrimaryKeyConstraint("batch_id", "n"),)

    batch_id: Mapped[UUID] = mapped_column(ForeignKey("batches.id", ondelete="CASCADE"))
    n: Mapped[int]
    kind: Mapped[str]
    trial_id: Mapped[UUID | None]
    outcome: Mapped[str | None]
    detail: Mapped[dict[str, Any] | None]
    at: Mapped[datetime] = mapped_column(server_default=_NOW)


class Regrade(Base):
    """A wish to grade finished trials again. verdict: as stored in specs; null: each job's own."""

    __tablename__ = "regrades"

    id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id"))
    batch_id: Mapped[UUID] = mapped_column(ForeignKey("batches.id", ondelete="CASCADE"))
    verdict: Mapped[dict[str, Any] | None]
    created_at: Mapped[datetime] = mapped_column(server_default=_NOW)


class Grade(Base):
    """One trial of a regrade: pending until `graded_at`, then part of its history. number: the grade_no it gave.

    tries: how often a worker has begun; the last of them has until claimed_until.
    """

    __tablename__ = "grades"
    __table_args__ = (
        PrimaryKeyConstraint("regrade_id", "trial_id"),
        CheckConstraint(f"outcome IN ({sql_list(tuple(Outcome))})", name="outcome"),
        Index("grades_pending_idx", "regrade_id", "trial_id", postgresql_where=text("graded_at IS NULL")),
        Index("grades_trial_id_idx", "trial_id"),
    )

    regrade_id: Mapped[UUID] = mapped_column(ForeignKey("regrades.id", ondelete="CASCADE"))
    trial_id: Mapped[UUID]
    number: Mapped[int | None] = mapped_column(Integer)
    old_outcome: Mapped[str | None]
    outcome: Mapped[str | None]
    failure: Mapped[dict[str, Any] | None]
    grade: Mapped[dict[str, Any] | None]
    graded_at: Mapped[datetime | None]
    tries: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    claimed_until: Mapped[datetime | None]
