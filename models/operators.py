"""What operators do, kept."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ForeignKey, Identity, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from models.base import Base

__all__ = ["AdminEvent", "Leader"]


class Leader(Base):
    """Which scheduler leads, for people: the advisory lock decides. epoch goes up with every change."""

    __tablename__ = "leader"

    name: Mapped[str] = mapped_column(primary_key=True)
    epoch: Mapped[int]
    holder: Mapped[str]
    since: Mapped[datetime] = mapped_column(server_default=text("clock_timestamp()"))


class AdminEvent(Base):
    """A change an operator made, written in the same transaction. Append-only.

    subject: e.g. `tenant:acme`, `node:<id>`, `queue:gpu`, `key:<id>`. detail: the fields that were given; never a key.
    """

    __tablename__ = "admin_events"
    __table_args__ = (Index("admin_events_subject_id_idx", "subject", "id"),)

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    at: Mapped[datetime] = mapped_column(server_default=text("clock_timestamp()"))
    key_id: Mapped[UUID] = mapped_column(ForeignKey("api_keys.id"))
    action: Mapped[str]
    subject: Mapped[str]
    detail: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
