"""When a limit of a tenant, queue or node was last lowered: from then on, and only from then on, it can be judged."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

# Under the dispatch lock (the number is that of repositories/dispatch.py): a tick that has read the old limit commits
# before the time that is written here, and the next one reads the new limit.
NOTE_LOWERED_LIMITS = """
CREATE FUNCTION note_lowered_limits() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (
    SELECT 1 FROM jsonb_each_text(to_jsonb(NEW)) n JOIN jsonb_each_text(to_jsonb(OLD)) o USING (key)
    WHERE n.key ~ TG_ARGV[0] AND n.value IS NOT NULL AND (o.value IS NULL OR n.value::numeric < o.value::numeric)
  ) THEN
    PERFORM pg_advisory_xact_lock(1514995714);
    NEW.limits_lowered_at := clock_timestamp();
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER tenants_note_lowered_limits BEFORE UPDATE ON tenants
  FOR EACH ROW EXECUTE FUNCTION note_lowered_limits('^max_');
CREATE TRIGGER queues_note_lowered_limits BEFORE UPDATE ON queues
  FOR EACH ROW EXECUTE FUNCTION note_lowered_limits('^max_');
CREATE TRIGGER nodes_note_lowered_limits BEFORE UPDATE ON nodes
  FOR EACH ROW EXECUTE FUNCTION note_lowered_limits('^(slots|gpu|cpu_millicores|memory_bytes)$')
"""


def upgrade() -> None:
    """Apply."""
    for table in ("tenants", "queues", "nodes"):
        op.add_column(table, sa.Column("limits_lowered_at", sa.DateTime(timezone=True), nullable=True))
    op.execute(NOTE_LOWERED_LIMITS)
