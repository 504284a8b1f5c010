"""Snapshots of live sandboxes: kept by one node, known to the wire."""

from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, desc, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import Text

from models.base import Base
from models.states import sql_list

__all__ = ["Snapshot", "SnapshotState"]

_NOW = text("clock_timestamp()")


class SnapshotState(StrEnum):
    """Where a snapshot is, in the words of the wire protocol, section 1.11."""

    CREATING = "Creating"
    READY = "Ready"
    FAILED = "Failed"
    DELETING = "Deleting"


class Snapshot(Base):
    """A copy of a live sandbox's files. It outlives the sandbox, whose row may be archived before it.

    runtime_name: what the node's runtime calls it; a sandbox starts from it as `snapshot:NAME`. env, platform, image,
    entrypoint: of the sandbox it was made of. size_bytes: None where the runtime does not say.
    """

    __tablename__ = "snapshots"
    __table_args__ = (
        CheckConstraint(f"state IN ({sql_list(tuple(SnapshotState))})", name="state"),
        Index("snapshots_tenant_idx", "tenant_id", desc("created_at"), desc("id")),
        Index("snapshots_node_idx", "node_id"),
        Index("snapshots_orders_idx", "node_id", postgresql_where=text("state IN ('Creating', 'Deleting')")),
        Index("snapshots_creating_idx", "sandbox_id", postgresql_where=text("state = 'Creating'")),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id"))
    sandbox_id: Mapped[UUID]
    name: Mapped[str | None]
    state: Mapped[str] = mapped_column(server_default=text("'Creating'"))
    state_reason: Mapped[str]
    state_message: Mapped[str | None]
    state_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    node_id: Mapped[UUID]
    runtime: Mapped[str]
    runtime_name: Mapped[str]
    image: Mapped[str | None]
    entrypoint: Mapped[list[str]] = mapped_column(ARRAY(Text))
    env: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    platform: Mapped[dict[str, Any] | None]
    size_bytes: Mapped[int | None] = mapped_column(BigInteger)
    created_by: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=_NOW)
