"""Live sandboxes: what the wire needs of a trial of kind `session`, and what happened to it."""

from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
    Identity,
    Index,
    Integer,
    PrimaryKeyConstraint,
    desc,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import Text

from models.base import Base
from models.states import sql_list

__all__ = ["ENDED_STATES", "SandboxEvent", "SandboxOutput", "SandboxSession", "WireState"]

_NOW = text("clock_timestamp()")
_EMPTY = text("'{}'::jsonb")


class WireState(StrEnum):
    """Where a live sandbox is, in the words of the wire protocol, section 1.4."""

    PENDING = "Pending"
    RUNNING = "Running"
    PAUSING = "Pausing"
    PAUSED = "Paused"
    RESUMING = "Resuming"
    STOPPING = "Stopping"
    TERMINATED = "Terminated"
    FAILED = "Failed"


ENDED_STATES = (WireState.TERMINATED, WireState.FAILED)
"""Nothing of the sandbox is left, or nobody can say what is."""


class SandboxSession(Base):
    """A live sandbox: one row beside its trial, whose id it has. What never changes lies in the job's spec.

    access_token: what the node's ingress demands for execd. hidden_at: since when the wire says that there is none;
    set with a delete and with the expiry. image_auth: sealed. renew_seconds: the expiry moves on so far with each use.
    pool, pool_id, pool_revision: of the warm pool it was made for. is_warm: nobody has been given it yet, and the wire
    does not show it; once taken it is like any other, and never goes back.
    wish_no: goes up with each pause, resume and delete, so that whoever obeys knows which of them it has obeyed.
    """

    __tablename__ = "sandbox_sessions"
    __table_args__ = (
        CheckConstraint(f"state IN ({sql_list(tuple(WireState))})", name="state"),
        CheckConstraint(f"(ended_at IS NOT NULL) = (state IN ({sql_list(ENDED_STATES)}))", name="ended"),
        CheckConstraint(
            "NOT is_warm OR (pool_id IS NOT NULL AND hidden_at IS NOT NULL)",
            name="warm",
        ),
        Index(
            "sandbox_sessions_pool_idx", "pool_id", "ended_at", postgresql_where=text("pool_id IS NOT NULL")
        ),
        Index(
            "sandbox_sessions_warm_idx",
            "pool_id",
            "running_at",
            postgresql_where=text("is_warm AND ended_at IS NULL"),
        ),
        Index(
            "sandbox_sessions_visible_idx",
            "tenant_id",
            desc("created_at"),
            desc("trial_id"),
            postgresql_where=text("hidden_at IS NULL"),
        ),
        Index(
            "sandbox_sessions_metadata_idx",
            "metadata",
            postgresql_using="gin",
            postgresql_ops={"metadata": "jsonb_path_ops"},
            postgresql_where=text("hidden_at IS NULL"),
        ),
        Index("sandbox_sessions_expiry_idx", "expires_at", postgresql_where=text("hidden_at IS NULL")),
        Index(
            "sandbox_sessions_wishes_idx",
            "node_id",
            postgresql_where=text("state IN ('Pausing', 'Resuming', 'Stopping')"),
        ),
        Index("sandbox_sessions_live_idx", "node_id", postgresql_where=text("ended_at IS NULL")),
        {"postgresql_with": {"fillfactor": 80}},
    )

    trial_id: Mapped[UUID] = mapped_column(ForeignKey("trials.id"), primary_key=True)
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id"))
    image: Mapped[str | None]
    snapshot_id: Mapped[UUID | None]
    entrypoint: Mapped[list[str]] = mapped_column(ARRAY(Text))
    platform: Mapped[dict[str, Any] | None]
    metadata_: Mapped[dict[str, Any]] = mapped_column("metadata", server_default=_EMPTY)
    extensions: Mapped[dict[str, Any]] = mapped_column(server_default=_EMPTY)
    pool: Mapped[str | None]
    pool_id: Mapped[UUID | None]
    pool_revision: Mapped[int | None] = mapped_column(Integer)
    is_warm: Mapped[bool] = mapped_column(server_default=text("false"))
    state: Mapped[str] = mapped_column(server_default=text("'Pending'"))
    state_reason: Mapped[str | None]
    state_message: Mapped[str | None]
    state_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    wish_no: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    expires_at: Mapped[datetime | None]
    renew_seconds: Mapped[int | None] = mapped_column(Integer)
    image_auth: Mapped[bytes | None]
    access_token: Mapped[str]
    is_secure: Mapped[bool] = mapped_column(server_default=text("false"))
    node_id: Mapped[UUID | None]
    runtime: Mapped[str | None]
    sandbox_name: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    running_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    end_reason: Mapped[str | None]
    ended_by: Mapped[str | None]
    hidden_at: Mapped[datetime | None]


class SandboxEvent(Base):
    """What happened to a live sandbox, append-only, written with the change itself."""

    __tablename__ = "sandbox_events"
    __table_args__ = (PrimaryKeyConstraint("trial_id", "n"),)

    trial_id: Mapped[UUID]
    n: Mapped[int] = mapped_column(Identity(always=True))
    at: Mapped[datetime] = mapped_column(server_default=_NOW)
    actor: Mapped[str]
    reason: Mapped[str]
    message: Mapped[str | None]


class SandboxOutput(Base):
    """What a live sandbox's entrypoint wrote, as far as anybody asked or it has ended: the end of it, bounded.

    wanted_at: since when somebody waits for it to be read anew. read_at: when it was. total_bytes: written in all.
    ended: how the entrypoint ended, in words; None while it runs, or where nobody has seen it end.
    """

    __tablename__ = "sandbox_outputs"
    __table_args__ = (
        Index("sandbox_outputs_wanted_idx", "node_id", postgresql_where=text("wanted_at IS NOT NULL")),
    )

    trial_id: Mapped[UUID] = mapped_column(primary_key=True)
    node_id: Mapped[UUID | None]
    wanted_at: Mapped[datetime | None]
    read_at: Mapped[datetime | None]
    output: Mapped[bytes] = mapped_column(server_default=text("''::bytea"))
    total_bytes: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    ended: Mapped[str | None]
