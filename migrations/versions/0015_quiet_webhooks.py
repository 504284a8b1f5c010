"""Ask first whether a tenant has any webhook: most trials end without anybody to tell."""

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

# Every receiver, a batch's own too, needs a webhook of the tenant for its secret.
ANNOUNCE = """
CREATE OR REPLACE FUNCTION announce_finished_trial() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NOT EXISTS (SELECT 1 FROM webhook_endpoints e WHERE e.tenant_id = NEW.tenant_id AND e.deleted_at IS NULL) THEN
    RETURN NULL;
  END IF;
  INSERT INTO webhook_deliveries (id, tenant_id, endpoint_id, target, url, event, subject_id, payload)
  SELECT new_uuid7(), NEW.tenant_id, r.endpoint_id, r.target, r.url, 'trial.finished', NEW.id,
         jsonb_build_object('type', 'trial.finished', 'timestamp',
           to_char(coalesce(NEW.finished_at, clock_timestamp()) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
           'data', jsonb_build_object(
             'trial_id', NEW.id, 'batch_id', NEW.batch_id, 'job_id', NEW.job_id, 'job_key', j.key,
             'index', NEW.index, 'outcome', NEW.outcome, 'rewards', NEW.rewards,
             'failure', CASE WHEN NEW.failure IS NOT NULL THEN
               jsonb_build_object('class', NEW.failure -> 'class', 'code', NEW.failure -> 'code') END))
  FROM (
    SELECT e.id AS endpoint_id, e.target, NULL::text AS url FROM webhook_endpoints e
    WHERE e.tenant_id = NEW.tenant_id AND e.deleted_at IS NULL AND e.disabled_at IS NULL AND 'trial.finished' = ANY(e.events)
    UNION ALL
    SELECT w.endpoint_id, w.target, w.url FROM batch_webhooks w JOIN webhook_endpoints e ON e.id = w.endpoint_id
    WHERE w.batch_id = NEW.batch_id AND e.deleted_at IS NULL AND e.disabled_at IS NULL AND 'trial.finished' = ANY(w.events)
  ) r JOIN jobs j ON j.id = NEW.job_id;
  RETURN NULL;
END $$
"""


def upgrade() -> None:
    """Apply."""
    op.execute(ANNOUNCE)
