"""Fan-out: tails, needs, open batches, stop rules, pauses, progress, events, later grades."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

MOVES = [
    ("", "paused"),
    ("", "finished"),
    ("blocked", "paused"),
    ("paused", "blocked"),
    ("paused", "queued"),
    ("paused", "finished"),
    ("queued", "paused"),
    ("running", "paused"),
    ("retry_wait", "paused"),
]

# As before, but a finished trial's outcome may change together with the next grade.
CHECK_STATE_MOVE = """
CREATE OR REPLACE FUNCTION check_state_move() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  subject text := TG_ARGV[0];
  old_state text := '';
BEGIN
  IF TG_OP = 'UPDATE' THEN
    old_state := OLD.state;
    IF NEW.fence < OLD.fence THEN
      RAISE EXCEPTION 'fence of % may not go down', subject USING ERRCODE = 'check_violation';
    END IF;
    IF old_state = 'finished' AND NEW.outcome IS DISTINCT FROM OLD.outcome THEN
      IF subject = 'trial' THEN
        IF NEW.grade_no <> OLD.grade_no + 1 THEN
          RAISE EXCEPTION 'outcome of a finished trial changes with its next grade only'
            USING ERRCODE = 'check_violation';
        END IF;
      ELSE
        RAISE EXCEPTION 'outcome of a finished % may not change', subject USING ERRCODE = 'check_violation';
      END IF;
    END IF;
    IF old_state = NEW.state THEN
      RETURN NEW;
    END IF;
    IF subject = 'trial' AND NEW.state = 'running' AND NEW.fence <> OLD.fence + 1 THEN
      RAISE EXCEPTION 'a trial starts to run with the next fence only' USING ERRCODE = 'check_violation';
    END IF;
  END IF;
  IF NOT EXISTS (
    SELECT 1 FROM state_transitions t
    WHERE t.entity = subject AND t.from_state = old_state AND t.to_state = NEW.state
  ) THEN
    RAISE EXCEPTION '% may not go from "%" to "%"', subject, old_state, NEW.state USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$
"""

# Row triggers with a WHEN: all other writes of trials pay for no function call.
TRIGGERS = """
CREATE FUNCTION note_end_of_trial() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO batch_inbox (batch_id, job_id, trial_id, outcome) VALUES (NEW.batch_id, NEW.job_id, NEW.id, NEW.outcome);
  RETURN NULL;
END $$;
CREATE TRIGGER trials_note_end AFTER UPDATE OF state ON trials FOR EACH ROW
  WHEN (NEW.state = 'finished' AND OLD.state <> 'finished') EXECUTE FUNCTION note_end_of_trial();
CREATE TRIGGER trials_note_end_at_once AFTER INSERT ON trials FOR EACH ROW
  WHEN (NEW.state = 'finished') EXECUTE FUNCTION note_end_of_trial();
CREATE FUNCTION stop_clock_of_trial() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.state = 'paused' THEN
    NEW.paused_at := clock_timestamp();
  ELSE
    NEW.queue_deadline := NEW.queue_deadline + (clock_timestamp() - OLD.paused_at);
    NEW.total_deadline := NEW.total_deadline + (clock_timestamp() - OLD.paused_at);
    NEW.paused_at := NULL;
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER trials_stop_clock BEFORE UPDATE OF state ON trials FOR EACH ROW
  WHEN (NEW.state <> OLD.state AND 'paused' IN (NEW.state, OLD.state)) EXECUTE FUNCTION stop_clock_of_trial()
"""


def upgrade() -> None:
    """Apply."""
    _extend_batches()
    _extend_jobs()
    _extend_trials()
    _make_tables()
    op.bulk_insert(
        sa.table(
            "state_transitions",
            *(sa.column(name, sa.Text()) for name in ("entity", "from_state", "to_state")),
        ),
        [{"entity": "trial", "from_state": old, "to_state": new} for old, new in MOVES],
    )
    op.execute(CHECK_STATE_MOVE)
    op.execute(TRIGGERS)
    # What is there already counts from now on as if it had just ended.
    op.execute(
        "INSERT INTO batch_inbox (batch_id, job_id, trial_id, outcome)"
        " SELECT batch_id, job_id, id, outcome FROM trials WHERE state = 'finished' ORDER BY finished_at"
    )


def _extend_batches() -> None:
    op.add_column(
        "batches", sa.Column("is_open", sa.Boolean(), server_default=sa.text("false"), nullable=False)
    )
    for name in ("defaults", "stop_when"):
        op.add_column("batches", sa.Column(name, postgresql.JSONB(astext_type=sa.Text()), nullable=True))
    for name in ("paused_at", "stopped_at"):
        op.add_column("batches", sa.Column(name, sa.DateTime(timezone=True), nullable=True))
    op.add_column("batches", sa.Column("stop_reason", sa.Text(), nullable=True))


def _extend_jobs() -> None:
    zero = sa.text("0")
    for name in ("tail_count", "unmet_needs"):
        op.add_column("jobs", sa.Column(name, sa.Integer(), server_default=zero, nullable=False))
    for name in ("tail_outcome", "tail_reason"):
        op.add_column("jobs", sa.Column(name, sa.Text(), nullable=True))
    op.add_column(
        "jobs", sa.Column("is_paused", sa.Boolean(), server_default=sa.text("false"), nullable=False)
    )
    op.add_column("jobs", sa.Column("stop", sa.Text(), server_default=sa.text("'never'"), nullable=False))
    op.add_column("jobs", sa.Column("stopped_at", sa.DateTime(timezone=True), nullable=True))
    for name, rule in (
        ("tail_count", "tail_count BETWEEN 0 AND trial_count"),
        ("unmet_needs", "unmet_needs >= 0"),
        ("tail_outcome", "tail_outcome IN ('cancelled', 'skipped')"),
        ("stop", "stop IN ('never', 'first_pass', 'first_fail')"),
    ):
        op.create_check_constraint(op.f(f"jobs_{name}_check"), "jobs", rule)
    has_tail = sa.text("tail_count > 0")
    op.create_index("jobs_tail_idx", "jobs", ["batch_id", "ordinal"], postgresql_where=has_tail)
    op.create_index("jobs_tail_tenant_idx", "jobs", ["tenant_id"], postgresql_where=has_tail)


def _extend_trials() -> None:
    op.add_column("trials", sa.Column("cancel_reason", sa.Text(), nullable=True))
    for name in ("cancel_requested_at", "paused_at"):
        op.add_column("trials", sa.Column(name, sa.DateTime(timezone=True), nullable=True))
    op.add_column(
        "trials", sa.Column("is_paused", sa.Boolean(), server_default=sa.text("false"), nullable=False)
    )
    for name in ("retry_of", "superseded_by"):
        op.add_column("trials", sa.Column(name, sa.UUID(), nullable=True))
    op.add_column("trials", sa.Column("grade_no", sa.Integer(), server_default=sa.text("0"), nullable=False))
    op.drop_constraint(op.f("trials_job_id_index_key"), "trials", type_="unique")
    op.create_unique_constraint(
        op.f("trials_job_id_index_superseded_by_key"),
        "trials",
        ["job_id", "index", "superseded_by"],
        postgresql_nulls_not_distinct=True,
    )
    op.create_index(
        "trials_cancelling_idx",
        "trials",
        ["cancel_requested_at"],
        postgresql_where=sa.text("desired = 'cancel' AND state IN ('running', 'cancelling')"),
    )
    op.drop_constraint(op.f("trials_state_check"), "trials", type_="check")
    op.create_check_constraint(
        op.f("trials_state_check"),
        "trials",
        "state IN ('blocked', 'paused', 'queued', 'running', 'retry_wait', 'cancelling', 'finished')",
    )


def _count_columns() -> list[sa.Column[int]]:
    names = ("passed", "failed", "error", "cancelled", "skipped")
    return [sa.Column(name, sa.Integer(), server_default=sa.text("0"), nullable=False) for name in names]


def _make_tables() -> None:
    op.create_table(
        "job_needs",
        sa.Column("job_id", sa.UUID(), nullable=False),
        sa.Column("needs_job_id", sa.UUID(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "outcome IN ('passed', 'failed', 'finished')", name=op.f("job_needs_outcome_check")
        ),
        sa.CheckConstraint("job_id <> needs_job_id", name=op.f("job_needs_not_itself_check")),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("job_needs_job_id_fkey"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["needs_job_id"], ["jobs.id"], name=op.f("job_needs_needs_job_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "needs_job_id", name=op.f("job_needs_pkey")),
    )
    op.create_index("job_needs_needs_job_id_idx", "job_needs", ["needs_job_id"])
    op.create_table(
        "batch_progress",
        sa.Column("batch_id", sa.UUID(), nullable=False),
        *_count_columns(),
        sa.Column("last_event", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["batches.id"], name=op.f("batch_progress_batch_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("batch_id", name=op.f("batch_progress_pkey")),
        postgresql_with={"fillfactor": 50},
    )
    op.create_table(
        "job_progress",
        sa.Column("job_id", sa.UUID(), nullable=False),
        *_count_columns(),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("job_progress_job_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", name=op.f("job_progress_pkey")),
        postgresql_with={"fillfactor": 50},
    )
    op.create_table(
        "batch_inbox",
        sa.Column("n", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("batch_id", sa.UUID(), nullable=False),
        sa.Column("job_id", sa.UUID(), nullable=True),
        sa.Column("trial_id", sa.UUID(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("is_counted", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.PrimaryKeyConstraint("n", name=op.f("batch_inbox_pkey")),
        postgresql_with={"autovacuum_vacuum_scale_factor": 0.02, "autovacuum_vacuum_cost_delay": 0},
    )
    op.create_index("batch_inbox_batch_id_idx", "batch_inbox", ["batch_id"])
    op.create_index("batch_inbox_trial_id_idx", "batch_inbox", ["trial_id"])
    op.create_table(
        "batch_events",
        sa.Column("batch_id", sa.UUID(), nullable=False),
        sa.Column("n", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("trial_id", sa.UUID(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("detail", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column(
            "at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["batches.id"], name=op.f("batch_events_batch_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("batch_id", "n", name=op.f("batch_events_pkey")),
    )
    op.create_table(
        "regrades",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("batch_id", sa.UUID(), nullable=False),
        sa.Column("verdict", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("regrades_tenant_id_fkey")),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["batches.id"], name=op.f("regrades_batch_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("regrades_pkey")),
    )
    op.create_table(
        "grades",
        sa.Column("regrade_id", sa.UUID(), nullable=False),
        sa.Column("trial_id", sa.UUID(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=True),
        sa.Column("old_outcome", sa.Text(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("failure", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("grade", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("graded_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "outcome IN ('passed', 'failed', 'error', 'cancelled', 'skipped')",
            name=op.f("grades_outcome_check"),
        ),
        sa.ForeignKeyConstraint(
            ["regrade_id"], ["regrades.id"], name=op.f("grades_regrade_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("regrade_id", "trial_id", name=op.f("grades_pkey")),
    )
    op.create_index(
        "grades_pending_idx",
        "grades",
        ["regrade_id", "trial_id"],
        postgresql_where=sa.text("graded_at IS NULL"),
    )
    op.create_index("grades_trial_id_idx", "grades", ["trial_id"])
