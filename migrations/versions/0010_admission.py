"""Caps of batches: who passed the gate is noted, so that they hold whoever queues a trial, and when."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_READY = "state = 'queued' AND (cap_labels IS NULL OR is_admitted)"
_BEFORE_THE_GATE = (
    "cap_labels IS NOT NULL AND ((state = 'blocked' AND state_reason = 'concurrency')"
    " OR (state = 'queued' AND NOT is_admitted))"
)
_BEHIND_THE_GATE = (
    "cap_labels IS NOT NULL AND (state IN ('running', 'cancelling') OR (state = 'queued' AND is_admitted))"
)

# By trigger, so that whatever comes back to the queue has to pass the gate again, whoever took it out.
FORGET_ADMISSION = """
CREATE FUNCTION forget_admission() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.is_admitted := false;
  RETURN NEW;
END $$;
CREATE TRIGGER trials_forget_admission BEFORE UPDATE OF state ON trials
  FOR EACH ROW WHEN (OLD.is_admitted AND NEW.state <> 'queued') EXECUTE FUNCTION forget_admission()
"""


def upgrade() -> None:
    """Apply."""
    op.add_column(
        "trials", sa.Column("is_admitted", sa.Boolean(), server_default=sa.text("false"), nullable=False)
    )
    for name in ("trials_ready_idx", "trials_capped_active_idx", "trials_capped_waiting_idx"):
        op.drop_index(name, "trials")
    op.create_index(
        "trials_ready_idx",
        "trials",
        ["tenant_id", "shape", sa.literal_column("priority DESC"), "seq"],
        postgresql_where=sa.text(_READY),
    )
    op.create_index(
        "trials_before_gate_idx",
        "trials",
        ["batch_id", "cap_group", sa.literal_column("priority DESC"), "seq"],
        postgresql_where=sa.text(_BEFORE_THE_GATE),
    )
    op.create_index(
        "trials_behind_gate_idx", "trials", ["batch_id"], postgresql_where=sa.text(_BEHIND_THE_GATE)
    )
    # What counts against max_queued, which blocked, paused and retried trials must not slip past.
    op.create_index(
        "trials_waiting_idx",
        "trials",
        ["tenant_id"],
        postgresql_where=sa.text("state IN ('blocked', 'paused', 'queued', 'retry_wait')"),
    )
    op.execute(FORGET_ADMISSION)
    op.execute(
        "DELETE FROM state_transitions WHERE (entity, from_state, to_state) = ('trial', 'queued', 'blocked')"
    )
