"""SQL of jobs: look and list."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from repositories.tenant_base import TenantSqlRepository

__all__ = ["JobRepository", "JobRow"]

_COLUMNS = "j.id, j.batch_id, j.key, j.kind, j.digest, j.labels, j.trial_count, j.created_at"

_FIND = f"SELECT {_COLUMNS}, j.spec FROM jobs j WHERE j.id = %(id)s AND j.tenant_id = %(tenant_id)s"

_LIST = f"""
SELECT {_COLUMNS} FROM jobs j
WHERE j.tenant_id = %(tenant_id)s AND (%(before)s::uuid IS NULL OR j.id < %(before)s)
ORDER BY j.id DESC LIMIT %(limit)s
"""

# The ids of a batch's jobs ascend in the order of the request.
_LIST_OF_BATCH = f"""
SELECT {_COLUMNS} FROM jobs j
WHERE j.batch_id = %(batch_id)s AND j.tenant_id = %(tenant_id)s AND (%(after)s::uuid IS NULL OR j.id > %(after)s)
ORDER BY j.id LIMIT %(limit)s
"""

_COUNTS = """
SELECT job_id, state, outcome, count(*) AS n FROM trials
WHERE job_id = ANY(%(ids)s) AND tenant_id = %(tenant_id)s GROUP BY job_id, state, outcome
"""


@dataclass(frozen=True, slots=True)
class JobRow:
    """One row of `jobs`; spec is read only when one job is looked up."""

    id: UUID
    batch_id: UUID
    key: str
    kind: str
    digest: str
    labels: dict[str, str]
    trial_count: int
    created_at: datetime
    spec: dict[str, Any] | None = None


class JobRepository(TenantSqlRepository):
    """Jobs of one tenant."""

    def find(self, job_id: UUID) -> JobRow | None:
        """Look one up, with its spec."""
        row = self._mine_or_none(_FIND, {"id": job_id})
        return None if row is None else JobRow(**row)

    def page(self, *, before: UUID | None, limit: int) -> list[JobRow]:
        """Newest first, older than `before`."""
        return [JobRow(**row) for row in self._mine(_LIST, {"before": before, "limit": limit})]

    def page_of_batch(self, batch_id: UUID, *, after: UUID | None, limit: int) -> list[JobRow]:
        """In the order of the request, after `after`."""
        parameters = {"batch_id": batch_id, "after": after, "limit": limit}
        return [JobRow(**row) for row in self._mine(_LIST_OF_BATCH, parameters)]

    def counts(self, job_ids: Sequence[UUID]) -> dict[UUID, list[tuple[str, str | None, int]]]:
        """Count trials by (state, outcome) of each job."""
        found: dict[UUID, list[tuple[str, str | None, int]]] = {}
        for row in self._mine(_COUNTS, {"ids": list(job_ids)}):
            found.setdefault(row["job_id"], []).append((row["state"], row["outcome"], row["n"]))
        return found
