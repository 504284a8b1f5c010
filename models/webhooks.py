"""Receivers of webhooks, and the outbox of what is sent to them."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, Index, Integer, Text, desc, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, mapped_column

from models.base import Base

__all__ = ["BatchWebhook", "WebhookDelivery", "WebhookEndpoint"]

_NOW = text("clock_timestamp()")


class WebhookEndpoint(Base):
    """Where a tenant wants to hear of things, and the secret by which it knows that it is we who tell.

    Secrets are sealed (`core.sealing`). previous_secret signs too until previous_until, so that a rotation loses no
    message. A deleted one stays until its deliveries are gone.
    """

    __tablename__ = "webhook_endpoints"
    __table_args__ = (
        Index(
            "webhook_endpoints_name_idx",
            "tenant_id",
            "name",
            unique=True,
            postgresql_where=text("deleted_at IS NULL"),
        ),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str]
    url: Mapped[str]
    target: Mapped[str]
    events: Mapped[list[str]] = mapped_column(ARRAY(Text))
    secret: Mapped[bytes]
    previous_secret: Mapped[bytes | None]
    previous_until: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    disabled_at: Mapped[datetime | None]
    disabled_reason: Mapped[str | None]
    deleted_at: Mapped[datetime | None]
    enabled_at: Mapped[datetime] = mapped_column(server_default=_NOW)


class BatchWebhook(Base):
    """A receiver of one batch alone; the endpoint gives the secret."""

    __tablename__ = "batch_webhooks"
    __table_args__ = (Index("batch_webhooks_endpoint_id_idx", "endpoint_id"),)

    batch_id: Mapped[UUID] = mapped_column(ForeignKey("batches.id"), primary_key=True)
    endpoint_id: Mapped[UUID] = mapped_column(ForeignKey("webhook_endpoints.id"))
    url: Mapped[str]
    target: Mapped[str]
    events: Mapped[list[str]] = mapped_column(ARRAY(Text))


class WebhookDelivery(Base):
    """One message to one receiver, written in the transaction of what it tells of: the outbox.

    target: scheme, host and port, by which receivers are kept from delaying each other. url: of a batch's own
    receiver; else the endpoint's at the time of sending. tries counts up with every claim, so that a sender that was
    thought dead cannot write over a later one's result.
    """

    __tablename__ = "webhook_deliveries"
    __table_args__ = (
        CheckConstraint("state IN ('pending', 'delivered', 'dead')", name="state"),
        CheckConstraint("(state = 'pending') = (finished_at IS NULL)", name="finished_at_end"),
        Index(
            "webhook_deliveries_due_idx", "target", "next_try_at", postgresql_where=text("state = 'pending'")
        ),
        Index("webhook_deliveries_tenant_id_id_idx", "tenant_id", desc("id")),
        Index(
            "webhook_deliveries_finished_idx", "finished_at", postgresql_where=text("finished_at IS NOT NULL")
        ),
        Index("webhook_deliveries_endpoint_id_idx", "endpoint_id"),
        {"postgresql_with": {"fillfactor": 80}},
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id"))
    endpoint_id: Mapped[UUID] = mapped_column(ForeignKey("webhook_endpoints.id"))
    target: Mapped[str]
    url: Mapped[str | None]
    event: Mapped[str]
    subject_id: Mapped[UUID]
    payload: Mapped[dict[str, Any]]
    state: Mapped[str] = mapped_column(server_default=text("'pending'"))
    tries: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    next_try_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    last_status: Mapped[int | None] = mapped_column(Integer)
    last_error: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    finished_at: Mapped[datetime | None]
