"""SQL that looks at trials and attempts. Their moves are written elsewhere."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from repositories.tenant_base import TenantSqlRepository

__all__ = ["AttemptRow", "TrialFilter", "TrialReadRepository", "TrialRow"]

_COLUMNS = """
t.id, t.batch_id, t.job_id, j.key AS job_key, j.labels, t.index, t.seed, t.state, t.state_reason, t.outcome,
t.failure, t.rewards, t.desired, t.cancel_reason, t.is_paused, t.retry_of, t.superseded_by, t.grade_no,
t.priority, t.attempts_used, t.infra_losses, t.task_retries, t.replay_of, t.runtime, t.cpu_millicores, t.memory_bytes,
t.gpu, t.queue, t.node_labels, t.max_cpu_seconds, t.cap_labels IS NOT NULL AND NOT t.is_admitted AS is_before_gate,
t.created_at, t.queued_at, t.started_at, t.finished_at
"""

_FIND = f"""
SELECT {_COLUMNS} FROM trials t JOIN jobs j ON j.id = t.job_id
WHERE t.id = %(id)s AND t.tenant_id = %(tenant_id)s
"""

_MANY = f"""
SELECT {_COLUMNS} FROM trials t JOIN jobs j ON j.id = t.job_id
WHERE t.id = ANY(%(ids)s) AND t.tenant_id = %(tenant_id)s
"""

# The ids of the first trials of a batch ascend by job, then index; those made later follow in the order they are made.
_LIST = f"""
SELECT {_COLUMNS} FROM trials t JOIN jobs j ON j.id = t.job_id
WHERE t.batch_id = %(batch_id)s AND t.tenant_id = %(tenant_id)s AND (%(after)s::uuid IS NULL OR t.id > %(after)s)
  AND (%(state)s::text IS NULL OR t.state = %(state)s) AND (%(outcome)s::text IS NULL OR t.outcome = %(outcome)s)
  AND (%(job_key)s::text IS NULL OR j.key = %(job_key)s)
  AND (t.superseded_by IS NULL OR %(with_superseded)s)
ORDER BY t.id LIMIT %(limit)s
"""

_ATTEMPT_COLUMNS = """
a.id, a.trial_id, a.fence, a.number, a.state, a.phase, a.node_id, n.name AS node_name, a.outcome, a.failure, a.steps,
a.grade, a.usage, a.created_at, a.claimed_at, a.started_at, a.finished_at, coalesce(h.bytes, 0) AS log_bytes,
coalesce(h.truncated_bytes, 0) AS log_truncated_bytes, coalesce(h.closed, false) AS log_closed
"""

_ATTEMPT_TABLES = """
attempts a LEFT JOIN nodes n ON n.id = a.node_id
  LEFT JOIN log_heads h ON h.trial_id = a.trial_id AND h.fence = a.fence
"""

_ATTEMPTS = f"""
SELECT {_ATTEMPT_COLUMNS} FROM {_ATTEMPT_TABLES}
WHERE a.trial_id = ANY(%(ids)s) AND a.tenant_id = %(tenant_id)s ORDER BY a.trial_id, a.fence
"""

_FIND_ATTEMPT = f"""
SELECT {_ATTEMPT_COLUMNS} FROM {_ATTEMPT_TABLES} WHERE a.id = %(id)s AND a.tenant_id = %(tenant_id)s
"""


@dataclass(frozen=True, slots=True)
class TrialFilter:
    """What to list; None leaves a field open. with_superseded: also trials in whose place a retry counts."""

    state: str | None = None
    outcome: str | None = None
    job_key: str | None = None
    with_superseded: bool = False


@dataclass(frozen=True, slots=True)
class TrialRow:
    """A trial with its job's key and labels."""

    id: UUID
    batch_id: UUID
    job_id: UUID
    job_key: str
    labels: dict[str, str]
    index: int
    seed: int | None
    state: str
    state_reason: str | None
    outcome: str | None
    failure: dict[str, Any] | None
    rewards: dict[str, Any] | None
    desired: str
    cancel_reason: str | None
    is_paused: bool
    retry_of: UUID | None
    superseded_by: UUID | None
    grade_no: int
    priority: int
    attempts_used: int
    infra_losses: int
    task_retries: int
    replay_of: UUID | None
    runtime: str | None
    cpu_millicores: int
    memory_bytes: int
    gpu: int
    queue: str
    node_labels: dict[str, str]
    max_cpu_seconds: float
    is_before_gate: bool
    created_at: datetime
    queued_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """An attempt with its node's name and the head of its log."""

    id: UUID
    trial_id: UUID
    fence: int
    number: int
    state: str
    phase: str | None
    node_id: UUID
    node_name: str | None
    outcome: str | None
    failure: dict[str, Any] | None
    steps: list[dict[str, Any]] | None
    grade: dict[str, Any] | None
    usage: dict[str, Any] | None
    created_at: datetime
    claimed_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    log_bytes: int
    log_truncated_bytes: int
    log_closed: bool


class TrialReadRepository(TenantSqlRepository):
    """Trials and attempts of one tenant."""

    def find(self, trial_id: UUID) -> TrialRow | None:
        """Look one up."""
        row = self._mine_or_none(_FIND, {"id": trial_id})
        return None if row is None else TrialRow(**row)

    def many(self, trial_ids: Sequence[UUID]) -> list[TrialRow]:
        """Look several up, in no order; those that are none are left out."""
        return [TrialRow(**row) for row in self._mine(_MANY, {"ids": list(trial_ids)})]

    def page_of_batch(
        self, batch_id: UUID, wanted: TrialFilter, *, after: UUID | None, limit: int
    ) -> list[TrialRow]:
        """In the order they were made, at first by job and index; after `after`."""
        parameters = {
            "batch_id": batch_id,
            "after": after,
            "limit": limit,
            "state": wanted.state,
            "outcome": wanted.outcome,
            "job_key": wanted.job_key,
            "with_superseded": wanted.with_superseded,
        }
        return [TrialRow(**row) for row in self._mine(_LIST, parameters)]

    def attempts(self, trial_ids: Sequence[UUID]) -> dict[UUID, list[AttemptRow]]:
        """All attempts of these trials, oldest first."""
        found: dict[UUID, list[AttemptRow]] = {}
        for row in self._mine(_ATTEMPTS, {"ids": list(trial_ids)}):
            found.setdefault(row["trial_id"], []).append(AttemptRow(**row))
        return found

    def find_attempt(self, attempt_id: UUID) -> AttemptRow | None:
        """Look one up."""
        row = self._mine_or_none(_FIND_ATTEMPT, {"id": attempt_id})
        return None if row is None else AttemptRow(**row)
