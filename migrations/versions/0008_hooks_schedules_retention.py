"""Webhooks, schedules, history; events and log chunks in monthly partitions."""

from datetime import UTC, datetime
from itertools import pairwise
from uuid import UUID

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

MONTHS_AHEAD = 3

NOW = sa.text("clock_timestamp()")

# RFC 9562, section 5.7: 48 bits of milliseconds, then random bits. Built in only from Postgres 18 on.
NEW_ID = """
CREATE FUNCTION new_uuid7() RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
  SELECT encode(
    set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
      PLACING substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3) FROM 1 FOR 6), 52, 1),
      53, 1), 'hex')::uuid
$$
"""

# Who hears of this: the tenant's endpoints, and the batch's own receiver.
RECEIVERS = """
    SELECT e.id AS endpoint_id, e.target, NULL::text AS url FROM webhook_endpoints e
    WHERE e.tenant_id = NEW.tenant_id AND e.deleted_at IS NULL AND e.disabled_at IS NULL AND '{event}' = ANY(e.events)
    UNION ALL
    SELECT w.endpoint_id, w.target, w.url FROM batch_webhooks w JOIN webhook_endpoints e ON e.id = w.endpoint_id
    WHERE w.batch_id = {batch} AND e.deleted_at IS NULL AND e.disabled_at IS NULL AND '{event}' = ANY(w.events)
"""

# Row triggers with a WHEN: all other writes pay for no function call. The message is written in the transaction of what
# it tells of, so that neither is ever without the other.
ANNOUNCE = """
CREATE FUNCTION announce_finished_{subject}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO webhook_deliveries (id, tenant_id, endpoint_id, target, url, event, subject_id, payload)
  SELECT new_uuid7(), NEW.tenant_id, r.endpoint_id, r.target, r.url, '{event}', NEW.id,
         jsonb_build_object('type', '{event}', 'timestamp',
           to_char(coalesce(NEW.finished_at, clock_timestamp()) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
           'data', {data})
  FROM ({receivers}) r {joins};
  RETURN NULL;
END $$;
CREATE TRIGGER {table}_announce AFTER UPDATE OF state ON {table} FOR EACH ROW
  WHEN (NEW.state = 'finished' AND OLD.state <> 'finished') EXECUTE FUNCTION announce_finished_{subject}();
CREATE TRIGGER {table}_announce_at_once AFTER INSERT ON {table} FOR EACH ROW
  WHEN (NEW.state = 'finished') EXECUTE FUNCTION announce_finished_{subject}()
"""

TRIAL_DATA = """jsonb_build_object(
             'trial_id', NEW.id, 'batch_id', NEW.batch_id, 'job_id', NEW.job_id, 'job_key', j.key,
             'index', NEW.index, 'outcome', NEW.outcome, 'rewards', NEW.rewards,
             'failure', CASE WHEN NEW.failure IS NOT NULL THEN
               jsonb_build_object('class', NEW.failure -> 'class', 'code', NEW.failure -> 'code') END)"""

BATCH_DATA = """jsonb_build_object(
             'batch_id', NEW.id, 'name', NEW.name, 'trials', NEW.trial_count, 'outcomes',
             (SELECT coalesce(jsonb_object_agg(o.outcome, o.n), '{}') FROM (
               SELECT t.outcome, count(*) AS n FROM trials t
               WHERE t.batch_id = NEW.id AND t.outcome IS NOT NULL GROUP BY t.outcome) o))"""

# A statement trigger: one insert for a whole batch of jobs.
USE_BLOBS = """
CREATE FUNCTION use_blobs_of_jobs() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO blob_uses (owner_id, tenant_id, digest)
  SELECT DISTINCT n.id, n.tenant_id, i ->> 'blob'
  FROM new_rows n CROSS JOIN LATERAL jsonb_array_elements(n.spec -> 'inputs') AS i
  WHERE i ->> 'blob' IS NOT NULL;
  RETURN NULL;
END $$;
CREATE TRIGGER jobs_use_blobs AFTER INSERT ON jobs
  REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION use_blobs_of_jobs()
"""

BACKFILL_USES = """
INSERT INTO blob_uses (owner_id, tenant_id, digest)
SELECT DISTINCT j.id, j.tenant_id, b.digest
FROM jobs j CROSS JOIN LATERAL jsonb_array_elements(j.spec -> 'inputs') AS i
  JOIN blobs b ON b.tenant_id = j.tenant_id AND b.digest = i ->> 'blob'
"""


def upgrade() -> None:
    """Apply."""
    op.execute(NEW_ID)
    _webhooks()
    _schedules()
    _retention()
    months = _months(datetime.now(UTC), MONTHS_AHEAD)
    _partition_history("trial_history", months)
    _partition_history("batch_history", months)
    # The identity is the parent's; a partition of newer Postgres versions may not have its own.
    numbers = op.get_bind().exec_driver_sql("SELECT pg_get_serial_sequence('trial_events', 'n')").scalar_one()
    last = op.get_bind().exec_driver_sql(f"SELECT last_value FROM {numbers}").scalar_one()  # noqa: S608 -- a name the database gave
    op.execute("ALTER TABLE trial_events ALTER COLUMN n DROP IDENTITY")
    _partition_present("trial_events", months)
    op.execute(
        f"ALTER TABLE trial_events ALTER COLUMN n ADD GENERATED ALWAYS AS IDENTITY (START WITH {last + 1})"
    )
    _partition_present("log_chunks", months)


def _webhooks() -> None:
    op.create_table(
        "webhook_endpoints",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("events", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("secret", sa.LargeBinary(), nullable=False),
        sa.Column("previous_secret", sa.LargeBinary(), nullable=True),
        sa.Column("previous_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=NOW, nullable=False),
        sa.Column("disabled_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("disabled_reason", sa.Text(), nullable=True),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("webhook_endpoints_tenant_id_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("webhook_endpoints_pkey")),
    )
    op.create_index(
        "webhook_endpoints_name_idx",
        "webhook_endpoints",
        ["tenant_id", "name"],
        unique=True,
        postgresql_where=sa.text("deleted_at IS NULL"),
    )
    op.create_table(
        "batch_webhooks",
        sa.Column("batch_id", sa.UUID(), nullable=False),
        sa.Column("endpoint_id", sa.UUID(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("events", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.id"], name=op.f("batch_webhooks_batch_id_fkey")),
        sa.ForeignKeyConstraint(
            ["endpoint_id"], ["webhook_endpoints.id"], name=op.f("batch_webhooks_endpoint_id_fkey")
        ),
        sa.PrimaryKeyConstraint("batch_id", name=op.f("batch_webhooks_pkey")),
    )
    op.create_index("batch_webhooks_endpoint_id_idx", "batch_webhooks", ["endpoint_id"])
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("endpoint_id", sa.UUID(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=True),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("subject_id", sa.UUID(), nullable=False),
        sa.Column("payload", postgresql.JSONB(), nullable=False),
        sa.Column("state", sa.Text(), server_default=sa.text("'pending'"), nullable=False),
        sa.Column("tries", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("next_try_at", sa.DateTime(timezone=True), server_default=NOW, nullable=False),
        sa.Column("last_status", sa.Integer(), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=NOW, nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "state IN ('pending', 'delivered', 'dead')", name=op.f("webhook_deliveries_state_check")
        ),
        sa.CheckConstraint(
            "(state = 'pending') = (finished_at IS NULL)",
            name=op.f("webhook_deliveries_finished_at_end_check"),
        ),
        sa.ForeignKeyConstraint(
            ["endpoint_id"], ["webhook_endpoints.id"], name=op.f("webhook_deliveries_endpoint_id_fkey")
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name=op.f("webhook_deliveries_tenant_id_fkey")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("webhook_deliveries_pkey")),
        postgresql_with={"fillfactor": 80},
    )
    op.create_index(
        "webhook_deliveries_due_idx",
        "webhook_deliveries",
        ["target", "next_try_at"],
        postgresql_where=sa.text("state = 'pending'"),
    )
    op.create_index(
        "webhook_deliveries_tenant_id_id_idx",
        "webhook_deliveries",
        ["tenant_id", sa.literal_column("id DESC")],
    )
    op.create_index(
        "webhook_deliveries_finished_idx",
        "webhook_deliveries",
        ["finished_at"],
        postgresql_where=sa.text("finished_at IS NOT NULL"),
    )
    op.create_index("webhook_deliveries_endpoint_id_idx", "webhook_deliveries", ["endpoint_id"])
    event = "trial.finished"
    op.execute(
        ANNOUNCE.format(
            subject="trial",
            table="trials",
            event=event,
            data=TRIAL_DATA,
            receivers=RECEIVERS.format(event=event, batch="NEW.batch_id"),
            joins="JOIN jobs j ON j.id = NEW.job_id",
        )
    )
    event = "batch.finished"
    op.execute(
        ANNOUNCE.format(
            subject="batch",
            table="batches",
            event=event,
            data=BATCH_DATA,
            receivers=RECEIVERS.format(event=event, batch="NEW.id"),
            joins="",
        )
    )


def _schedules() -> None:
    op.create_table(
        "schedules",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("cron", sa.Text(), nullable=False),
        sa.Column("timezone", sa.Text(), nullable=False),
        sa.Column("template", postgresql.JSONB(), nullable=False),
        sa.Column("batch", postgresql.JSONB(), nullable=False),
        sa.Column("catch_up", sa.Text(), nullable=False),
        sa.Column("overlap", sa.Text(), nullable=False),
        sa.Column("next_fire_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("paused_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=NOW, nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=NOW, nullable=False),
        sa.CheckConstraint("catch_up IN ('none', 'one', 'all')", name=op.f("schedules_catch_up_check")),
        sa.CheckConstraint("overlap IN ('allow', 'skip')", name=op.f("schedules_overlap_check")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("schedules_tenant_id_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("schedules_pkey")),
    )
    op.create_index("schedules_name_idx", "schedules", ["tenant_id", "name"], unique=True)
    op.create_index(
        "schedules_due_idx",
        "schedules",
        ["next_fire_at"],
        postgresql_where=sa.text("next_fire_at IS NOT NULL"),
    )
    op.create_table(
        "schedule_fires",
        sa.Column("schedule_id", sa.UUID(), nullable=False),
        sa.Column("fire_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("batch_id", sa.UUID(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.Column("fired_at", sa.DateTime(timezone=True), server_default=NOW, nullable=False),
        sa.CheckConstraint(
            "outcome IN ('submitted', 'overlapped', 'missed', 'refused')",
            name=op.f("schedule_fires_outcome_check"),
        ),
        sa.CheckConstraint(
            "(outcome = 'submitted') = (batch_id IS NOT NULL)", name=op.f("schedule_fires_batch_check")
        ),
        sa.ForeignKeyConstraint(
            ["schedule_id"],
            ["schedules.id"],
            name=op.f("schedule_fires_schedule_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("schedule_id", "fire_at", name=op.f("schedule_fires_pkey")),
    )
    op.create_index("schedule_fires_fired_at_idx", "schedule_fires", ["fired_at"])


def _retention() -> None:
    op.add_column("batches", sa.Column("archiving_at", sa.DateTime(timezone=True), nullable=True))
    op.create_index(
        "batches_finished_idx", "batches", ["finished_at"], postgresql_where=sa.text("state = 'finished'")
    )
    op.create_index(
        "batches_archiving_idx", "batches", ["id"], postgresql_where=sa.text("archiving_at IS NOT NULL")
    )
    op.add_column(
        "blobs", sa.Column("used_at", sa.DateTime(timezone=True), server_default=NOW, nullable=False)
    )
    op.create_index("blobs_digest_idx", "blobs", ["digest"])
    op.create_index("blobs_used_at_idx", "blobs", ["used_at"])
    op.create_index("artifacts_digest_idx", "artifacts", ["digest"])
    op.create_index("artifacts_created_at_idx", "artifacts", ["created_at"])
    op.create_table(
        "blob_uses",
        sa.Column("owner_id", sa.UUID(), nullable=False),
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id", "digest"],
            ["blobs.tenant_id", "blobs.digest"],
            name=op.f("blob_uses_tenant_id_fkey"),
        ),
        sa.PrimaryKeyConstraint("owner_id", "digest", name=op.f("blob_uses_pkey")),
    )
    op.create_index("blob_uses_tenant_id_digest_idx", "blob_uses", ["tenant_id", "digest"])
    op.execute(BACKFILL_USES)
    op.execute(USE_BLOBS)


def _partition_history(table: str, months: list[datetime]) -> None:
    column = "trial" if table == "trial_history" else "batch"
    extra = "batch_id uuid NOT NULL, " if table == "trial_history" else ""
    content = "attempts" if table == "trial_history" else "outcomes"
    op.execute(
        f"CREATE TABLE {table} (id uuid NOT NULL, tenant_id bigint NOT NULL, {extra}{column} jsonb NOT NULL,"
        f" {content} jsonb NOT NULL, archived_at timestamptz NOT NULL DEFAULT clock_timestamp(),"
        f" CONSTRAINT {table}_pkey PRIMARY KEY (id)) PARTITION BY RANGE (id)"
    )
    key = "batch_id, id" if table == "trial_history" else "tenant_id, id"
    op.execute(f"CREATE INDEX {table}_{key.replace(', ', '_')}_idx ON {table} ({key})")
    op.execute(
        f"CREATE TABLE {_partition(table, months[0])} PARTITION OF {table}"
        f" FOR VALUES FROM (MINVALUE) TO ('{_first_id(months[1])}')"
    )
    _add_partitions(table, months)


def _partition_present(table: str, months: list[datetime]) -> None:
    """Make the present table the partition of all months up to this one, as it is, without copying a row.

    Attaching reads it once, to see that no id is of a later month.
    """
    first = _partition(table, months[0])
    op.execute(f"ALTER TABLE {table} RENAME TO {first}")
    op.execute(f"ALTER INDEX {table}_pkey RENAME TO {first}_pkey")
    op.execute(
        f"CREATE TABLE {table} (LIKE {first} INCLUDING DEFAULTS INCLUDING STORAGE) PARTITION BY RANGE (trial_id)"
    )
    key = "trial_id, n" if table == "trial_events" else "trial_id, fence, seq"
    op.execute(f"ALTER TABLE {table} ADD CONSTRAINT {table}_pkey PRIMARY KEY ({key})")
    op.execute(
        f"ALTER TABLE {table} ATTACH PARTITION {first}"
        f" FOR VALUES FROM (MINVALUE) TO ('{_first_id(months[1])}')"
    )
    _add_partitions(table, months)


def _add_partitions(table: str, months: list[datetime]) -> None:
    for month, following in pairwise(months[1:]):
        op.execute(
            f"CREATE TABLE {_partition(table, month)} PARTITION OF {table}"
            f" FOR VALUES FROM ('{_first_id(month)}') TO ('{_first_id(following)}')"
        )
    # Nothing is ever refused for want of a partition.
    op.execute(f"CREATE TABLE {table}_default PARTITION OF {table} DEFAULT")


def _partition(table: str, month: datetime) -> str:
    return f"{table}_p{month:%Y%m}"


def _months(now: datetime, ahead: int) -> list[datetime]:
    """Give the first moments of this month, of so many after it, and of the one after those."""
    first = now.year * 12 + now.month - 1
    return [datetime(n // 12, n % 12 + 1, 1, tzinfo=UTC) for n in range(first, first + ahead + 2)]


def _first_id(month: datetime) -> UUID:
    """Give the least UUIDv7 of a moment."""
    return UUID(int=int(month.timestamp() * 1000) << 80)
