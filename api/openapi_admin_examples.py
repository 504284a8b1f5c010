"""What answers to operators, and about usage, look like; see `openapi_examples`."""

from typing import Any, Final

__all__ = ["ADMIN_EXAMPLES"]

_KEY = "01a22f4c-64d5-7744-b92f-7dcb04bd22e9"
_NODE = "01a22f4c-35d4-7fc7-889d-d5987cdb0c9f"
_SESSION = "01a22f4c-35fa-76bf-86ba-5df6c58280b3"
_AT = "2026-11-30T19:32:57.944606Z"

_KEY_VIEW: Final = {
    "id": _KEY,
    "name": "night shift",
    "prefix": "sm_pXk93hd",
    "role": "admin",
    "tenant": None,
    "created_at": _AT,
    "revoked_at": None,
}
_NODE_VIEW: Final = {
    "id": _NODE,
    "name": "node-1",
    "state": "ready",
    "runtimes": ["docker", "local"],
    "labels": {"zone": "a"},
    "slots": 8,
    "running": 2,
    "cpu_millicores": 16000,
    "used_cpu_millicores": 2000,
    "memory_bytes": 27487790694,
    "used_memory_bytes": 1073741824,
    "gpu": 0,
    "used_gpu": 0,
    "session": {
        "id": _SESSION,
        "version": "0.1.0",
        "since": _AT,
        "last_heartbeat_at": _AT,
        "last_bell_at": _AT,
    },
    "created_at": _AT,
}
_QUEUE_VIEW: Final = {"name": "gpu", "max_running": 20, "running": 3, "paused": False, "created_at": _AT}
_TENANT_VIEW: Final = {
    "name": "research",
    "weight": 2.0,
    "class": 0,
    "max_running": 200,
    "running": 12,
    "max_queued": 1000000,
    "max_cpu_millicores": 64000,
    "used_cpu_millicores": 12000,
    "max_memory_bytes": None,
    "used_memory_bytes": 6442450944,
    "max_gpu": 0,
    "used_gpu": 0,
    "rate_per_second": 5.0,
    "rate_burst": 50,
    "budget_period_seconds": 86400,
    "budget_cpu_seconds": 3600000,
    "guaranteed_share": 0.25,
    "paused": False,
    "dead_letters": 0,
    "version": 4,
    "created_at": _AT,
}
_EVENT_VIEW: Final = {
    "id": 17,
    "at": _AT,
    "key_id": _KEY,
    "action": "put_queue",
    "subject": "queue:gpu",
    "detail": {"max_running": 20},
}
_TASK: Final = {
    "attempts": 812,
    "attempt_seconds": 40250.1,
    "cpu_seconds": 31877.4,
    "memory_peak_bytes": 415236096,
    "log_bytes": 90812331,
    "artifact_bytes": 1048576,
}
_INFRA: Final = {
    "attempts": 2,
    "attempt_seconds": 31.7,
    "cpu_seconds": 0.0,
    "memory_peak_bytes": 0,
    "log_bytes": 0,
    "artifact_bytes": 0,
}


def _page(item: dict[str, Any]) -> dict[str, Any]:
    return {"items": [item], "next_cursor": None}


ADMIN_EXAMPLES: Final[dict[str, Any]] = {
    "KeyView": _KEY_VIEW,
    "NewKeyView": {**_KEY_VIEW, "key": "sm_pXk93hdQ2mZr7vT0aLw8sYc5uB1nEj4oGf6iKxDq"},
    "LeaderView": {"epoch": 3, "holder": "node-1:4711", "since": _AT},
    "NodeView": _NODE_VIEW,
    "QueueView": _QUEUE_VIEW,
    "TenantView": _TENANT_VIEW,
    "Page_TenantView_": _page(_TENANT_VIEW),
    "Page_KeyView_": _page(_KEY_VIEW),
    "Page_NodeView_": _page(_NODE_VIEW),
    "Page_QueueView_": _page(_QUEUE_VIEW),
    "Page_AdminEventView_": _page(_EVENT_VIEW),
    "UsageView": {
        "from": "2026-11-01",
        "to": "2026-12-01",
        "task": _TASK,
        "infra": _INFRA,
        "days": [{"day": "2026-11-30", "task": _TASK, "infra": _INFRA}],
    },
}
"""By the name of the schema."""
