"""What tenants have used, once the attempts themselves are archived."""

from datetime import date

from sqlalchemy import CheckConstraint, Date, Double, ForeignKey, PrimaryKeyConstraint
from sqlalchemy.orm import Mapped, mapped_column

from models.base import Base

__all__ = ["UsageDay"]


class UsageDay(Base):
    """Sums over a tenant's archived attempts of one UTC day.

    kind: `infra` for attempts that ended by the operator's fault, which nobody is charged for, else `task`.
    What is not archived is summed from `attempts`; no attempt is in both.
    """

    __tablename__ = "usage_days"
    __table_args__ = (
        PrimaryKeyConstraint("tenant_id", "day", "kind"),
        CheckConstraint("kind IN ('task', 'infra')", name="kind"),
    )

    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id"))
    day: Mapped[date] = mapped_column(Date)
    kind: Mapped[str]
    attempts: Mapped[int]
    attempt_seconds: Mapped[float] = mapped_column(Double)
    cpu_seconds: Mapped[float] = mapped_column(Double)
    memory_peak_bytes: Mapped[int]
    log_bytes: Mapped[int]
    artifact_bytes: Mapped[int]
