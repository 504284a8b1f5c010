"""Archived batches and trials of a tenant."""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Connection

from core.errors import ArchivedError, NotFoundError
from repositories.history import ArchivedBatch, ArchivedTrial, HistoryRepository

__all__ = ["HistoryService", "missing_batch", "missing_trial"]


class HistoryService:
    """History of one tenant, inside the caller's transaction."""

    def __init__(self, connection: Connection, tenant_id: int) -> None:
        """Bind to one tenant."""
        self._repository = HistoryRepository(connection, tenant_id)

    def get_batch(self, batch_id: UUID) -> ArchivedBatch:
        """Look one up. Raises NotFoundError for one that is not archived, or not whole yet."""
        row = self._repository.find_batch(batch_id)
        if row is None:
            raise NotFoundError("archived batch", batch_id)
        return row

    def page_trials(self, batch_id: UUID, *, after: UUID | None, limit: int) -> Sequence[ArchivedTrial]:
        """List its trials by job, then index. Raises NotFoundError."""
        self.get_batch(batch_id)
        return self._repository.page_trials(batch_id, after=after, limit=limit)


def missing_batch(connection: Connection, tenant_id: int, batch_id: UUID) -> NotFoundError | ArchivedError:
    """Say why a tenant's batch is not there."""
    repository = HistoryRepository(connection, tenant_id)
    if repository.is_archiving(batch_id) or repository.find_batch(batch_id) is not None:
        return ArchivedError("batch", batch_id, batch_id)
    return NotFoundError("batch", batch_id)


def missing_trial(connection: Connection, tenant_id: int, trial_id: UUID) -> NotFoundError | ArchivedError:
    """Say why a tenant's trial is not there."""
    row = HistoryRepository(connection, tenant_id).find_trial(trial_id)
    return NotFoundError("trial", trial_id) if row is None else ArchivedError("trial", trial_id, row.batch_id)
