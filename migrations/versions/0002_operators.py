"""Operators: keys with a role, usage of archived attempts, trace contexts."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column(
        "api_keys", sa.Column("role", sa.Text(), server_default=sa.text("'tenant'"), nullable=False)
    )
    op.alter_column("api_keys", "tenant_id", nullable=True)
    op.create_check_constraint(op.f("api_keys_role_check"), "api_keys", "role IN ('tenant', 'admin')")
    op.create_check_constraint(
        op.f("api_keys_role_tenant_check"), "api_keys", "(role = 'admin') = (tenant_id IS NULL)"
    )
    op.create_index("api_keys_tenant_id_idx", "api_keys", ["tenant_id"])
    op.add_column("batches", sa.Column("traceparent", sa.Text(), nullable=True))
    op.create_index(
        "attempts_tenant_finished_idx",
        "attempts",
        ["tenant_id", "finished_at"],
        postgresql_where=sa.text("finished_at IS NOT NULL"),
    )
    op.create_table(
        "usage_days",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("attempts", sa.BigInteger(), nullable=False),
        sa.Column("attempt_seconds", sa.Double(), nullable=False),
        sa.Column("cpu_seconds", sa.Double(), nullable=False),
        sa.Column("memory_peak_bytes", sa.BigInteger(), nullable=False),
        sa.Column("log_bytes", sa.BigInteger(), nullable=False),
        sa.Column("artifact_bytes", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("kind IN ('task', 'infra')", name=op.f("usage_days_kind_check")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("usage_days_tenant_id_fkey")),
        sa.PrimaryKeyConstraint("tenant_id", "day", "kind", name=op.f("usage_days_pkey")),
    )
