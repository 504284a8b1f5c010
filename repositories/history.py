"""SQL that reads archived batches and trials."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from repositories.tenant_base import TenantSqlRepository

__all__ = ["ArchivedBatch", "ArchivedTrial", "HistoryRepository"]

_BATCH = """
SELECT h.id, h.batch, h.outcomes, h.archived_at FROM batch_history h
WHERE h.id = %(id)s AND h.tenant_id = %(tenant_id)s
"""

_ARCHIVING = """
SELECT 1 FROM batches b WHERE b.id = %(id)s AND b.tenant_id = %(tenant_id)s AND b.archiving_at IS NOT NULL
"""

_TRIAL_COLUMNS = "h.id, h.batch_id, h.trial, h.attempts, h.archived_at"

_TRIAL = f"""
SELECT {_TRIAL_COLUMNS} FROM trial_history h WHERE h.id = %(id)s AND h.tenant_id = %(tenant_id)s
"""

_TRIALS = f"""
SELECT {_TRIAL_COLUMNS} FROM trial_history h
WHERE h.batch_id = %(batch_id)s AND h.tenant_id = %(tenant_id)s AND (%(after)s::uuid IS NULL OR h.id > %(after)s)
ORDER BY h.id LIMIT %(limit)s
"""


@dataclass(frozen=True, slots=True)
class ArchivedBatch:
    """batch: its row as it was. outcomes: how many trials ended how."""

    id: UUID
    batch: dict[str, Any]
    outcomes: dict[str, int]
    archived_at: datetime


@dataclass(frozen=True, slots=True)
class ArchivedTrial:
    """trial: its row as it was, with `job_key` and `labels`. attempts: their rows, oldest first."""

    id: UUID
    batch_id: UUID
    trial: dict[str, Any]
    attempts: list[dict[str, Any]]
    archived_at: datetime


class HistoryRepository(TenantSqlRepository):
    """History of one tenant."""

    def find_batch(self, batch_id: UUID) -> ArchivedBatch | None:
        """Look one up."""
        row = self._mine_or_none(_BATCH, {"id": batch_id})
        return None if row is None else ArchivedBatch(**row)

    def is_archiving(self, batch_id: UUID) -> bool:
        """Say whether it is on its way to the history."""
        return self._mine_or_none(_ARCHIVING, {"id": batch_id}) is not None

    def find_trial(self, trial_id: UUID) -> ArchivedTrial | None:
        """Look one up."""
        row = self._mine_or_none(_TRIAL, {"id": trial_id})
        return None if row is None else ArchivedTrial(**row)

    def page_trials(self, batch_id: UUID, *, after: UUID | None, limit: int) -> list[ArchivedTrial]:
        """By job, then index; after `after`."""
        parameters = {"batch_id": batch_id, "after": after, "limit": limit}
        return [ArchivedTrial(**row) for row in self._mine(_TRIALS, parameters)]
