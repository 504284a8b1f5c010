"""SQL of later grades: wishes of a tenant, and what workers make of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from models.states import Outcome
from repositories.base import SqlRepository
from repositories.batch_verbs import WHICH_TRIALS, Target
from repositories.tenant_base import TenantSqlRepository

__all__ = ["GradeEnd", "GradeRow", "PendingGrade", "RegradeRepository", "RegradeWorkRepository"]

# A verdict needs the steps of a last attempt that came to its end; what the infrastructure broke, or nobody let run,
# left nothing to judge.
_FINISHED = """
SELECT t.id, t.job_id,
       a.steps IS NOT NULL AND jsonb_array_length(a.steps) > 0 AND t.outcome IN ('passed', 'failed', 'error')
         AND coalesce(a.failure ->> 'class', 'task') IN ('task', 'spec') AS is_gradable
FROM trials t LEFT JOIN attempts a ON a.trial_id = t.id AND a.fence = t.fence AND a.state = 'finished'
WHERE {which} AND t.tenant_id = %(tenant_id)s AND t.state = 'finished' AND t.superseded_by IS NULL
ORDER BY t.id
"""

_REQUEST = """
WITH regrade AS (
  INSERT INTO regrades (id, tenant_id, batch_id, verdict)
  VALUES (%(id)s, %(tenant_id)s, %(batch_id)s, %(verdict)s) RETURNING id
)
INSERT INTO grades (regrade_id, trial_id) SELECT r.id, t.id FROM regrade r, unnest(%(trials)s::uuid[]) AS t(id)
"""

_HISTORY = """
SELECT g.number, g.old_outcome, g.outcome, g.failure, g.grade, r.verdict, r.created_at AS requested_at, g.graded_at
FROM grades g JOIN regrades r ON r.id = g.regrade_id AND r.tenant_id = %(tenant_id)s
WHERE g.trial_id = %(trial_id)s ORDER BY g.graded_at NULLS LAST, r.created_at, r.id
"""

# A claim that nobody has settled in its time is another worker's to take; the number of tries is its fence.
_CLAIM = """
WITH next AS (
  SELECT regrade_id, trial_id FROM grades
  WHERE graded_at IS NULL AND (claimed_until IS NULL OR claimed_until < clock_timestamp())
  ORDER BY regrade_id, trial_id LIMIT 1 FOR UPDATE SKIP LOCKED
), claimed AS (
  UPDATE grades g SET tries = g.tries + 1, claimed_until = clock_timestamp() + make_interval(secs => %(hold)s)
  FROM next n WHERE g.regrade_id = n.regrade_id AND g.trial_id = n.trial_id
  RETURNING g.regrade_id, g.trial_id, g.tries
)
SELECT c.regrade_id, c.trial_id, t.batch_id, t.job_id, t.tenant_id, t.fence, r.verdict, j.spec, a.steps, c.tries
FROM claimed c
  JOIN regrades r ON r.id = c.regrade_id
  JOIN trials t ON t.id = c.trial_id
  JOIN jobs j ON j.id = t.job_id
  JOIN attempts a ON a.trial_id = t.id AND a.fence = t.fence
"""

_LOCK = """
SELECT 1 FROM grades
WHERE regrade_id = %(regrade_id)s AND trial_id = %(trial_id)s AND tries = %(tries)s AND graded_at IS NULL FOR UPDATE
"""

_ARTIFACT = """
SELECT digest FROM artifacts
WHERE trial_id = %(trial_id)s AND fence = %(fence)s AND tenant_id = %(tenant_id)s AND path = %(path)s
"""

_LOCK_BATCH = "SELECT id FROM batches WHERE id = %(batch_id)s FOR NO KEY UPDATE"

_APPLY = """
WITH old AS (
  SELECT id, outcome FROM trials WHERE id = %(trial_id)s AND state = 'finished' AND superseded_by IS NULL FOR UPDATE
)
UPDATE trials t SET outcome = %(outcome)s, failure = %(failure)s, rewards = %(rewards)s, state_reason = %(reason)s,
                    grade_no = t.grade_no + 1
FROM old WHERE t.id = old.id
RETURNING t.grade_no, old.outcome AS old_outcome
"""

_NOTE = """
UPDATE grades SET graded_at = clock_timestamp(), number = %(number)s, old_outcome = %(old_outcome)s,
                  outcome = %(outcome)s, failure = %(failure)s, grade = %(grade)s
WHERE regrade_id = %(regrade_id)s AND trial_id = %(trial_id)s
"""

_RECOUNT_INBOX = "UPDATE batch_inbox SET outcome = %(outcome)s WHERE trial_id = %(trial_id)s"

_MOVE = ", ".join(
    f"{name} = {name} + (%(outcome)s = '{name}')::int - (%(old_outcome)s = '{name}')::int" for name in Outcome
)
_RECOUNT_BATCH = f"UPDATE batch_progress SET {_MOVE} WHERE batch_id = %(batch_id)s"
_RECOUNT_JOB = f"UPDATE job_progress SET {_MOVE} WHERE job_id = %(job_id)s"


@dataclass(frozen=True, slots=True)
class GradeRow:
    """A later grade of a trial. number: the grade_no it gave; None while it is a wish, or if it came to nothing."""

    number: int | None
    old_outcome: str | None
    outcome: str | None
    failure: dict[str, Any] | None
    grade: dict[str, Any] | None
    verdict: dict[str, Any] | None
    requested_at: datetime
    graded_at: datetime | None


@dataclass(frozen=True, slots=True)
class PendingGrade:
    """What a worker needs to grade a trial again. verdict: None for that of the spec. fence: of its last attempt.

    tries: with this one.
    """

    regrade_id: UUID
    trial_id: UUID
    batch_id: UUID
    job_id: UUID
    tenant_id: int
    fence: int
    verdict: dict[str, Any] | None
    spec: dict[str, Any]
    steps: list[dict[str, Any]]
    tries: int


@dataclass(frozen=True, slots=True)
class GradeEnd:
    """A grade to write. JSON values."""

    outcome: str
    reason: str
    failure: dict[str, Any] | None
    rewards: dict[str, float] | None
    grade: dict[str, Any] | None


class RegradeRepository(TenantSqlRepository):
    """Wishes and history of one tenant."""

    def finished(self, target: Target) -> list[tuple[UUID, UUID, bool]]:
        """Finished trials that count, as (trial, job, whether there is something to grade)."""
        rows = self._mine(
            _FINISHED.format(which=WHICH_TRIALS[target.scope]), {"id": target.id, "batch_id": target.batch_id}
        )
        return [(row["id"], row["job_id"], row["is_gradable"] or False) for row in rows]

    def request(
        self, regrade_id: UUID, batch_id: UUID, trial_ids: Sequence[UUID], verdict: dict[str, Any] | None
    ) -> None:
        """Write the wish."""
        parameters = {"id": regrade_id, "batch_id": batch_id, "trials": list(trial_ids)}
        self._mine_count(_REQUEST, {**parameters, "verdict": None if verdict is None else Jsonb(verdict)})

    def history(self, trial_id: UUID) -> list[GradeRow]:
        """Later grades of a trial, oldest first, then the wishes."""
        return [GradeRow(**row) for row in self._mine(_HISTORY, {"trial_id": trial_id})]


class RegradeWorkRepository(SqlRepository):
    """What workers do, for all tenants."""

    def claim(self, *, hold_seconds: float) -> PendingGrade | None:
        """Take the oldest wish that nobody else is at; after so long it is there for others again."""
        row = self._row(_CLAIM, {"hold": hold_seconds})
        return None if row is None else PendingGrade(**row)

    def lock(self, pending: PendingGrade) -> bool:
        """Keep others from settling the wish. False: somebody else has claimed or settled it meanwhile."""
        parameters = {"regrade_id": pending.regrade_id, "trial_id": pending.trial_id, "tries": pending.tries}
        return self._row(_LOCK, parameters) is not None

    def artifact(self, pending: PendingGrade, path: str) -> str | None:
        """The digest of a file kept from the attempt."""
        parameters = {"trial_id": pending.trial_id, "fence": pending.fence, "tenant_id": pending.tenant_id}
        row = self._row(_ARTIFACT, {**parameters, "path": path})
        return None if row is None else str(row["digest"])

    def lock_batch(self, batch_id: UUID) -> None:
        """Wait for whoever works on the batch."""
        self._rows(_LOCK_BATCH, {"batch_id": batch_id})

    def apply(self, pending: PendingGrade, end: GradeEnd) -> tuple[int, str] | None:
        """Give the trial its next grade; gives its number and the outcome before. None: it does not count any more.

        Needs the lock of the batch.
        """
        row = self._row(
            _APPLY,
            {
                "trial_id": pending.trial_id,
                "outcome": end.outcome,
                "reason": end.reason,
                "failure": None if end.failure is None else Jsonb(end.failure),
                "rewards": None if end.rewards is None else Jsonb(end.rewards),
            },
        )
        return None if row is None else (row["grade_no"], row["old_outcome"])

    def move_count(self, pending: PendingGrade, *, old_outcome: str, outcome: str) -> None:
        """Count the trial under its new outcome, wherever it is counted or about to be."""
        parameters = {"trial_id": pending.trial_id, "outcome": outcome, "old_outcome": old_outcome}
        if self._count(_RECOUNT_INBOX, parameters):
            return
        self._count(_RECOUNT_BATCH, {**parameters, "batch_id": pending.batch_id})
        self._count(_RECOUNT_JOB, {**parameters, "job_id": pending.job_id})

    def note(self, pending: PendingGrade, end: GradeEnd, *, number: int, old_outcome: str) -> None:
        """Finish the wish with the grade that was given."""
        self._note(
            pending,
            number=number,
            old_outcome=old_outcome,
            outcome=end.outcome,
            failure=end.failure,
            grade=end.grade,
        )

    def note_failure(self, pending: PendingGrade, failure: dict[str, Any]) -> None:
        """Finish the wish without a grade."""
        self._note(pending, number=None, old_outcome=None, outcome=None, failure=failure, grade=None)

    def _note(self, pending: PendingGrade, **values: Any) -> None:
        values = {k: Jsonb(v) if isinstance(v, dict) else v for k, v in values.items()}
        self._count(_NOTE, {**values, "regrade_id": pending.regrade_id, "trial_id": pending.trial_id})
