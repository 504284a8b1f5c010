"""The tables. Hot paths use plain SQL in `repositories`; the migrations are checked against these classes."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    CheckConstraint,
    Computed,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    PrimaryKeyConstraint,
    SmallInteger,
    Text,
    UniqueConstraint,
    desc,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, DOUBLE_PRECISION, REAL
from sqlalchemy.orm import Mapped, mapped_column

from models.base import Base
from models.states import (
    BEFORE_THE_GATE,
    BEHIND_THE_GATE,
    LIVE_ATTEMPT_STATES,
    READY,
    AttemptState,
    BatchState,
    Outcome,
    SandboxState,
    TrialState,
    sql_list,
)

__all__ = [
    "ApiKey",
    "Artifact",
    "Attempt",
    "Batch",
    "Blob",
    "Idempotency",
    "Job",
    "LogChunk",
    "LogHead",
    "Node",
    "Sandbox",
    "StateTransition",
    "Tenant",
    "Trial",
    "TrialEvent",
    "WorkerSession",
]

_NOW = text("clock_timestamp()")
_EMPTY = text("'{}'::jsonb")
_ZERO = text("0")
_LIVE = text(f"state IN ({sql_list(LIVE_ATTEMPT_STATES)})")


def _one_of(column: str, states: tuple[Any, ...]) -> CheckConstraint:
    return CheckConstraint(f"{column} IN ({sql_list(states)})", name=column)


class Tenant(Base):
    """Who pays and who is isolated from whom. What the quotas mean: `docs/scheduling.md`; NULL = no such quota."""

    __tablename__ = "tenants"
    __table_args__ = (
        CheckConstraint("weight > 0", name="weight"),
        CheckConstraint("class BETWEEN 0 AND 9", name="class"),
        CheckConstraint("max_running >= 0", name="max_running"),
        CheckConstraint("max_queued >= 0", name="max_queued"),
        CheckConstraint("max_cpu_millicores >= 0", name="max_cpu_millicores"),
        CheckConstraint("max_memory_bytes >= 0", name="max_memory_bytes"),
        CheckConstraint("max_gpu >= 0", name="max_gpu"),
        CheckConstraint("rate_per_second > 0", name="rate_per_second"),
        CheckConstraint(
            "rate_burst IS NULL OR (rate_burst >= 1 AND rate_per_second IS NOT NULL)", name="rate_burst"
        ),
        CheckConstraint("budget_period_seconds > 0", name="budget_period_seconds"),
        CheckConstraint("budget_cpu_seconds >= 0", name="budget_cpu_seconds"),
        CheckConstraint("(budget_period_seconds IS NULL) = (budget_cpu_seconds IS NULL)", name="budget"),
        CheckConstraint("guaranteed_share > 0 AND guaranteed_share <= 1", name="guaranteed_share"),
    )

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    weight: Mapped[float] = mapped_column(REAL, server_default=text("1"))
    class_: Mapped[int] = mapped_column("class", SmallInteger, server_default=_ZERO)
    max_running: Mapped[int] = mapped_column(Integer, server_default=text("1000"))
    max_queued: Mapped[int] = mapped_column(Integer, server_default=text("1000000"))
    max_cpu_millicores: Mapped[int | None]
    max_memory_bytes: Mapped[int | None]
    max_gpu: Mapped[int | None] = mapped_column(Integer)
    rate_per_second: Mapped[float | None] = mapped_column(REAL)
    rate_burst: Mapped[int | None] = mapped_column(Integer)
    budget_period_seconds: Mapped[int | None] = mapped_column(Integer)
    budget_cpu_seconds: Mapped[int | None]
    guaranteed_share: Mapped[float | None] = mapped_column(REAL)
    version: Mapped[int] = mapped_column(Integer, server_default=text("1"))
    paused_at: Mapped[datetime | None]
    limits_lowered_at: Mapped[datetime | None]  # written by a trigger
    created_at: Mapped[datetime] = mapped_column(server_default=_NOW)


class ApiKey(Base):
    """A key, as its SHA-256; `prefix` is the part by which it is looked up and shown.

    A tenant's key acts for that tenant alone; an operator's (role `admin`) belongs to none and acts for none.
    """

    __tablename__ = "api_keys"
    __table_args__ = (
        Index("api_keys_prefix_idx", "prefix"),
        Index("api_keys_tenant_id_idx", "tenant_id"),
        CheckConstraint("role IN ('tenant', 'admin')", name="role"),
        CheckConstraint("(role = 'admin') = (tenant_id IS NULL)", name="role_tenant"),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant_id: Mapped[int | None] = mapped_column(ForeignKey("tenants.id"))
    role: Mapped[str] = mapped_column(server_default=text("'tenant'"))
    name: Mapped[str]
    prefix: Mapped[str]
    key_hash: Mapped[bytes] = mapped_column(unique=True)
    created_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    revoked_at: Mapped[datetime | None]


class Batch(Base):
    """Jobs submitted together."""

    __tablename__ = "batches"
    __table_args__ = (
        _one_of("state", tuple(BatchState)),
        CheckConstraint("max_running >= 1", name="max_running"),
        Index("batches_tenant_id_id_idx", "tenant_id", desc("id")),
        Index("batches_running_idx", "id", postgresql_where=text("state = 'running'")),
        Index("batches_finished_idx", "finished_at", postgresql_where=text("state = 'finished'")),
        Index("batches_archiving_idx", "id", postgresql_where=text("archiving_at IS NOT NULL")),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str | None]
    labels: Mapped[dict[str, Any]] = mapped_column(server_default=_EMPTY)
    priority: Mapped[int] = mapped_column(SmallInteger, server_default=_ZERO)
    implicit: Mapped[bool] = mapped_column(server_default=text("false"))
    # Of one live sandbox: not listed among what was submitted.
    is_session: Mapped[bool] = mapped_column(server_default=text("false"))
    state: Mapped[str] = mapped_column(server_default=text("'running'"))
    job_count: Mapped[int] = mapped_column(Integer)
    trial_count: Mapped[int] = mapped_column(Integer)
    max_running: Mapped[int | None] = mapped_column(Integer)
    max_per_label: Mapped[dict[str, Any]] = mapped_column(server_default=_EMPTY)
    # More jobs may be appended until it is closed; their defaults are kept for that.
    is_open: Mapped[bool] = mapped_column(server_default=text("false"))
    defaults: Mapped[dict[str, Any] | None]
    paused_at: Mapped[datetime | None]
    cancel_requested_at: Mapped[datetime | None]
    # The rule that ends a batch early, by outcome, and when and why it did; it does so once.
    stop_when: Mapped[dict[str, Any] | None]
    stopped_at: Mapped[datetime | None]
    stop_reason: Mapped[str | None]
    # W3C trace context of the request, so that spans of its attempts join it on whichever machine they run.
    traceparent: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    finished_at: Mapped[datetime | None]
    # From here on its rows go to the history page by page, so nobody may look at it or change it any more.
    archiving_at: Mapped[datetime | None]


class Job(Base):
    """An immutable spec; `ordinal` is its place in the batch.

    tail_count: how many of its trials, the last ones, have no row yet. tail_outcome: what they will end as if the job
    was cancelled or skipped before they were made. unmet_needs: edges of `job_needs` that still hold it up.
    queue_deadline: of the trials of the tail, NULL without one.
    """

    __tablename__ = "jobs"
    __table_args__ = (
        UniqueConstraint("batch_id", "key"),
        CheckConstraint("tail_count BETWEEN 0 AND trial_count", name="tail_count"),
        CheckConstraint("unmet_needs >= 0", name="unmet_needs"),
        CheckConstraint("tail_outcome IN ('cancelled', 'skipped')", name="tail_outcome"),
        CheckConstraint("stop IN ('never', 'first_pass', 'first_fail')", name="stop"),
        Index("jobs_tenant_id_id_idx", "tenant_id", desc("id")),
        Index("jobs_tail_idx", "batch_id", "ordinal", postgresql_where=text("tail_count > 0")),
        Index("jobs_tail_tenant_idx", "tenant_id", postgresql_where=text("tail_count > 0")),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id"))
    batch_id: Mapped[UUID] = mapped_column(ForeignKey("batches.id"))
    ordinal: Mapped[int] = mapped_column(Integer)
    key: Mapped[str]
    kind: Mapped[str]
    digest: Mapped[str]
    labels: Mapped[dict[str, Any]] = mapped_column(server_default=_EMPTY)
    spec: Mapped[dict[str, Any]]
    trial_count: Mapped[int] = mapped_column(Integer)
    tail_count: Mapped[int] = mapped_column(Integer, server_default=_ZERO)
    tail_outcome: Mapped[str | None]
    tail_reason: Mapped[str | None]
    unmet_needs: Mapped[int] = mapped_column(Integer, server_default=_ZERO)
    paused_at: Mapped[datetime | None]
    queue_deadline: Mapped[datetime | None]
    stop: Mapped[str] = mapped_column(server_default=text("'never'"))
    stopped_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(server_default=_NOW)


class Trial(Base):
    """One sample of a job: the unit that queues, is scheduled and owns the outcome.

    fence goes up by one with every dispatch. desired is where the user writes; state is the owner's. is_paused: it
    is not to start, whatever it waits for; while it is `paused` its deadlines stand still. superseded_by: a later retry
    counts in its place. grade_no goes up with every new grade.
    shape: of trials that want the same of a node and of a queue; decided for all of them at once, so that a tick costs
    the same however many wait. cap_labels: NULL unless the batch has caps; else the labels that are counted.
    is_admitted: queued within its batch's caps; without that a capped trial is not dispatched, and a trigger takes it
    away when the trial leaves the queue.
    max_cpu_seconds: what one run can use at most, cores times timeouts.total. node_labels: those the node must have.
    slots: of its node that it takes while it runs; 0 for a live sandbox, which takes no thread of the worker.
    """

    __tablename__ = "trials"
    __table_args__ = (
        _one_of("state", tuple(TrialState)),
        CheckConstraint(f"outcome IN ({sql_list(tuple(Outcome))})", name="outcome"),
        CheckConstraint("(state = 'finished') = (outcome IS NOT NULL)", name="outcome_at_end"),
        CheckConstraint("desired IN ('run', 'cancel')", name="desired"),
        CheckConstraint("cancel_mode IN ('graceful', 'force')", name="cancel_mode"),
        CheckConstraint("gpu >= 0", name="gpu"),
        # One row that counts per sample: all others name the retry that took their place.
        UniqueConstraint("job_id", "index", "superseded_by", postgresql_nulls_not_distinct=True),
        # Partial, so that each holds only open rows however many are finished.
        Index(
            "trials_ready_idx",
            "tenant_id",
            "shape",
            desc("priority"),
            "seq",
            postgresql_where=text(READY),
        ),
        Index("trials_behind_gate_idx", "batch_id", postgresql_where=text(BEHIND_THE_GATE)),
        Index(
            "trials_before_gate_idx",
            "batch_id",
            "cap_group",
            desc("priority"),
            "seq",
            postgresql_where=text(BEFORE_THE_GATE),
        ),
        # What counts against max_queued. By an expression, so that no plan reads and sorts a tenant's whole queue by
        # this index where trials_ready_idx gives it in order.
        Index(
            "trials_waiting_idx",
            text("(tenant_id + 0)"),
            postgresql_where=text("state IN ('blocked', 'paused', 'queued', 'retry_wait')"),
        ),
        Index("trials_due_idx", "run_at", postgresql_where=text("state = 'retry_wait'")),
        Index("trials_deadline_idx", "deadline", postgresql_where=text("state <> 'finished'")),
        Index("trials_open_idx", "batch_id", postgresql_where=text("state <> 'finished'")),
        Index(
            "trials_cancelling_idx",
            "cancel_requested_at",
            postgresql_where=text("desired = 'cancel' AND state IN ('running', 'cancelling')"),
        ),
        Index("trials_batch_id_id_idx", "batch_id", "id"),
        Index("trials_tenant_id_id_idx", "tenant_id", desc("id")),
        {"postgresql_with": {"fillfactor": 80}},
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id"))
    batch_id: Mapped[UUID] = mapped_column(ForeignKey("batches.id"))
    job_id: Mapped[UUID] = mapped_column(ForeignKey("jobs.id"))
    index: Mapped[int] = mapped_column(Integer)
    seed: Mapped[int | None]
    state: Mapped[str] = mapped_column(server_default=text("'queued'"))
    state_reason: Mapped[str | None]
    outcome: Mapped[str | None]
    failure: Mapped[dict[str, Any] | None]
    rewards: Mapped[dict[str, Any] | None]
    desired: Mapped[str] = mapped_column(server_default=text("'run'"))
    cancel_mode: Mapped[str | None]
    cancel_reason: Mapped[str | None]
    cancel_requested_at: Mapped[datetime | None]
    is_paused: Mapped[bool] = mapped_column(server_default=text("false"))
    paused_at: Mapped[datetime | None]
    retry_of: Mapped[UUID | None]
    superseded_by: Mapped[UUID | None]
    grade_no: Mapped[int] = mapped_column(Integer, server_default=_ZERO)
    priority: Mapped[int] = mapped_column(SmallInteger, server_default=_ZERO)
    seq: Mapped[int] = mapped_column(Identity(always=True))
    run_at: Mapped[datetime | None]
    queue_deadline: Mapped[datetime | None]
    total_deadline: Mapped[datetime | None]
    deadline: Mapped[datetime | None] = mapped_column(
        Computed("least(queue_deadline, total_deadline)", persisted=True)
    )
    fence: Mapped[int] = mapped_column(server_default=_ZERO)
    attempts_used: Mapped[int] = mapped_column(Integer, server_default=_ZERO)
    infra_losses: Mapped[int] = mapped_column(Integer, server_default=_ZERO)
    task_retries: Mapped[int] = mapped_column(Integer, server_default=_ZERO)
    # How often each of the job's retry rules has let it run again, by place; absent ones count as 0.
    rule_retries: Mapped[list[int] | None] = mapped_column(ARRAY(Integer))
    # The trial, dead by then, that this one runs again.
    replay_of: Mapped[UUID | None]
    runtime: Mapped[str | None]
    cpu_millicores: Mapped[int] = mapped_column(Integer)
    memory_bytes: Mapped[int]
    gpu: Mapped[int] = mapped_column(Integer, server_default=_ZERO)
    slots: Mapped[int] = mapped_column(SmallInteger, server_default=text("1"))
    queue: Mapped[str] = mapped_column(server_default=text("'default'"))
    node_labels: Mapped[dict[str, Any]] = mapped_column(server_default=_EMPTY)
    preemptible: Mapped[bool] = mapped_column(server_default=text("false"))
    max_cpu_seconds: Mapped[float] = mapped_column(DOUBLE_PRECISION, server_default=_ZERO)
    cap_labels: Mapped[dict[str, Any] | None]
    is_admitted: Mapped[bool] = mapped_column(server_default=text("false"))
    shape: Mapped[int | None] = mapped_column(
        Computed(
            "hashtextextended(queue || ' ' || coalesce(runtime, '') || ' ' || cpu_millicores::text"
            " || ' ' || memory_bytes::text || ' ' || gpu::text || ' ' || node_labels::text, 0)",
            persisted=True,
        )
    )
    cap_group: Mapped[int | None] = mapped_column(
        Computed("hashtextextended(cap_labels::text, 0)", persisted=True)
    )
    created_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    queued_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]


class Attempt(Base):
    """One physical try. The row in state `dispatched` is the outbox record of the bell.

    desired: the scheduler's wish, as the trial's is the user's. reserved_cpu_seconds: held back from the tenant's
    budget while the attempt lives, NULL without a budget; charged_at: when its true cost went to `budget_periods`.
    """

    __tablename__ = "attempts"
    __table_args__ = (
        PrimaryKeyConstraint("trial_id", "fence"),
        _one_of("state", tuple(AttemptState)),
        CheckConstraint("desired IN ('run', 'preempt')", name="desired"),
        # The single most important line of the schema: one live attempt per trial.
        Index("attempts_one_live_idx", "trial_id", unique=True, postgresql_where=_LIVE),
        Index(
            "attempts_live_tenant_idx",
            "tenant_id",
            postgresql_include=["cpu_millicores", "memory_bytes", "gpu", "queue"],
            postgresql_where=_LIVE,
        ),
        Index(
            "attempts_uncharged_idx",
            "tenant_id",
            postgresql_where=text("reserved_cpu_seconds IS NOT NULL AND charged_at IS NULL"),
        ),
        Index("attempts_live_node_idx", "node_id", postgresql_where=_LIVE),
        Index("attempts_live_session_idx", "session_id", postgresql_where=_LIVE),
        Index("attempts_unclaimed_idx", "start_deadline", postgresql_where=text("state = 'dispatched'")),
        # What a tenant used in a time.
        Index(
            "attempts_tenant_finished_idx",
            "tenant_id",
            "finished_at",
            postgresql_where=text("finished_at IS NOT NULL"),
        ),
        {
            "postgresql_with": {
                "fillfactor": 70,
                "autovacuum_vacuum_scale_factor": 0.02,
                "autovacuum_vacuum_cost_delay": 0,
            }
        },
    )

    trial_id: Mapped[UUID] = mapped_column(ForeignKey("trials.id"))
    fence: Mapped[int]
    id: Mapped[UUID] = mapped_column(unique=True)
    number: Mapped[int] = mapped_column(Integer)
    tenant_id: Mapped[int]
    node_id: Mapped[UUID] = mapped_column(ForeignKey("nodes.id"))
    session_id: Mapped[UUID | None]
    state: Mapped[str] = mapped_column(server_default=text("'dispatched'"))
    phase: Mapped[str | None]
    desired: Mapped[str] = mapped_column(server_default=text("'run'"))
    queue: Mapped[str] = mapped_column(server_default=text("'default'"))
    cpu_millicores: Mapped[int] = mapped_column(Integer)
    memory_bytes: Mapped[int]
    gpu: Mapped[int] = mapped_column(Integer, server_default=_ZERO)
    slots: Mapped[int] = mapped_column(SmallInteger, server_default=text("1"))
    reserved_cpu_seconds: Mapped[float | None] = mapped_column(DOUBLE_PRECISION)
    charged_at: Mapped[datetime | None]
    # While dispatched: to be claimed by. From the claim on: to be running by.
    start_deadline: Mapped[datetime]
    # Set by the start: its steps have to be over by.
    run_deadline: Mapped[datetime | None]
    # When even its worker has had its time: the scheduler then takes the attempt away. Set by claim and start.
    overdue_at: Mapped[datetime | None]
    last_rung_at: Mapped[datetime | None]
    # Of the sandbox it was given out of a warm pool; NULL: its own, `sm-<trial>-<fence>`.
    sandbox_name: Mapped[str | None]
    # Which step runs and what came of the ones before: what another worker needs to go on with it.
    progress: Mapped[dict[str, Any] | None]
    # How often in quick succession it was taken over by the next worker of its node, and when last.
    adoptions: Mapped[int] = mapped_column(SmallInteger, server_default=_ZERO)
    adopted_at: Mapped[datetime | None]
    outcome: Mapped[str | None]
    failure: Mapped[dict[str, Any] | None]
    steps: Mapped[list[dict[str, Any]] | None]
    grade: Mapped[dict[str, Any] | None]
    usage: Mapped[dict[str, Any] | None]
    # What its artifacts took that are gone by now: part of what was used.
    expired_artifact_bytes: Mapped[int] = mapped_column(server_default=_ZERO)
    created_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    claimed_at: Mapped[datetime | None]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]


class Sandbox(Base):
    """The isolated environment of an attempt; written before the runtime is called, so that none is forgotten."""

    __tablename__ = "sandboxes"
    __table_args__ = (
        ForeignKeyConstraint(["trial_id", "fence"], ["attempts.trial_id", "attempts.fence"]),
        _one_of("state", tuple(SandboxState)),
        Index("sandboxes_open_idx", "node_id", postgresql_where=text("state <> 'removed'")),
    )

    name: Mapped[str] = mapped_column(primary_key=True)
    trial_id: Mapped[UUID]
    fence: Mapped[int]
    tenant_id: Mapped[int]
    node_id: Mapped[UUID]
    runtime: Mapped[str]
    image: Mapped[str]
    state: Mapped[str] = mapped_column(server_default=text("'creating'"))
    end_reason: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    removed_at: Mapped[datetime | None]


class Node(Base):
    """A machine that runs sandboxes. id comes from a file on that machine and outlives every process.

    images: those its last sandboxes were made from, so they need not be fetched. cordoned_at: gets nothing new.
    drained_at: besides, gives back what runs.
    """

    __tablename__ = "nodes"

    id: Mapped[UUID] = mapped_column(primary_key=True)
    name: Mapped[str]
    runtimes: Mapped[list[str]] = mapped_column(ARRAY(Text))
    cpu_millicores: Mapped[int] = mapped_column(Integer)
    memory_bytes: Mapped[int]
    slots: Mapped[int] = mapped_column(Integer)
    gpu: Mapped[int] = mapped_column(Integer, server_default=_ZERO)
    labels: Mapped[dict[str, Any]] = mapped_column(server_default=_EMPTY)
    # Where the ports of its sandboxes are reached from the API, and what clients are told: host:port.
    ingress_url: Mapped[str | None]
    ingress_address: Mapped[str | None]
    images: Mapped[list[str]] = mapped_column(ARRAY(Text), server_default=text("'{}'"))
    boot_id: Mapped[str | None]
    cordoned_at: Mapped[datetime | None]
    drained_at: Mapped[datetime | None]
    limits_lowered_at: Mapped[datetime | None]  # written by a trigger
    created_at: Mapped[datetime] = mapped_column(server_default=_NOW)


class WorkerSession(Base):
    """One life of a worker process. Its lease, and nothing else, says that its attempts live."""

    __tablename__ = "worker_sessions"
    __table_args__ = (
        Index("worker_sessions_open_idx", "node_id", postgresql_where=text("ended_at IS NULL")),
        {"postgresql_with": {"fillfactor": 50}},
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    node_id: Mapped[UUID] = mapped_column(ForeignKey("nodes.id"))
    pid: Mapped[int] = mapped_column(Integer)
    version: Mapped[str]
    # Of the machine's life between two starts of its kernel: sandboxes do not outlive it.
    boot_id: Mapped[str | None]
    lease_until: Mapped[datetime]
    beat_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    # When a bell last came through the broker.
    canary_at: Mapped[datetime | None]
    draining: Mapped[bool] = mapped_column(server_default=text("false"))
    created_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    ended_at: Mapped[datetime | None]
    end_reason: Mapped[str | None]
    # Until then its attempts are left to the session that followed it on the same node. None: they are lost.
    adoptable_until: Mapped[datetime | None]


class StateTransition(Base):
    """The legal moves, read by the trigger on trials and attempts."""

    __tablename__ = "state_transitions"

    entity: Mapped[str] = mapped_column(primary_key=True)
    from_state: Mapped[str] = mapped_column(primary_key=True)
    to_state: Mapped[str] = mapped_column(primary_key=True)


class TrialEvent(Base):
    """Append-only history, written by trigger in the statement that changes the state.

    Partitioned by the month in which the trial was made (`models.retention`).
    """

    __tablename__ = "trial_events"
    __table_args__ = (
        PrimaryKeyConstraint("trial_id", "n"),
        {"postgresql_partition_by": "RANGE (trial_id)"},
    )

    trial_id: Mapped[UUID]
    n: Mapped[int] = mapped_column(Identity(always=True))
    at: Mapped[datetime] = mapped_column(server_default=_NOW)
    subject: Mapped[str]
    fence: Mapped[int]
    actor: Mapped[str]
    from_state: Mapped[str]
    to_state: Mapped[str]
    reason: Mapped[str | None]


class LogChunk(Base):
    """At most 64 KiB of output of one stream; seq is given on the worker and has no gaps.

    Partitioned by the month in which the trial was made (`models.retention`).
    """

    __tablename__ = "log_chunks"
    __table_args__ = (
        PrimaryKeyConstraint("trial_id", "fence", "seq"),
        {"postgresql_partition_by": "RANGE (trial_id)"},
    )

    trial_id: Mapped[UUID]
    fence: Mapped[int]
    seq: Mapped[int] = mapped_column(Integer)
    step: Mapped[str]
    stream: Mapped[str]
    at: Mapped[datetime]
    bytes: Mapped[bytes]


class LogHead(Base):
    """Where the log of an attempt ends; `closed` is the only end marker a reader trusts."""

    __tablename__ = "log_heads"
    __table_args__ = (PrimaryKeyConstraint("trial_id", "fence"),)

    trial_id: Mapped[UUID]
    fence: Mapped[int]
    next_seq: Mapped[int] = mapped_column(Integer, server_default=_ZERO)
    bytes: Mapped[int] = mapped_column(server_default=_ZERO)
    truncated_bytes: Mapped[int] = mapped_column(server_default=_ZERO)
    closed: Mapped[bool] = mapped_column(server_default=text("false"))


class Blob(Base):
    """A content-addressed file a tenant may use. The bytes lie in the blob store, once for all tenants.

    used_at: the last time it was sent; what nothing uses is kept for a while after that.
    """

    __tablename__ = "blobs"
    __table_args__ = (
        PrimaryKeyConstraint("tenant_id", "digest"),
        Index("blobs_digest_idx", "digest"),
        Index("blobs_used_at_idx", "used_at"),
    )

    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id"))
    digest: Mapped[str]
    size_bytes: Mapped[int]
    created_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    used_at: Mapped[datetime] = mapped_column(server_default=_NOW)


class Artifact(Base):
    """A file collected from the sandbox of an attempt."""

    __tablename__ = "artifacts"
    __table_args__ = (
        PrimaryKeyConstraint("trial_id", "fence", "path"),
        Index("artifacts_digest_idx", "digest"),
        Index("artifacts_created_at_idx", "created_at"),
    )

    trial_id: Mapped[UUID]
    fence: Mapped[int]
    path: Mapped[str]
    tenant_id: Mapped[int]
    digest: Mapped[str]
    size_bytes: Mapped[int]
    created_at: Mapped[datetime] = mapped_column(server_default=_NOW)


class Idempotency(Base):
    """Which resource an Idempotency-Key made."""

    __tablename__ = "idempotency"
    __table_args__ = (
        PrimaryKeyConstraint("tenant_id", "key"),
        Index("idempotency_expires_at_idx", "expires_at"),
    )

    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id"))
    key: Mapped[str]
    route: Mapped[str]
    request_hash: Mapped[bytes]
    resource_id: Mapped[UUID]
    created_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    expires_at: Mapped[datetime]
