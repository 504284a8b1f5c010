"""What is left of archived batches, and who uses a blob."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ForeignKeyConstraint, Index, PrimaryKeyConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from models.base import Base

__all__ = ["PARTITIONED", "BatchHistory", "BlobUse", "TrialHistory"]

_NOW = text("clock_timestamp()")

PARTITIONED = {
    "trial_events": "trial_id",
    "log_chunks": "trial_id",
    "trial_history": "id",
    "batch_history": "id",
}
"""Tables in monthly partitions -> the column they are split by: an id, whose first 48 bits are the time it was made."""


class BatchHistory(Base):
    """An archived batch: its row and how its trials ended. Split by the month in which the batch was made."""

    __tablename__ = "batch_history"
    __table_args__ = (
        Index("batch_history_tenant_id_id_idx", "tenant_id", "id"),
        {"postgresql_partition_by": "RANGE (id)"},
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant_id: Mapped[int]
    batch: Mapped[dict[str, Any]]
    outcomes: Mapped[dict[str, Any]]
    archived_at: Mapped[datetime] = mapped_column(server_default=_NOW)


class TrialHistory(Base):
    """An archived trial with its attempts, as they were."""

    __tablename__ = "trial_history"
    __table_args__ = (
        Index("trial_history_batch_id_id_idx", "batch_id", "id"),
        {"postgresql_partition_by": "RANGE (id)"},
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant_id: Mapped[int]
    batch_id: Mapped[UUID]
    trial: Mapped[dict[str, Any]]
    attempts: Mapped[list[dict[str, Any]]]
    archived_at: Mapped[datetime] = mapped_column(server_default=_NOW)


class BlobUse(Base):
    """A job or schedule that names a blob as an input: as long as there is one, the blob stays.

    Those of jobs are written by a trigger, so that nobody who makes a job can forget them. The foreign key makes a
    collector and a submission wait for each other.
    """

    __tablename__ = "blob_uses"
    __table_args__ = (
        PrimaryKeyConstraint("owner_id", "digest"),
        ForeignKeyConstraint(["tenant_id", "digest"], ["blobs.tenant_id", "blobs.digest"]),
        Index("blob_uses_tenant_id_digest_idx", "tenant_id", "digest"),
    )

    owner_id: Mapped[UUID]
    tenant_id: Mapped[int]
    digest: Mapped[str]
