"""What operators send and see."""

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from pydantic import Field

from api.schemas.base import RequestSchema, ResponseSchema
from api.schemas.fields import TenantName, Title

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
    "TenantChange",
    "TenantRequest",
    "TenantView",
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


class TenantLimits(RequestSchema):
    """Limits of a tenant. null takes one away; what is not named stays as it is."""

    weight: float | None = Field(
        default=None, description="Share against other tenants' weights; 1 at first."
    )
    priority_class: int | None = Field(
        default=None, alias="class", description="0 to 9; a higher class goes before all lower ones."
    )
    max_running: int | None = Field(default=None, description="Attempts at a time.")
    max_queued: int | None = Field(default=None, description="Unfinished trials that do not run; above: 429.")
    max_cpu_millicores: int | None = Field(default=None, description="CPU at a time, 1000 a core.")
    max_memory_bytes: int | None = Field(default=None, description="Memory at a time.")
    max_gpu: int | None = Field(default=None, description="GPUs at a time.")
    rate_per_second: float | None = Field(default=None, description="Starts per second, in the long run.")
    rate_burst: int | None = Field(default=None, description="Starts at once, after a rest.")
    budget_period_seconds: int | None = Field(
        default=None, description="Length of a budget's period, counted from 1970."
    )
    budget_cpu_seconds: int | None = Field(default=None, description="CPU seconds in each period.")
    guaranteed_share: float | None = Field(
        default=None, description="Part of the installation, of 1, for which others are preempted."
    )


class TenantRequest(TenantLimits):
    """A tenant to make."""

    name: TenantName


class TenantChange(TenantLimits):
    """What is to be different of a tenant."""

    version: int | None = Field(
        default=None,
        description="Of the tenant as you saw it: 409 if it was changed since. Default: whatever.",
    )


class TenantView(ResponseSchema):
    """A tenant, its limits (null: no such limit), and what counts against them now."""

    name: str
    weight: float
    priority_class: int = Field(alias="class")
    max_running: int
    running: int
    max_queued: int
    max_cpu_millicores: int | None
    used_cpu_millicores: int
    max_memory_bytes: int | None
    used_memory_bytes: int
    max_gpu: int | None
    used_gpu: int
    rate_per_second: float | None
    rate_burst: int | None
    budget_period_seconds: int | None
    budget_cpu_seconds: int | None
    guaranteed_share: float | None
    paused: bool
    dead_letters: int = Field(description="Trials given up that nobody has replayed or discarded.")
    version: int
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
