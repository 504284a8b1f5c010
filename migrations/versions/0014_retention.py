"""What expired artifacts took; outcomes of a batch without trials that were superseded, with those never made."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

ANNOUNCE = """
CREATE OR REPLACE FUNCTION announce_finished_batch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO webhook_deliveries (id, tenant_id, endpoint_id, target, url, event, subject_id, payload)
  SELECT new_uuid7(), NEW.tenant_id, r.endpoint_id, r.target, r.url, 'batch.finished', NEW.id,
         jsonb_build_object('type', 'batch.finished', 'timestamp',
           to_char(coalesce(NEW.finished_at, clock_timestamp()) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
           'data', jsonb_build_object(
             'batch_id', NEW.id, 'name', NEW.name, 'trials', NEW.trial_count, 'outcomes',
             (SELECT coalesce(jsonb_object_agg(o.outcome, o.n), '{}') FROM (
               SELECT e.outcome, sum(e.n)::bigint AS n FROM (
                 SELECT t.outcome, 1 AS n FROM trials t
                 WHERE t.batch_id = NEW.id AND t.outcome IS NOT NULL AND t.superseded_by IS NULL
                 UNION ALL
                 SELECT j.tail_outcome, j.tail_count FROM jobs j
                 WHERE j.batch_id = NEW.id AND j.tail_outcome IS NOT NULL) e
               GROUP BY e.outcome) o)))
  FROM (
    SELECT e.id AS endpoint_id, e.target, NULL::text AS url FROM webhook_endpoints e
    WHERE e.tenant_id = NEW.tenant_id AND e.deleted_at IS NULL AND e.disabled_at IS NULL
      AND 'batch.finished' = ANY(e.events)
    UNION ALL
    SELECT w.endpoint_id, w.target, w.url FROM batch_webhooks w JOIN webhook_endpoints e ON e.id = w.endpoint_id
    WHERE w.batch_id = NEW.id AND e.deleted_at IS NULL AND e.disabled_at IS NULL
      AND 'batch.finished' = ANY(w.events)) r;
  RETURN NULL;
END $$
"""


def upgrade() -> None:
    """Apply."""
    op.add_column(
        "attempts",
        sa.Column("expired_artifact_bytes", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
    )
    op.execute(ANNOUNCE)
