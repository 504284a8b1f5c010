"""Which columns a trial has in common with the first one of its job: what is made later copies them from there."""

__all__ = ["COPIED", "OWN"]

COPIED = (
    "tenant_id",
    "batch_id",
    "job_id",
    "priority",
    "runtime",
    "cpu_millicores",
    "memory_bytes",
    "gpu",
    "queue",
    "node_labels",
    "preemptible",
    "max_cpu_seconds",
    "cap_labels",
)
"""Set by the submission, the same for all trials of a job."""

OWN = (
    "id",
    "index",
    "seed",
    "state",
    "state_reason",
    "outcome",
    "failure",
    "rewards",
    "desired",
    "cancel_mode",
    "cancel_reason",
    "cancel_requested_at",
    "is_admitted",
    "is_paused",
    "paused_at",
    "retry_of",
    "superseded_by",
    "grade_no",
    "seq",
    "run_at",
    "queue_deadline",
    "total_deadline",
    "deadline",
    "fence",
    "attempts_used",
    "infra_losses",
    "task_retries",
    "rule_retries",
    "replay_of",
    "shape",
    "cap_group",
    "created_at",
    "queued_at",
    "started_at",
    "finished_at",
)
"""Of one trial alone, or computed. A test compares both lists with the model: a new column belongs to one of them."""
