"""Snapshots of live sandboxes, and what the entrypoints of live sandboxes wrote."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0019"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    now = sa.text("clock_timestamp()")
    json = postgresql.JSONB(astext_type=sa.Text())
    time = sa.DateTime(timezone=True)
    op.create_table(
        "snapshots",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("sandbox_id", sa.UUID(), nullable=False),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), server_default=sa.text("'Creating'"), nullable=False),
        sa.Column("state_reason", sa.Text(), nullable=False),
        sa.Column("state_message", sa.Text(), nullable=True),
        sa.Column("state_at", time, server_default=now, nullable=False),
        sa.Column("node_id", sa.UUID(), nullable=False),
        sa.Column("runtime", sa.Text(), nullable=False),
        sa.Column("runtime_name", sa.Text(), nullable=False),
        sa.Column("image", sa.Text(), nullable=True),
        sa.Column("entrypoint", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("env", json, server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("platform", json, nullable=True),
        sa.Column("size_bytes", sa.BigInteger(), nullable=True),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", time, server_default=now, nullable=False),
        sa.CheckConstraint(
            "state IN ('Creating', 'Ready', 'Failed', 'Deleting')", name=op.f("snapshots_state_check")
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("snapshots_tenant_id_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("snapshots_pkey")),
    )
    op.create_index(
        "snapshots_tenant_idx", "snapshots", ["tenant_id", sa.text("created_at DESC"), sa.text("id DESC")]
    )
    op.create_index("snapshots_node_idx", "snapshots", ["node_id"])
    op.create_index(
        "snapshots_orders_idx",
        "snapshots",
        ["node_id"],
        postgresql_where=sa.text("state IN ('Creating', 'Deleting')"),
    )
    op.create_index(
        "snapshots_creating_idx",
        "snapshots",
        ["sandbox_id"],
        postgresql_where=sa.text("state = 'Creating'"),
    )
    op.create_table(
        "sandbox_outputs",
        sa.Column("trial_id", sa.UUID(), nullable=False),
        sa.Column("node_id", sa.UUID(), nullable=True),
        sa.Column("wanted_at", time, nullable=True),
        sa.Column("read_at", time, nullable=True),
        sa.Column("output", sa.LargeBinary(), server_default=sa.text("''::bytea"), nullable=False),
        sa.Column("total_bytes", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("ended", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("trial_id", name=op.f("sandbox_outputs_pkey")),
    )
    op.create_index(
        "sandbox_outputs_wanted_idx",
        "sandbox_outputs",
        ["node_id"],
        postgresql_where=sa.text("wanted_at IS NOT NULL"),
    )
