"""Live sandboxes: trials of kind `session` that take no slot, and what the wire keeps of them."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

# A live sandbox that is lost is gone: there is nothing to replay.
RECORD_DEAD_LETTER = """
DROP TRIGGER trials_record_dead_letter ON trials;
CREATE TRIGGER trials_record_dead_letter AFTER UPDATE OF state ON trials
  FOR EACH ROW
  WHEN (NEW.state = 'finished' AND OLD.state <> 'finished' AND NEW.outcome = 'error'
        AND NEW.failure ->> 'class' = 'infra' AND NEW.slots > 0)
  EXECUTE FUNCTION record_dead_letter()
"""


def upgrade() -> None:
    """Apply."""
    op.add_column(
        "batches", sa.Column("is_session", sa.Boolean(), server_default=sa.text("false"), nullable=False)
    )
    for table in ("trials", "attempts"):
        op.add_column(
            table, sa.Column("slots", sa.SmallInteger(), server_default=sa.text("1"), nullable=False)
        )
    op.add_column("nodes", sa.Column("ingress_url", sa.Text(), nullable=True))
    op.add_column("nodes", sa.Column("ingress_address", sa.Text(), nullable=True))
    op.execute(RECORD_DEAD_LETTER)
    _create_sessions()
    op.create_table(
        "sandbox_events",
        sa.Column("trial_id", sa.UUID(), nullable=False),
        sa.Column("n", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column(
            "at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("trial_id", "n", name=op.f("sandbox_events_pkey")),
    )


def _create_sessions() -> None:
    now = sa.text("clock_timestamp()")
    empty = sa.text("'{}'::jsonb")
    json = postgresql.JSONB(astext_type=sa.Text())
    time = sa.DateTime(timezone=True)
    op.create_table(
        "sandbox_sessions",
        sa.Column("trial_id", sa.UUID(), nullable=False),
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("image", sa.Text(), nullable=True),
        sa.Column("snapshot_id", sa.UUID(), nullable=True),
        sa.Column("entrypoint", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("platform", json, nullable=True),
        sa.Column("metadata", json, server_default=empty, nullable=False),
        sa.Column("extensions", json, server_default=empty, nullable=False),
        sa.Column("pool", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), server_default=sa.text("'Pending'"), nullable=False),
        sa.Column("state_reason", sa.Text(), nullable=True),
        sa.Column("state_message", sa.Text(), nullable=True),
        sa.Column("state_at", time, server_default=now, nullable=False),
        sa.Column("wish_no", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("expires_at", time, nullable=True),
        sa.Column("renew_seconds", sa.Integer(), nullable=True),
        sa.Column("image_auth", sa.LargeBinary(), nullable=True),
        sa.Column("access_token", sa.Text(), nullable=False),
        sa.Column("is_secure", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("node_id", sa.UUID(), nullable=True),
        sa.Column("runtime", sa.Text(), nullable=True),
        sa.Column("sandbox_name", sa.Text(), nullable=True),
        sa.Column("created_at", time, server_default=now, nullable=False),
        sa.Column("running_at", time, nullable=True),
        sa.Column("ended_at", time, nullable=True),
        sa.Column("end_reason", sa.Text(), nullable=True),
        sa.Column("ended_by", sa.Text(), nullable=True),
        sa.Column("hidden_at", time, nullable=True),
        sa.CheckConstraint(
            "state IN ('Pending', 'Running', 'Pausing', 'Paused', 'Resuming', 'Stopping', 'Terminated', 'Failed')",
            name=op.f("sandbox_sessions_state_check"),
        ),
        sa.CheckConstraint(
            "(ended_at IS NOT NULL) = (state IN ('Terminated', 'Failed'))",
            name=op.f("sandbox_sessions_ended_check"),
        ),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name=op.f("sandbox_sessions_trial_id_fkey")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("sandbox_sessions_tenant_id_fkey")),
        sa.PrimaryKeyConstraint("trial_id", name=op.f("sandbox_sessions_pkey")),
        postgresql_with={"fillfactor": 80},
    )
    visible = sa.text("hidden_at IS NULL")
    op.create_index(
        "sandbox_sessions_visible_idx",
        "sandbox_sessions",
        ["tenant_id", sa.text("created_at DESC"), sa.text("trial_id DESC")],
        postgresql_where=visible,
    )
    op.create_index(
        "sandbox_sessions_metadata_idx",
        "sandbox_sessions",
        ["metadata"],
        postgresql_using="gin",
        postgresql_ops={"metadata": "jsonb_path_ops"},
        postgresql_where=visible,
    )
    op.create_index(
        "sandbox_sessions_expiry_idx", "sandbox_sessions", ["expires_at"], postgresql_where=visible
    )
    op.create_index(
        "sandbox_sessions_wishes_idx",
        "sandbox_sessions",
        ["node_id"],
        postgresql_where=sa.text("state IN ('Pausing', 'Resuming', 'Stopping')"),
    )
    op.create_index(
        "sandbox_sessions_live_idx",
        "sandbox_sessions",
        ["node_id"],
        postgresql_where=sa.text("ended_at IS NULL"),
    )
