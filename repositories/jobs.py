"""SQL of jobs: look and list."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from repositories.batches import BY_OUTCOME, TAIL_STATE
from repositories.tenant_base import TenantSqlRepository

__all__ = ["JobRepository", "JobRow"]

_COLUMNS = """
j.id, j.batch_id, j.key, j.kind, j.digest, j.labels, j.trial_count, j.paused_at IS NOT NULL AS is_paused, j.created_at
"""

_FIND = f"SELECT {_COLUMNS}, j.spec FROM jobs j WHERE j.id = %(id)s AND j.tenant_id = %(tenant_id)s"

_LIST = f"""
SELECT {_COLUMNS} FROM jobs j
WHERE j.tenant_id = %(tenant_id)s AND j.kind <> 'session' AND (%(before)s::uuid IS NULL OR j.id < %(before)s)
ORDER BY j.id DESC LIMIT %(limit)s
"""

# The ids of a batch's jobs ascend in the order of the request.
_LIST_OF_BATCH = f"""
SELECT {_COLUMNS} FROM jobs j
WHERE j.batch_id = %(batch_id)s AND j.tenant_id = %(tenant_id)s AND (%(after)s::uuid IS NULL OR j.id > %(after)s)
ORDER BY j.id LIMIT %(limit)s
"""

# As those of batches. Open trials are found by their batches: the index holds only open ones.
_COUNTS = f"""
WITH wanted AS MATERIALIZED (
  SELECT id, batch_id FROM jobs WHERE id = ANY(%(ids)s) AND tenant_id = %(tenant_id)s
)
SELECT t.job_id, t.state, NULL AS outcome, count(*)::int AS n FROM trials t
WHERE t.batch_id IN (SELECT batch_id FROM wanted) AND t.state <> 'finished' AND t.job_id IN (SELECT id FROM wanted)
GROUP BY t.job_id, t.state
UNION ALL
SELECT p.job_id, 'finished', o.outcome, o.n FROM job_progress p JOIN wanted w ON w.id = p.job_id
  CROSS JOIN LATERAL (VALUES {BY_OUTCOME}) AS o(outcome, n)
WHERE o.n > 0
UNION ALL
SELECT i.job_id, 'finished', i.outcome, count(*)::int FROM batch_inbox i
WHERE i.batch_id IN (SELECT batch_id FROM wanted) AND i.job_id IN (SELECT id FROM wanted) AND i.is_counted
  AND i.trial_id IS NOT NULL
GROUP BY i.job_id, i.outcome
UNION ALL
SELECT j.id, {TAIL_STATE}, NULL, j.tail_count
FROM jobs j JOIN wanted w ON w.id = j.id JOIN batches b ON b.id = j.batch_id
WHERE j.tail_count > 0
"""

_SPECS = """
SELECT j.id, j.spec FROM jobs j WHERE j.id = ANY(%(ids)s) AND j.tenant_id = %(tenant_id)s ORDER BY j.ordinal
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
    is_paused: bool
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

    def specs(self, job_ids: Sequence[UUID]) -> dict[UUID, dict[str, Any]]:
        """The stored specs of these jobs, in the order of their batch."""
        return {row["id"]: row["spec"] for row in self._mine(_SPECS, {"ids": list(job_ids)})}
