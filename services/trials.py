"""Trials and attempts: look, list, artifacts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from sqlalchemy import Connection

from core.blobstore import StoredBlob
from core.errors import NotFoundError
from repositories.artifacts import ArtifactReadRepository, ArtifactRow
from repositories.batches import BatchRepository
from repositories.nodes import NodeReadRepository
from repositories.quotas import QuotaRepository
from repositories.regrades import GradeRow, RegradeRepository
from repositories.trials_read import AttemptRow, TrialFilter, TrialReadRepository, TrialRow
from services.history import missing_batch, missing_trial
from services.waiting import reason_to_wait

__all__ = ["TrialDetails", "TrialService"]

_REPORT_PAGE = 5_000


@dataclass(frozen=True, slots=True)
class TrialDetails:
    """A trial with all its attempts and later grades, oldest first. Reports leave the grades out."""

    row: TrialRow
    attempts: Sequence[AttemptRow]
    grades: Sequence[GradeRow] = ()


class TrialService:
    """Trials of one tenant, inside the caller's transaction."""

    def __init__(self, connection: Connection, tenant_id: int) -> None:
        """Bind to one tenant. connection: the caller begins and commits."""
        self._connection = connection
        self._tenant_id = tenant_id
        self._trials = TrialReadRepository(connection, tenant_id)
        self._batches = BatchRepository(connection, tenant_id)
        self._regrades = RegradeRepository(connection, tenant_id)
        self._artifacts = ArtifactReadRepository(connection, tenant_id)
        self._nodes = NodeReadRepository(connection)
        self._quotas = QuotaRepository(connection)
        self._tenant_id = tenant_id

    def get(self, trial_id: UUID) -> TrialDetails:
        """Look one up; a queued one says why it waits. Raises NotFoundError."""
        row = self._explain([self._require(trial_id)])[0]
        attempts = self._trials.attempts([trial_id]).get(trial_id, [])
        return TrialDetails(row, attempts, self._regrades.history(trial_id))

    def get_attempt(self, attempt_id: UUID) -> AttemptRow:
        """Look one up. Raises NotFoundError."""
        row = self._trials.find_attempt(attempt_id)
        if row is None:
            raise NotFoundError("attempt", attempt_id)
        return row

    def page_of_batch(
        self, batch_id: UUID, wanted: TrialFilter, *, after: UUID | None, limit: int
    ) -> list[TrialRow]:
        """List trials by job, then index; queued ones say why they wait. Raises NotFoundError for the batch."""
        if self._batches.find(batch_id) is None:
            raise missing_batch(self._connection, self._tenant_id, batch_id)
        return self._explain(self._trials.page_of_batch(batch_id, wanted, after=after, limit=limit))

    def all_of_batch(self, batch_id: UUID) -> list[TrialDetails]:
        """Read all trials with their attempts, for a report."""
        found: list[TrialDetails] = []
        after: UUID | None = None
        while True:
            rows = self._trials.page_of_batch(batch_id, TrialFilter(), after=after, limit=_REPORT_PAGE)
            attempts = self._trials.attempts([row.id for row in rows])
            found += [TrialDetails(row, attempts.get(row.id, [])) for row in rows]
            if len(rows) < _REPORT_PAGE:
                return found
            after = rows[-1].id

    def page_artifacts(self, trial_id: UUID, *, after: str | None, limit: int) -> list[ArtifactRow]:
        """List the files kept from the trial's last attempt, by path. Raises NotFoundError for the trial."""
        self._require(trial_id)
        return self._artifacts.page(trial_id, after=after, limit=limit)

    def get_artifact(self, trial_id: UUID, path: str) -> StoredBlob:
        """Look one up by its path in the sandbox. Raises NotFoundError."""
        self._require(trial_id)
        row = self._artifacts.find(trial_id, path)
        if row is None:
            raise NotFoundError("artifact", path)
        return StoredBlob(row.digest, row.size_bytes)

    def _explain(self, rows: list[TrialRow]) -> list[TrialRow]:
        """Say of queued trials why they wait, where it is not merely for their turn."""
        if not any(row.state == "queued" for row in rows):
            return rows
        nodes = self._nodes.capacities()
        standing, stopped = self._quotas.standing(self._tenant_id), self._quotas.stopped_queues()
        return [
            replace(row, state_reason=reason_to_wait(row, nodes, standing, stopped) or row.state_reason)
            for row in rows
        ]

    def _require(self, trial_id: UUID) -> TrialRow:
        row = self._trials.find(trial_id)
        if row is None:
            raise missing_trial(self._connection, self._tenant_id, trial_id)
        return row
