"""SQL of dead letters. They are written by a trigger, with the end of their trial."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from repositories.tenant_base import TenantSqlRepository

__all__ = ["DeadLetterRepository", "DeadLetterRow"]

_COLUMNS = """
d.n, d.trial_id, d.batch_id, d.job_id, j.key AS job_key, d.code, d.failure, d.attempts,
cardinality(d.lost_on) AS nodes_lost, d.created_at, d.replayed_as, d.replayed_at, d.discarded_at
"""

_FIND = f"""
SELECT {_COLUMNS} FROM dead_letters d LEFT JOIN jobs j ON j.id = d.job_id
WHERE d.trial_id = %(trial_id)s AND d.tenant_id = %(tenant_id)s
"""

# Two who replay at the same time: the second waits here, and then sees what the first has made.
_LOCK = _FIND + "FOR UPDATE OF d"

_LIST = f"""
SELECT {_COLUMNS} FROM dead_letters d LEFT JOIN jobs j ON j.id = d.job_id
WHERE d.tenant_id = %(tenant_id)s AND (%(before)s::bigint IS NULL OR d.n < %(before)s)
  AND CASE %(state)s::text WHEN 'open' THEN d.replayed_at IS NULL AND d.discarded_at IS NULL
                           WHEN 'replayed' THEN d.replayed_at IS NOT NULL
                           WHEN 'discarded' THEN d.discarded_at IS NOT NULL AND d.replayed_at IS NULL
                           ELSE true END
ORDER BY d.n DESC LIMIT %(limit)s
"""

_REPLAYED = """
UPDATE dead_letters SET replayed_as = %(replayed_as)s, replayed_at = clock_timestamp(), discarded_at = NULL
WHERE trial_id = %(trial_id)s AND tenant_id = %(tenant_id)s
"""

_DISCARD = """
UPDATE dead_letters SET discarded_at = coalesce(discarded_at, clock_timestamp())
WHERE trial_id = %(trial_id)s AND tenant_id = %(tenant_id)s
"""

# The same sample again: code under test sees its index and seed.
_LINK = """
UPDATE trials t SET replay_of = d.id, index = d.index, seed = d.seed
FROM trials d
WHERE d.id = %(trial_id)s AND d.tenant_id = %(tenant_id)s AND t.batch_id = %(batch_id)s AND t.tenant_id = d.tenant_id
RETURNING t.id
"""

_SPEC = """
SELECT j.spec FROM trials t JOIN jobs j ON j.id = t.job_id
WHERE t.id = %(trial_id)s AND t.tenant_id = %(tenant_id)s
"""

_JOB_OF = "SELECT job_id, batch_id FROM trials WHERE id = %(trial_id)s AND tenant_id = %(tenant_id)s"


@dataclass(frozen=True, slots=True)
class DeadLetterRow:
    """A dead letter. n: orders the list. job_key: None once the job is archived."""

    n: int
    trial_id: UUID
    batch_id: UUID
    job_id: UUID
    job_key: str | None
    code: str
    failure: dict[str, Any]
    attempts: int
    nodes_lost: int
    created_at: datetime
    replayed_as: UUID | None
    replayed_at: datetime | None
    discarded_at: datetime | None


class DeadLetterRepository(TenantSqlRepository):
    """Dead letters of one tenant."""

    def find(self, trial_id: UUID) -> DeadLetterRow | None:
        """Look one up."""
        row = self._mine_or_none(_FIND, {"trial_id": trial_id})
        return None if row is None else DeadLetterRow(**row)

    def lock(self, trial_id: UUID) -> DeadLetterRow | None:
        """Look one up, and keep others from changing it until the end of the transaction."""
        row = self._mine_or_none(_LOCK, {"trial_id": trial_id})
        return None if row is None else DeadLetterRow(**row)

    def page(self, state: str | None, *, before: int | None, limit: int) -> list[DeadLetterRow]:
        """Newest first, older than the one with the number `before`. state: open, replayed, discarded; None: all."""
        rows = self._mine(_LIST, {"state": state, "before": before, "limit": limit})
        return [DeadLetterRow(**row) for row in rows]

    def spec_of(self, trial_id: UUID) -> dict[str, Any] | None:
        """The job's spec, as stored; None once it is archived."""
        row = self._mine_or_none(_SPEC, {"trial_id": trial_id})
        return None if row is None else dict(row["spec"])

    def link(self, trial_id: UUID, *, batch_id: UUID) -> UUID:
        """Make the only trial of a new batch the same sample as the dead one, and say so; gives its id."""
        rows = self._mine(_LINK, {"trial_id": trial_id, "batch_id": batch_id})
        (row,) = rows
        found: UUID = row["id"]
        return found

    def place_of(self, trial_id: UUID) -> tuple[UUID, UUID] | None:
        """Job and batch of a trial; None once it is archived."""
        row = self._mine_or_none(_JOB_OF, {"trial_id": trial_id})
        return None if row is None else (row["job_id"], row["batch_id"])

    def mark_replayed(self, trial_id: UUID, replayed_as: UUID) -> None:
        """Note the trial that runs it again."""
        self._mine_count(_REPLAYED, {"trial_id": trial_id, "replayed_as": replayed_as})

    def discard(self, trial_id: UUID) -> None:
        """Note that nobody wants it any more; again is no error."""
        self._mine_count(_DISCARD, {"trial_id": trial_id})
