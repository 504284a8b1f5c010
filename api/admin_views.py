"""From what services tell operators, and tenants of their usage, to what the wire shows."""

from dataclasses import asdict

from api.schemas.admin import AdminEventView, KeyView, LeaderView, NewKeyView, NodeView, QueueView, TenantView
from api.schemas.usage import UsageView
from repositories.operators import AdminEventRow, AdminKeyRow, LeaderRow, NodeRow, QueueRow
from repositories.tenant_admin import TenantRow
from services.usage import Usage, UsageDays

__all__ = [
    "to_admin_event_view",
    "to_key_view",
    "to_leader_view",
    "to_new_key_view",
    "to_node_view",
    "to_queue_view",
    "to_tenant_view",
    "to_usage_view",
]


_HIDDEN_OF_TENANTS = frozenset({"id", "class_", "paused_at"})


def to_key_view(row: AdminKeyRow) -> KeyView:
    """Show a key."""
    return KeyView.model_validate(asdict(row))


def to_new_key_view(row: AdminKeyRow, text: str) -> NewKeyView:
    """Show a key with its text."""
    return NewKeyView.model_validate({**asdict(row), "key": text})


def to_node_view(row: NodeRow) -> NodeView:
    """Show a node."""
    session = None
    if row.session_id is not None and row.is_live:
        session = {
            "id": row.session_id,
            "version": row.version,
            "since": row.session_since,
            "last_heartbeat_at": row.beat_at,
            "last_bell_at": row.canary_at,
        }
    names = (
        *("id", "name", "runtimes", "labels", "slots", "running", "cpu_millicores", "used_cpu_millicores"),
        *("memory_bytes", "used_memory_bytes", "gpu", "used_gpu", "created_at"),
    )
    shown = {name: getattr(row, name) for name in names}
    return NodeView.model_validate({**shown, "state": _state(row), "session": session})


def to_tenant_view(row: TenantRow) -> TenantView:
    """Show a tenant."""
    shown = {**asdict(row), "class": row.class_, "paused": row.paused_at is not None}
    return TenantView.model_validate({name: shown[name] for name in shown.keys() - _HIDDEN_OF_TENANTS})


def to_queue_view(row: QueueRow) -> QueueView:
    """Show a named queue."""
    return QueueView(
        name=row.name,
        max_running=row.max_running,
        running=row.running,
        paused=row.paused_at is not None,
        created_at=row.created_at,
    )


def to_leader_view(row: LeaderRow) -> LeaderView:
    """Show the leader."""
    return LeaderView.model_validate(asdict(row))


def to_admin_event_view(row: AdminEventRow) -> AdminEventView:
    """Show a change."""
    return AdminEventView.model_validate(asdict(row))


def to_usage_view(usage: UsageDays) -> UsageView:
    """Show what was used."""
    return UsageView.model_validate(
        {
            "from": usage.since,
            "to": usage.until,
            **_usage(usage.total),
            "days": [{"day": day, **_usage(found)} for day, found in usage.days],
        }
    )


def _usage(usage: Usage) -> dict[str, dict[str, float]]:
    return asdict(usage)


def _state(row: NodeRow) -> str:
    if not row.is_live:
        return "offline"
    if row.drained_at is not None:
        return "draining" if row.running else "drained"
    if row.cordoned_at is not None:
        return "cordoned"
    return "stopping" if row.is_stopping else "ready"
