"""Warm pools: from what their members are made, and how many there are to be."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, Index, Integer, UniqueConstraint, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import Text

from models.base import Base

__all__ = ["SandboxPool"]

_NOW = text("clock_timestamp()")
_EMPTY = text("'{}'::jsonb")


class SandboxPool(Base):
    """Sandboxes of one tenant that are started before anybody asks for them. Members: `sandbox_sessions.pool_id`.

    template: as it was sent, without credentials. spec: what it came to, a SessionSpec. key: of all that two sandboxes
    have to share to be the same thing; a create with the same key is given a member. buffer_min, buffer_max: free
    members; below the one the pool is filled up to the other. pool_min, pool_max: free ones and those in use.
    revision: of the template; members of an older one are given to nobody.
    """

    __tablename__ = "sandbox_pools"
    __table_args__ = (
        UniqueConstraint("tenant_id", "name"),
        CheckConstraint("buffer_min BETWEEN 0 AND buffer_max", name="buffer"),
        CheckConstraint("pool_min BETWEEN 0 AND pool_max", name="pool"),
        Index("sandbox_pools_tenant_id_key_idx", "tenant_id", "key"),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str]
    template: Mapped[dict[str, Any]]
    spec: Mapped[dict[str, Any]]
    key: Mapped[str]
    runtime: Mapped[str]
    image: Mapped[str]
    entrypoint: Mapped[list[str]] = mapped_column(ARRAY(Text))
    platform: Mapped[dict[str, Any] | None]
    metadata_: Mapped[dict[str, Any]] = mapped_column("metadata", server_default=_EMPTY)
    node_labels: Mapped[dict[str, Any]] = mapped_column(server_default=_EMPTY)
    image_auth: Mapped[bytes | None]
    buffer_min: Mapped[int] = mapped_column(Integer)
    buffer_max: Mapped[int] = mapped_column(Integer)
    pool_min: Mapped[int] = mapped_column(Integer)
    pool_max: Mapped[int] = mapped_column(Integer)
    revision: Mapped[int] = mapped_column(Integer, server_default=text("1"))
    created_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    updated_at: Mapped[datetime] = mapped_column(server_default=_NOW)
