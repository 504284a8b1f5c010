"""Dead letters, deadlines of attempts, and what retry rules have used."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

# By trigger, so that no way of ending a trial can forget it. The condition is looked at without a call of the
# function, so other ends cost nothing. `attempts` holds the end of the last attempt already: it is written first.
RECORD_DEAD_LETTER = """
CREATE FUNCTION record_dead_letter() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO dead_letters (trial_id, tenant_id, batch_id, job_id, code, failure, attempts, lost_on)
  SELECT NEW.id, NEW.tenant_id, NEW.batch_id, NEW.job_id, NEW.failure ->> 'code', NEW.failure, NEW.attempts_used,
         ARRAY(SELECT DISTINCT a.node_id FROM attempts a
               WHERE a.trial_id = NEW.id AND a.state = 'lost' AND a.failure ->> 'code' = 'node_lost' ORDER BY a.node_id)
  ON CONFLICT (trial_id) DO UPDATE SET code = excluded.code, failure = excluded.failure,
    attempts = excluded.attempts, lost_on = excluded.lost_on, created_at = clock_timestamp(), replayed_as = NULL,
    replayed_at = NULL, discarded_at = NULL;
  RETURN NULL;
END $$;
CREATE TRIGGER trials_record_dead_letter AFTER UPDATE OF state ON trials
  FOR EACH ROW
  WHEN (NEW.state = 'finished' AND OLD.state <> 'finished' AND NEW.outcome = 'error' AND NEW.failure ->> 'class' = 'infra')
  EXECUTE FUNCTION record_dead_letter()
"""


def upgrade() -> None:
    """Apply."""
    op.add_column("attempts", sa.Column("run_deadline", sa.DateTime(timezone=True), nullable=True))
    op.add_column("attempts", sa.Column("overdue_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("trials", sa.Column("rule_retries", postgresql.ARRAY(sa.Integer()), nullable=True))
    op.add_column("trials", sa.Column("replay_of", sa.UUID(), nullable=True))
    op.create_table(
        "dead_letters",
        sa.Column("trial_id", sa.UUID(), nullable=False),
        sa.Column("n", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("batch_id", sa.UUID(), nullable=False),
        sa.Column("job_id", sa.UUID(), nullable=False),
        sa.Column("code", sa.Text(), nullable=False),
        sa.Column("failure", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("lost_on", postgresql.ARRAY(sa.UUID()), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("replayed_as", sa.UUID(), nullable=True),
        sa.Column("replayed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("discarded_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("dead_letters_tenant_id_fkey")),
        sa.PrimaryKeyConstraint("trial_id", name=op.f("dead_letters_pkey")),
        sa.UniqueConstraint("n", name=op.f("dead_letters_n_key")),
    )
    op.create_index("dead_letters_tenant_id_n_idx", "dead_letters", ["tenant_id", sa.text("n DESC")])
    op.execute(RECORD_DEAD_LETTER)
