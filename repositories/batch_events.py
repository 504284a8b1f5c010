"""SQL that reads the events of a batch."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from repositories.tenant_base import TenantSqlRepository

__all__ = ["BatchEventRepository", "BatchEventRow"]

_PAGE = """
SELECT e.n, e.kind, e.at, e.trial_id, t.job_id, j.key AS job_key, t.index, e.outcome,
       t.failure ->> 'code' AS failure_code, t.rewards, e.detail
FROM batch_events e JOIN batches b ON b.id = e.batch_id AND b.tenant_id = %(tenant_id)s
  LEFT JOIN trials t ON t.id = e.trial_id LEFT JOIN jobs j ON j.id = t.job_id
WHERE e.batch_id = %(batch_id)s AND e.n > %(after)s ORDER BY e.n LIMIT %(limit)s
"""

# In one statement, since the last event and the state are written in one transaction.
_STATE = """
SELECT b.state = 'finished' AS is_finished, coalesce(p.last_event, 0) AS last_event
FROM batches b LEFT JOIN batch_progress p ON p.batch_id = b.id
WHERE b.id = %(batch_id)s AND b.tenant_id = %(tenant_id)s AND b.archiving_at IS NULL
"""


@dataclass(frozen=True, slots=True)
class BatchEventRow:
    """An event. What is said of the trial beside its outcome is what is true now: a later grade may have changed it."""

    n: int
    kind: str
    at: datetime
    trial_id: UUID | None
    job_id: UUID | None
    job_key: str | None
    index: int | None
    outcome: str | None
    failure_code: str | None
    rewards: dict[str, Any] | None
    detail: dict[str, Any] | None


class BatchEventRepository(TenantSqlRepository):
    """Events of one tenant's batches."""

    def page(self, batch_id: UUID, *, after: int, limit: int) -> list[BatchEventRow]:
        """In order, with n > after."""
        parameters = {"batch_id": batch_id, "after": after, "limit": limit}
        return [BatchEventRow(**row) for row in self._mine(_PAGE, parameters)]

    def state(self, batch_id: UUID) -> tuple[bool, int] | None:
        """Whether the batch is finished, and the n of its newest event. None: no such batch."""
        row = self._mine_or_none(_STATE, {"batch_id": batch_id})
        return None if row is None else (row["is_finished"], row["last_event"])
