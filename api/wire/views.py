"""Rows as the lifecycle API shows them."""

from api.wire.schemas import (
    CapacityView,
    PaginationView,
    PoolStatusView,
    PoolView,
    SandboxView,
    SnapshotView,
    StatusView,
)
from repositories.live_sandboxes import SandboxRow
from repositories.pool_keeping import KeptPool
from repositories.snapshots import SnapshotRow

__all__ = ["to_pagination", "to_pool_view", "to_sandbox_view", "to_snapshot_view"]


def to_sandbox_view(row: SandboxRow) -> SandboxView:
    """Show a sandbox; credentials are never among it."""
    return SandboxView(
        id=str(row.id),
        status=StatusView(
            state=row.state,
            reason=row.state_reason,
            message=row.state_message,
            last_transition_at=row.state_at,
        ),
        entrypoint=row.entrypoint,
        created_at=row.created_at,
        image=None if row.image is None else {"uri": row.image},
        snapshot_id=None if row.snapshot_id is None else str(row.snapshot_id),
        platform=row.platform,
        metadata=row.metadata,
        extensions=row.extensions,
        allocation=None if row.pool is None else {"mode": "pool", "poolRef": row.pool, "state": "allocated"},
        expires_at=row.expires_at,
    )


def to_snapshot_view(row: SnapshotRow) -> SnapshotView:
    """Show a snapshot."""
    return SnapshotView(
        id=str(row.id),
        sandbox_id=str(row.sandbox_id),
        status=StatusView(
            state=row.state,
            reason=row.state_reason,
            message=row.state_message,
            last_transition_at=row.state_at,
        ),
        created_at=row.created_at,
        name=row.name,
    )


def to_pagination(page: int, page_size: int, total: int) -> PaginationView:
    """Show where a page is."""
    pages = -(-total // page_size)
    return PaginationView(
        page=page, page_size=page_size, total_items=total, total_pages=pages, has_next_page=page < pages
    )


def to_pool_view(kept: KeptPool) -> PoolView:
    """Show a pool; credentials are never among it."""
    pool, counts = kept.pool, kept.counts
    return PoolView(
        name=pool.name,
        capacity_spec=CapacityView(
            buffer_max=pool.buffer_max,
            buffer_min=pool.buffer_min,
            pool_max=pool.pool_max,
            pool_min=pool.pool_min,
        ),
        status=PoolStatusView(
            total=counts.total,
            allocated=counts.allocated,
            available=counts.free,
            revision=str(pool.revision),
            starting=counts.starting,
            message=counts.problem,
        ),
        created_at=pool.created_at,
        template=pool.template,
    )
