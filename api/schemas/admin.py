"""What operators send and see."""

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from pydantic import Field

from api.schemas.base import RequestSchema, ResponseSchema
from api.schemas.fields import Title

__all__ = [
    "AdminEventView",
    "KeyRequest",
    "KeyView",
    "LeaderView",
    "NewKeyView",
    "NodeSessionView",
    "NodeView",
    "QueueRequest",
    "QueueView",
]


class KeyRequest(RequestSchema):
    """A key to make."""

    name: Title = Field(description="What the key is for.")


class KeyView(ResponseSchema):
    """A key, without its text, which is kept nowhere."""

    id: UUID
    name: str
    prefix: str = Field(description="How it begins: enough to recognise it.")
    role: Literal["tenant", "admin"]
    tenant: str | None = Field(description="Who it acts for; null for an operator's key.")
    created_at: datetime
    revoked_at: datetime | None


class NewKeyView(KeyView):
    """A key that was just made."""

    key: str = Field(description="Its text, told this once.")


class NodeSessionView(ResponseSchema):
    """The worker that holds a node."""

    id: UUID
    version: str
    since: datetime
    last_heartbeat_at: datetime | None
    last_bell_at: datetime | None = Field(
        description="When a bell last came through the broker; one is rung every half minute."
    )


class NodeView(ResponseSchema):
    """A machine that runs sandboxes, and what of it is handed out."""

    id: UUID
    name: str
    state: Literal["ready", "cordoned", "draining", "drained", "stopping", "offline"] = Field(
        description=(
            "ready takes work; cordoned gets nothing new; draining gives back what runs, drained has; stopping: its "
            "worker ends; offline: no worker holds it."
        )
    )
    runtimes: list[str]
    labels: dict[str, str]
    slots: int
    running: int
    cpu_millicores: int
    used_cpu_millicores: int
    memory_bytes: int
    used_memory_bytes: int
    gpu: int
    used_gpu: int
    session: NodeSessionView | None
    created_at: datetime


class QueueRequest(RequestSchema):
    """The cap of a named queue."""

    max_running: int | None = Field(
        ge=0, le=1_000_000, description="Attempts at a time, over all tenants; null for no cap."
    )


class QueueView(ResponseSchema):
    """A named queue."""

    name: str
    max_running: int | None
    running: int
    paused: bool
    created_at: datetime


class LeaderView(ResponseSchema):
    """The scheduler that leads; the others wait."""

    epoch: int = Field(description="Which leadership this is of all there were.")
    holder: str = Field(description="Host and process.")
    since: datetime


class AdminEventView(ResponseSchema):
    """A change an operator made."""

    id: int
    at: datetime
    key_id: UUID = Field(description="The key that made it.")
    action: str
    subject: str
    detail: dict[str, Any]
