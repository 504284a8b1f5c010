"""Dispatch: quotas, shapes, caps, named queues, node labels, preemption, budgets."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_LIVE = "state IN ('dispatched', 'starting', 'running', 'stopping', 'collecting')"
_NOW = sa.text("clock_timestamp()")
_EMPTY = sa.text("'{}'::jsonb")

_TENANT_CHECKS = {
    "class": "class BETWEEN 0 AND 9",
    "max_running": "max_running >= 0",
    "max_queued": "max_queued >= 0",
    "max_cpu_millicores": "max_cpu_millicores >= 0",
    "max_memory_bytes": "max_memory_bytes >= 0",
    "max_gpu": "max_gpu >= 0",
    "rate_per_second": "rate_per_second > 0",
    "rate_burst": "rate_burst IS NULL OR (rate_burst >= 1 AND rate_per_second IS NOT NULL)",
    "budget_period_seconds": "budget_period_seconds > 0",
    "budget_cpu_seconds": "budget_cpu_seconds >= 0",
    "budget": "(budget_period_seconds IS NULL) = (budget_cpu_seconds IS NULL)",
    "guaranteed_share": "guaranteed_share > 0 AND guaranteed_share <= 1",
}

_SHAPE = (
    "hashtextextended(queue || ' ' || coalesce(runtime, '') || ' ' || cpu_millicores::text || ' ' || memory_bytes::text"
    " || ' ' || gpu::text || ' ' || node_labels::text, 0)"
)


def upgrade() -> None:
    _tenants()
    op.add_column("nodes", sa.Column("labels", postgresql.JSONB(), server_default=_EMPTY, nullable=False))
    op.add_column("nodes", sa.Column("gpu", sa.Integer(), server_default=sa.text("0"), nullable=False))
    op.add_column(
        "nodes",
        sa.Column("images", postgresql.ARRAY(sa.Text()), server_default=sa.text("'{}'"), nullable=False),
    )
    op.add_column("nodes", sa.Column("drained_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("nodes", sa.Column("boot_id", sa.Text(), nullable=True))
    op.add_column("batches", sa.Column("max_running", sa.Integer(), nullable=True))
    op.add_column(
        "batches", sa.Column("max_per_label", postgresql.JSONB(), server_default=_EMPTY, nullable=False)
    )
    op.create_check_constraint(op.f("batches_max_running_check"), "batches", "max_running >= 1")
    _trials()
    _attempts()
    _own_tables()
    op.execute("INSERT INTO state_transitions VALUES ('trial', 'queued', 'blocked')")


def _tenants() -> None:
    op.add_column(
        "tenants", sa.Column("class", sa.SmallInteger(), server_default=sa.text("0"), nullable=False)
    )
    for name, kind in (
        ("max_cpu_millicores", sa.BigInteger()),
        ("max_memory_bytes", sa.BigInteger()),
        ("max_gpu", sa.Integer()),
        ("rate_per_second", sa.REAL()),
        ("rate_burst", sa.Integer()),
        ("budget_period_seconds", sa.Integer()),
        ("budget_cpu_seconds", sa.BigInteger()),
        ("guaranteed_share", sa.REAL()),
    ):
        op.add_column("tenants", sa.Column(name, kind, nullable=True))
    op.add_column("tenants", sa.Column("version", sa.Integer(), server_default=sa.text("1"), nullable=False))
    for name, condition in _TENANT_CHECKS.items():
        op.create_check_constraint(op.f(f"tenants_{name}_check"), "tenants", condition)


def _trials() -> None:
    op.add_column(
        "trials", sa.Column("queue", sa.Text(), server_default=sa.text("'default'"), nullable=False)
    )
    op.add_column("trials", sa.Column("gpu", sa.Integer(), server_default=sa.text("0"), nullable=False))
    op.add_column(
        "trials", sa.Column("node_labels", postgresql.JSONB(), server_default=_EMPTY, nullable=False)
    )
    op.add_column(
        "trials", sa.Column("preemptible", sa.Boolean(), server_default=sa.text("false"), nullable=False)
    )
    op.add_column(
        "trials",
        sa.Column(
            "max_cpu_seconds", postgresql.DOUBLE_PRECISION(), server_default=sa.text("0"), nullable=False
        ),
    )
    op.add_column("trials", sa.Column("cap_labels", postgresql.JSONB(), nullable=True))
    op.add_column(
        "trials", sa.Column("shape", sa.BigInteger(), sa.Computed(_SHAPE, persisted=True), nullable=True)
    )
    op.add_column(
        "trials",
        sa.Column(
            "cap_group",
            sa.BigInteger(),
            sa.Computed("hashtextextended(cap_labels::text, 0)", persisted=True),
            nullable=True,
        ),
    )
    op.create_check_constraint(op.f("trials_gpu_check"), "trials", "gpu >= 0")
    op.drop_index("trials_ready_idx", "trials")
    op.create_index(
        "trials_ready_idx",
        "trials",
        ["tenant_id", "shape", sa.literal_column("priority DESC"), "seq"],
        postgresql_where=sa.text("state = 'queued'"),
    )
    op.create_index(
        "trials_capped_active_idx",
        "trials",
        ["batch_id"],
        postgresql_where=sa.text("cap_labels IS NOT NULL AND state IN ('queued', 'running', 'cancelling')"),
    )
    op.create_index(
        "trials_capped_waiting_idx",
        "trials",
        ["batch_id", "cap_group", sa.literal_column("priority DESC"), "seq"],
        postgresql_where=sa.text(
            "cap_labels IS NOT NULL AND state = 'blocked' AND state_reason = 'concurrency'"
        ),
    )


def _attempts() -> None:
    op.add_column(
        "attempts", sa.Column("queue", sa.Text(), server_default=sa.text("'default'"), nullable=False)
    )
    op.add_column("attempts", sa.Column("gpu", sa.Integer(), server_default=sa.text("0"), nullable=False))
    op.add_column(
        "attempts", sa.Column("desired", sa.Text(), server_default=sa.text("'run'"), nullable=False)
    )
    op.add_column("attempts", sa.Column("reserved_cpu_seconds", postgresql.DOUBLE_PRECISION(), nullable=True))
    op.add_column("attempts", sa.Column("charged_at", sa.DateTime(timezone=True), nullable=True))
    op.create_check_constraint(op.f("attempts_desired_check"), "attempts", "desired IN ('run', 'preempt')")
    op.drop_index("attempts_live_tenant_idx", "attempts")
    op.create_index(
        "attempts_live_tenant_idx",
        "attempts",
        ["tenant_id"],
        postgresql_include=["cpu_millicores", "memory_bytes", "gpu", "queue"],
        postgresql_where=sa.text(_LIVE),
    )
    op.create_index(
        "attempts_uncharged_idx",
        "attempts",
        ["tenant_id"],
        postgresql_where=sa.text("reserved_cpu_seconds IS NOT NULL AND charged_at IS NULL"),
    )


def _own_tables() -> None:
    op.create_table(
        "tenant_schedule",
        sa.Column("tenant_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("usage", postgresql.DOUBLE_PRECISION(), server_default=sa.text("0"), nullable=False),
        sa.Column("usage_at", sa.DateTime(timezone=True), server_default=_NOW, nullable=False),
        sa.Column("tokens", postgresql.DOUBLE_PRECISION(), nullable=True),
        sa.Column("tokens_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("tenant_schedule_tenant_id_fkey")),
        sa.PrimaryKeyConstraint("tenant_id", name=op.f("tenant_schedule_pkey")),
    )
    op.create_table(
        "queues",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("max_running", sa.Integer(), nullable=True),
        sa.Column("paused_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=_NOW, nullable=False),
        sa.CheckConstraint("max_running >= 0", name=op.f("queues_max_running_check")),
        sa.PrimaryKeyConstraint("name", name=op.f("queues_pkey")),
    )
    op.execute("INSERT INTO queues (name) VALUES ('default')")
    op.create_table(
        "budget_periods",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("starts_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ends_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column(
            "spent_cpu_seconds", postgresql.DOUBLE_PRECISION(), server_default=sa.text("0"), nullable=False
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("budget_periods_tenant_id_fkey")),
        sa.PrimaryKeyConstraint("tenant_id", "starts_at", "ends_at", name=op.f("budget_periods_pkey")),
    )
