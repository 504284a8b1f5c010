"""Trials that the infrastructure could not bring to a verdict, kept for somebody to look at."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ForeignKey, Identity, Index, Integer, desc, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import Mapped, mapped_column

from models.base import Base

__all__ = ["DeadLetter"]


class DeadLetter(Base):
    """A trial that ended in `error` by a failure of class infra. A trigger writes it with that end, whoever ends it.

    n: orders the list. code: of the failure. attempts: how many there were; lost_on: the nodes that were lost under
    them, each once. A trial waits here until it is replayed (as another trial, replayed_as) or discarded. No foreign
    keys to trial, job and batch: they may be archived before this is.
    """

    __tablename__ = "dead_letters"
    __table_args__ = (Index("dead_letters_tenant_id_n_idx", "tenant_id", desc("n")),)

    trial_id: Mapped[UUID] = mapped_column(primary_key=True)
    n: Mapped[int] = mapped_column(Identity(always=True), unique=True)
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id"))
    batch_id: Mapped[UUID]
    job_id: Mapped[UUID]
    code: Mapped[str]
    failure: Mapped[dict[str, Any]]
    attempts: Mapped[int] = mapped_column(Integer)
    lost_on: Mapped[list[UUID]] = mapped_column(postgresql.ARRAY(postgresql.UUID(as_uuid=True)))
    created_at: Mapped[datetime] = mapped_column(server_default=text("clock_timestamp()"))
    replayed_as: Mapped[UUID | None]
    replayed_at: Mapped[datetime | None]
    discarded_at: Mapped[datetime | None]
