"""Tables of the dispatcher alone: what it remembers of a tenant between two ticks, named queues, budgets."""

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Integer, PrimaryKeyConstraint, text
from sqlalchemy.dialects.postgresql import DOUBLE_PRECISION
from sqlalchemy.orm import Mapped, mapped_column

from models.base import Base

__all__ = ["BudgetPeriod", "Queue", "QueueBound", "TenantSchedule"]

_NOW = text("clock_timestamp()")
_ZERO = text("0")


class TenantSchedule(Base):
    """What the scheduler alone writes about a tenant, so that it never waits for whoever edits `tenants`.

    usage: dominant share of the past, as a mean that forgets by half-life. tokens: starts left in the rate's bucket.
    """

    __tablename__ = "tenant_schedule"

    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id"), primary_key=True, autoincrement=False)
    usage: Mapped[float] = mapped_column(DOUBLE_PRECISION, server_default=_ZERO)
    usage_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    tokens: Mapped[float | None] = mapped_column(DOUBLE_PRECISION)
    tokens_at: Mapped[datetime | None]


class QueueBound(Base):
    """How many trials of a tenant wait at most: what waited or ran when they were counted, and what came since."""

    __tablename__ = "queue_bounds"
    __table_args__ = ({"postgresql_with": {"fillfactor": 50}},)

    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id"), primary_key=True, autoincrement=False)
    at_most: Mapped[int] = mapped_column(BigInteger)


class Queue(Base):
    """A named queue, of the whole installation: may be paused, and may have a cap over all tenants."""

    __tablename__ = "queues"
    __table_args__ = (CheckConstraint("max_running >= 0", name="max_running"),)

    name: Mapped[str] = mapped_column(primary_key=True)
    max_running: Mapped[int | None] = mapped_column(Integer)
    paused_at: Mapped[datetime | None]
    limits_lowered_at: Mapped[datetime | None]  # written by a trigger
    created_at: Mapped[datetime] = mapped_column(server_default=_NOW)


class BudgetPeriod(Base):
    """What a tenant's ended attempts have used in one period of its budget.

    Recounts as the sum over the attempts with `charged_at` that ended in the period; what is not charged yet is read
    from the attempts themselves.
    """

    __tablename__ = "budget_periods"
    __table_args__ = (PrimaryKeyConstraint("tenant_id", "starts_at", "ends_at"),)

    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id"))
    starts_at: Mapped[datetime]
    ends_at: Mapped[datetime]
    spent_cpu_seconds: Mapped[float] = mapped_column(DOUBLE_PRECISION, server_default=_ZERO)
