"""The foundation: tenants, batches, jobs, trials, attempts, and all they stand on."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TRANSITIONS = {
    "trial": [
        ("", "blocked"),
        ("", "queued"),
        ("blocked", "queued"),
        ("blocked", "finished"),
        ("queued", "running"),
        ("queued", "finished"),
        ("running", "queued"),
        ("running", "retry_wait"),
        ("running", "cancelling"),
        ("running", "finished"),
        ("retry_wait", "queued"),
        ("retry_wait", "finished"),
        ("cancelling", "finished"),
    ],
    "attempt": [
        ("", "dispatched"),
        ("dispatched", "starting"),
        ("dispatched", "never_started"),
        ("starting", "running"),
        ("starting", "finished"),
        ("starting", "lost"),
        ("running", "stopping"),
        ("running", "collecting"),
        ("running", "finished"),
        ("running", "lost"),
        ("stopping", "collecting"),
        ("stopping", "finished"),
        ("stopping", "lost"),
        ("collecting", "finished"),
        ("collecting", "lost"),
    ],
}

# A wrong move fails the whole statement, whichever process tried it. A trial starts to run only with a new fence,
# no fence ever goes down, and an outcome once given stays.
CHECK_STATE_MOVE = """
CREATE FUNCTION check_state_move() RETURNS trigger LANGUAGE plpgsql AS $$
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
      RAISE EXCEPTION 'outcome of a finished % may not change', subject USING ERRCODE = 'check_violation';
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

# Statement triggers: one insert for a whole batch of moves.
RECORD_EVENTS = """
CREATE FUNCTION record_new_{table}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO trial_events (trial_id, subject, fence, actor, from_state, to_state, reason)
  SELECT n.{id}, '{entity}', n.fence, coalesce(current_setting('sandmill.actor', true), 'unknown'), '', n.state,
         {reason}
  FROM new_rows n;
  RETURN NULL;
END $$;
CREATE FUNCTION record_moved_{table}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO trial_events (trial_id, subject, fence, actor, from_state, to_state, reason)
  SELECT n.{id}, '{entity}', n.fence, coalesce(current_setting('sandmill.actor', true), 'unknown'), o.state, n.state,
         {reason}
  FROM new_rows n JOIN old_rows o ON {join} WHERE o.state <> n.state;
  RETURN NULL;
END $$;
CREATE TRIGGER {table}_check_state BEFORE INSERT OR UPDATE OF state, fence, outcome ON {table}
  FOR EACH ROW EXECUTE FUNCTION check_state_move('{entity}');
CREATE TRIGGER {table}_record_new AFTER INSERT ON {table}
  REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION record_new_{table}();
CREATE TRIGGER {table}_record_moved AFTER UPDATE ON {table}
  REFERENCING NEW TABLE AS new_rows OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION record_moved_{table}()
"""


def upgrade() -> None:
    op.create_table(
        "artifacts",
        sa.Column("trial_id", sa.UUID(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("trial_id", "fence", "path", name=op.f("artifacts_pkey")),
    )
    op.create_table(
        "log_chunks",
        sa.Column("trial_id", sa.UUID(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("step", sa.Text(), nullable=False),
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("bytes", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("trial_id", "fence", "seq", name=op.f("log_chunks_pkey")),
    )
    op.create_table(
        "log_heads",
        sa.Column("trial_id", sa.UUID(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("next_seq", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("bytes", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("truncated_bytes", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("closed", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.PrimaryKeyConstraint("trial_id", "fence", name=op.f("log_heads_pkey")),
    )
    op.create_table(
        "nodes",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("runtimes", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("cpu_millicores", sa.Integer(), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("cordoned_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("nodes_pkey")),
    )
    op.create_table(
        "state_transitions",
        sa.Column("entity", sa.Text(), nullable=False),
        sa.Column("from_state", sa.Text(), nullable=False),
        sa.Column("to_state", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("entity", "from_state", "to_state", name=op.f("state_transitions_pkey")),
    )
    op.create_table(
        "tenants",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("weight", sa.REAL(), server_default=sa.text("1"), nullable=False),
        sa.Column("max_running", sa.Integer(), server_default=sa.text("1000"), nullable=False),
        sa.Column("max_queued", sa.Integer(), server_default=sa.text("1000000"), nullable=False),
        sa.Column("paused_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.CheckConstraint("weight > 0", name=op.f("tenants_weight_check")),
        sa.PrimaryKeyConstraint("id", name=op.f("tenants_pkey")),
        sa.UniqueConstraint("name", name=op.f("tenants_name_key")),
    )
    op.create_table(
        "trial_events",
        sa.Column("trial_id", sa.UUID(), nullable=False),
        sa.Column("n", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column(
            "at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("from_state", sa.Text(), nullable=False),
        sa.Column("to_state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("trial_id", "n", name=op.f("trial_events_pkey")),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("key_hash", sa.LargeBinary(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("api_keys_tenant_id_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("api_keys_pkey")),
        sa.UniqueConstraint("key_hash", name=op.f("api_keys_key_hash_key")),
    )
    op.create_index("api_keys_prefix_idx", "api_keys", ["prefix"], unique=False)
    op.create_table(
        "batches",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column(
            "labels",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'::jsonb"),
            nullable=False,
        ),
        sa.Column("priority", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("implicit", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("state", sa.Text(), server_default=sa.text("'running'"), nullable=False),
        sa.Column("job_count", sa.Integer(), nullable=False),
        sa.Column("trial_count", sa.Integer(), nullable=False),
        sa.Column("cancel_requested_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("state IN ('running', 'finished')", name=op.f("batches_state_check")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("batches_tenant_id_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("batches_pkey")),
    )
    op.create_index(
        "batches_running_idx", "batches", ["id"], unique=False, postgresql_where=sa.text("state = 'running'")
    )
    op.create_index(
        "batches_tenant_id_id_idx", "batches", ["tenant_id", sa.literal_column("id DESC")], unique=False
    )
    op.create_table(
        "blobs",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("blobs_tenant_id_fkey")),
        sa.PrimaryKeyConstraint("tenant_id", "digest", name=op.f("blobs_pkey")),
    )
    op.create_table(
        "idempotency",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("route", sa.Text(), nullable=False),
        sa.Column("request_hash", sa.LargeBinary(), nullable=False),
        sa.Column("resource_id", sa.UUID(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("idempotency_tenant_id_fkey")),
        sa.PrimaryKeyConstraint("tenant_id", "key", name=op.f("idempotency_pkey")),
    )
    op.create_index("idempotency_expires_at_idx", "idempotency", ["expires_at"], unique=False)
    op.create_table(
        "worker_sessions",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("node_id", sa.UUID(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=False),
        sa.Column(
            "beat_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column("draining", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("end_reason", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("worker_sessions_node_id_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("worker_sessions_pkey")),
        postgresql_with={"fillfactor": 50},
    )
    op.create_index(
        "worker_sessions_open_idx",
        "worker_sessions",
        ["node_id"],
        unique=False,
        postgresql_where=sa.text("ended_at IS NULL"),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("batch_id", sa.UUID(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column(
            "labels",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'::jsonb"),
            nullable=False,
        ),
        sa.Column("spec", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("trial_count", sa.Integer(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.id"], name=op.f("jobs_batch_id_fkey")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("jobs_tenant_id_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("jobs_pkey")),
        sa.UniqueConstraint("batch_id", "key", name=op.f("jobs_batch_id_key_key")),
    )
    op.create_index(
        "jobs_tenant_id_id_idx", "jobs", ["tenant_id", sa.literal_column("id DESC")], unique=False
    )
    op.create_table(
        "trials",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("batch_id", sa.UUID(), nullable=False),
        sa.Column("job_id", sa.UUID(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=True),
        sa.Column("state", sa.Text(), server_default=sa.text("'queued'"), nullable=False),
        sa.Column("state_reason", sa.Text(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("failure", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("rewards", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("desired", sa.Text(), server_default=sa.text("'run'"), nullable=False),
        sa.Column("cancel_mode", sa.Text(), nullable=True),
        sa.Column("priority", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("seq", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("run_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("queue_deadline", sa.DateTime(timezone=True), nullable=True),
        sa.Column("total_deadline", sa.DateTime(timezone=True), nullable=True),
        sa.Column(
            "deadline",
            sa.DateTime(timezone=True),
            sa.Computed("least(queue_deadline, total_deadline)", persisted=True),
            nullable=True,
        ),
        sa.Column("fence", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("attempts_used", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("infra_losses", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("task_retries", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("runtime", sa.Text(), nullable=True),
        sa.Column("cpu_millicores", sa.Integer(), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column(
            "queued_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "(state = 'finished') = (outcome IS NOT NULL)", name=op.f("trials_outcome_at_end_check")
        ),
        sa.CheckConstraint("cancel_mode IN ('graceful', 'force')", name=op.f("trials_cancel_mode_check")),
        sa.CheckConstraint("desired IN ('run', 'cancel')", name=op.f("trials_desired_check")),
        sa.CheckConstraint(
            "outcome IN ('passed', 'failed', 'error', 'cancelled', 'skipped')",
            name=op.f("trials_outcome_check"),
        ),
        sa.CheckConstraint(
            "state IN ('blocked', 'queued', 'running', 'retry_wait', 'cancelling', 'finished')",
            name=op.f("trials_state_check"),
        ),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.id"], name=op.f("trials_batch_id_fkey")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("trials_job_id_fkey")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("trials_tenant_id_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("trials_pkey")),
        sa.UniqueConstraint("job_id", "index", name=op.f("trials_job_id_index_key")),
        postgresql_with={"fillfactor": 80},
    )
    op.create_index("trials_batch_id_id_idx", "trials", ["batch_id", "id"], unique=False)
    op.create_index(
        "trials_deadline_idx",
        "trials",
        ["deadline"],
        unique=False,
        postgresql_where=sa.text("state <> 'finished'"),
    )
    op.create_index(
        "trials_due_idx", "trials", ["run_at"], unique=False, postgresql_where=sa.text("state = 'retry_wait'")
    )
    op.create_index(
        "trials_open_idx",
        "trials",
        ["batch_id"],
        unique=False,
        postgresql_where=sa.text("state <> 'finished'"),
    )
    op.create_index(
        "trials_ready_idx",
        "trials",
        ["tenant_id", sa.literal_column("priority DESC"), "seq"],
        unique=False,
        postgresql_include=["cpu_millicores", "memory_bytes"],
        postgresql_where=sa.text("state = 'queued'"),
    )
    op.create_index(
        "trials_tenant_id_id_idx", "trials", ["tenant_id", sa.literal_column("id DESC")], unique=False
    )
    op.create_table(
        "attempts",
        sa.Column("trial_id", sa.UUID(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("node_id", sa.UUID(), nullable=False),
        sa.Column("session_id", sa.UUID(), nullable=True),
        sa.Column("state", sa.Text(), server_default=sa.text("'dispatched'"), nullable=False),
        sa.Column("phase", sa.Text(), nullable=True),
        sa.Column("cpu_millicores", sa.Integer(), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("start_deadline", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_rung_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("failure", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("steps", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("grade", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("usage", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("claimed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "state IN ('dispatched', 'starting', 'running', 'stopping', 'collecting', 'finished', 'lost', 'never_started')",
            name=op.f("attempts_state_check"),
        ),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("attempts_node_id_fkey")),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name=op.f("attempts_trial_id_fkey")),
        sa.PrimaryKeyConstraint("trial_id", "fence", name=op.f("attempts_pkey")),
        sa.UniqueConstraint("id", name=op.f("attempts_id_key")),
        postgresql_with={
            "fillfactor": 70,
            "autovacuum_vacuum_scale_factor": 0.02,
            "autovacuum_vacuum_cost_delay": 0,
        },
    )
    op.create_index(
        "attempts_live_node_idx",
        "attempts",
        ["node_id"],
        unique=False,
        postgresql_where=sa.text("state IN ('dispatched', 'starting', 'running', 'stopping', 'collecting')"),
    )
    op.create_index(
        "attempts_live_session_idx",
        "attempts",
        ["session_id"],
        unique=False,
        postgresql_where=sa.text("state IN ('dispatched', 'starting', 'running', 'stopping', 'collecting')"),
    )
    op.create_index(
        "attempts_live_tenant_idx",
        "attempts",
        ["tenant_id"],
        unique=False,
        postgresql_include=["cpu_millicores", "memory_bytes"],
        postgresql_where=sa.text("state IN ('dispatched', 'starting', 'running', 'stopping', 'collecting')"),
    )
    op.create_index(
        "attempts_one_live_idx",
        "attempts",
        ["trial_id"],
        unique=True,
        postgresql_where=sa.text("state IN ('dispatched', 'starting', 'running', 'stopping', 'collecting')"),
    )
    op.create_index(
        "attempts_unclaimed_idx",
        "attempts",
        ["start_deadline"],
        unique=False,
        postgresql_where=sa.text("state = 'dispatched'"),
    )
    op.create_table(
        "sandboxes",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("trial_id", sa.UUID(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("node_id", sa.UUID(), nullable=False),
        sa.Column("runtime", sa.Text(), nullable=False),
        sa.Column("image", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), server_default=sa.text("'creating'"), nullable=False),
        sa.Column("end_reason", sa.Text(), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("removed_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("state IN ('creating', 'running', 'removed')", name=op.f("sandboxes_state_check")),
        sa.ForeignKeyConstraint(
            ["trial_id", "fence"],
            ["attempts.trial_id", "attempts.fence"],
            name=op.f("sandboxes_trial_id_fkey"),
        ),
        sa.PrimaryKeyConstraint("name", name=op.f("sandboxes_pkey")),
    )
    op.create_index(
        "sandboxes_open_idx",
        "sandboxes",
        ["node_id"],
        unique=False,
        postgresql_where=sa.text("state <> 'removed'"),
    )
    # Big values are compressed already or read in slices; TOAST's compression would only cost time.
    op.execute("ALTER TABLE log_chunks ALTER COLUMN bytes SET STORAGE EXTERNAL")
    op.bulk_insert(
        sa.table(
            "state_transitions",
            *(sa.column(name, sa.Text()) for name in ("entity", "from_state", "to_state")),
        ),
        [
            {"entity": entity, "from_state": old, "to_state": new}
            for entity, moves in TRANSITIONS.items()
            for old, new in moves
        ],
    )
    op.execute(CHECK_STATE_MOVE)
    op.execute(
        RECORD_EVENTS.format(
            table="trials", entity="trial", id="id", join="o.id = n.id", reason="n.state_reason"
        )
    )
    op.execute(
        RECORD_EVENTS.format(
            table="attempts",
            entity="attempt",
            id="trial_id",
            join="o.trial_id = n.trial_id AND o.fence = n.fence",
            reason="n.failure ->> 'code'",
        )
    )
