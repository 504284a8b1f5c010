"""Tell receivers of a finished batch the outcomes that count: no trial that a retry replaced, and those without a row."""

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

# The counters are complete when a batch finishes: that is the condition under which it does.
ANNOUNCE = """
CREATE OR REPLACE FUNCTION announce_finished_batch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO webhook_deliveries (id, tenant_id, endpoint_id, target, url, event, subject_id, payload)
  SELECT new_uuid7(), NEW.tenant_id, r.endpoint_id, r.target, r.url, 'batch.finished', NEW.id,
         jsonb_build_object('type', 'batch.finished', 'timestamp',
           to_char(coalesce(NEW.finished_at, clock_timestamp()) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
           'data', jsonb_build_object(
             'batch_id', NEW.id, 'name', NEW.name, 'trials', NEW.trial_count, 'outcomes',
             (SELECT coalesce(jsonb_object_agg(o.outcome, o.n) FILTER (WHERE o.n > 0), '{}')
              FROM batch_progress p CROSS JOIN LATERAL (VALUES
                ('passed', p.passed), ('failed', p.failed), ('error', p.error), ('cancelled', p.cancelled),
                ('skipped', p.skipped)) AS o(outcome, n)
              WHERE p.batch_id = NEW.id)))
  FROM (
    SELECT e.id AS endpoint_id, e.target, NULL::text AS url FROM webhook_endpoints e
    WHERE e.tenant_id = NEW.tenant_id AND e.deleted_at IS NULL AND e.disabled_at IS NULL AND 'batch.finished' = ANY(e.events)
    UNION ALL
    SELECT w.endpoint_id, w.target, w.url FROM batch_webhooks w JOIN webhook_endpoints e ON e.id = w.endpoint_id
    WHERE w.batch_id = NEW.id AND e.deleted_at IS NULL AND e.disabled_at IS NULL AND 'batch.finished' = ANY(w.events)
  ) r;
  RETURN NULL;
END $$
"""


def upgrade() -> None:
    """Apply."""
    op.execute(ANNOUNCE)
