"""Warm pools, and which live sandboxes are free members of one."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    now = sa.text("clock_timestamp()")
    empty = sa.text("'{}'::jsonb")
    json = postgresql.JSONB(astext_type=sa.Text())
    time = sa.DateTime(timezone=True)
    op.create_table(
        "sandbox_pools",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("template", json, nullable=False),
        sa.Column("spec", json, nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("runtime", sa.Text(), nullable=False),
        sa.Column("image", sa.Text(), nullable=False),
        sa.Column("entrypoint", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("platform", json, nullable=True),
        sa.Column("metadata", json, server_default=empty, nullable=False),
        sa.Column("node_labels", json, server_default=empty, nullable=False),
        sa.Column("image_auth", sa.LargeBinary(), nullable=True),
        sa.Column("buffer_min", sa.Integer(), nullable=False),
        sa.Column("buffer_max", sa.Integer(), nullable=False),
        sa.Column("pool_min", sa.Integer(), nullable=False),
        sa.Column("pool_max", sa.Integer(), nullable=False),
        sa.Column("revision", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("created_at", time, server_default=now, nullable=False),
        sa.Column("updated_at", time, server_default=now, nullable=False),
        sa.CheckConstraint("buffer_min BETWEEN 0 AND buffer_max", name=op.f("sandbox_pools_buffer_check")),
        sa.CheckConstraint("pool_min BETWEEN 0 AND pool_max", name=op.f("sandbox_pools_pool_check")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("sandbox_pools_tenant_id_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("sandbox_pools_pkey")),
        sa.UniqueConstraint("tenant_id", "name", name=op.f("sandbox_pools_tenant_id_name_key")),
    )
    op.create_index("sandbox_pools_tenant_id_key_idx", "sandbox_pools", ["tenant_id", "key"])
    op.add_column("sandbox_sessions", sa.Column("pool_id", sa.UUID(), nullable=True))
    op.add_column("sandbox_sessions", sa.Column("pool_revision", sa.Integer(), nullable=True))
    op.add_column(
        "sandbox_sessions",
        sa.Column("is_warm", sa.Boolean(), server_default=sa.text("false"), nullable=False),
    )
    op.create_check_constraint(
        op.f("sandbox_sessions_warm_check"),
        "sandbox_sessions",
        "NOT is_warm OR (pool_id IS NOT NULL AND hidden_at IS NOT NULL)",
    )
    op.create_index(
        "sandbox_sessions_pool_idx",
        "sandbox_sessions",
        ["pool_id", "ended_at"],
        postgresql_where=sa.text("pool_id IS NOT NULL"),
    )
    op.create_index(
        "sandbox_sessions_warm_idx",
        "sandbox_sessions",
        ["pool_id", "running_at"],
        postgresql_where=sa.text("is_warm AND ended_at IS NULL"),
    )
