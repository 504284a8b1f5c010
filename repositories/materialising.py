"""SQL that makes the rows of trials which a batch has beyond its first page, a page at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from repositories.base import SqlRepository
from repositories.trial_columns import COPIED

__all__ = ["MaterialisingRepository", "Tail", "TailPage"]

_COPIED = ", ".join(COPIED)
_FROM_FIRST = ", ".join(f"first.{name}" for name in COPIED)

# Batch by batch through the index, which holds only jobs with a tail: what is done costs nothing.
_BATCHES_WITH_TAIL = """
WITH RECURSIVE found(batch_id) AS (
  (SELECT batch_id FROM jobs WHERE tail_count > 0 AND batch_id > %(after)s ORDER BY batch_id LIMIT 1)
  UNION ALL
  SELECT (SELECT j.batch_id FROM jobs j WHERE j.tail_count > 0 AND j.batch_id > f.batch_id
          ORDER BY j.batch_id LIMIT 1)
  FROM found f WHERE f.batch_id IS NOT NULL
)
SELECT batch_id FROM found WHERE batch_id IS NOT NULL LIMIT %(limit)s
"""

_OPEN = """
SELECT count(*)::int AS n FROM (
  SELECT 1 FROM trials WHERE batch_id = %(batch_id)s AND state <> 'finished' LIMIT %(limit)s) t
"""

# Urgent jobs first. A job that needs others gets its rows when it may run: until then none is of use.
_TAILS = """
SELECT j.id AS job_id, j.trial_count - j.tail_count AS next_index, j.tail_count AS count, j.tail_outcome AS outcome
FROM jobs j JOIN trials first ON first.job_id = j.id AND first.index = 0 AND first.superseded_by IS NULL
WHERE j.batch_id = %(batch_id)s AND j.tail_count > 0 AND (j.unmet_needs = 0 OR j.tail_outcome IS NOT NULL)
ORDER BY first.priority DESC, j.ordinal LIMIT %(limit)s
"""

# The first trial ever made of a job has all that its others share. `seq`, given on insert, keeps their order.
_MAKE = f"""
WITH pages AS MATERIALIZED (
  SELECT p.next_index, p.count, p.first_id, j.id AS own_job_id, j.queue_deadline, j.tail_outcome, j.tail_reason,
         j.paused_at IS NOT NULL OR b.paused_at IS NOT NULL AS is_paused, first.seed, {_FROM_FIRST}
  FROM unnest(%(jobs)s::uuid[], %(indexes)s::int[], %(counts)s::int[], %(first_ids)s::int[])
         AS p(job_id, next_index, count, first_id)
    JOIN jobs j ON j.id = p.job_id AND j.tail_count >= p.count AND j.trial_count - j.tail_count = p.next_index
    JOIN batches b ON b.id = j.batch_id
    CROSS JOIN LATERAL (SELECT * FROM trials t WHERE t.job_id = j.id AND t.index = 0
                        ORDER BY t.created_at, t.id LIMIT 1) first
), made AS (
  INSERT INTO trials (id, index, seed, state, state_reason, outcome, failure, finished_at, is_paused, paused_at,
                      queue_deadline, {_COPIED})
  SELECT i.id, g.index, p.seed + g.index,
    CASE WHEN p.tail_outcome IS NOT NULL THEN 'finished' WHEN p.is_paused THEN 'paused'
         WHEN p.cap_labels IS NOT NULL THEN 'blocked' ELSE 'queued' END,
    CASE WHEN p.tail_outcome IS NOT NULL THEN p.tail_reason WHEN p.is_paused THEN NULL
         WHEN p.cap_labels IS NOT NULL THEN 'concurrency' END,
    p.tail_outcome, CASE WHEN p.tail_outcome IS NOT NULL THEN %(failures)s::jsonb -> p.tail_outcome
                           || jsonb_build_object('code', p.tail_reason) END,
    CASE WHEN p.tail_outcome IS NOT NULL THEN clock_timestamp() END,
    p.is_paused AND p.tail_outcome IS NULL,
    CASE WHEN p.is_paused AND p.tail_outcome IS NULL THEN clock_timestamp() END,
    p.queue_deadline, {", ".join(f"p.{name}" for name in COPIED)}
  FROM pages p CROSS JOIN LATERAL generate_series(p.next_index, p.next_index + p.count - 1) AS g(index)
    JOIN unnest(%(ids)s::uuid[]) WITH ORDINALITY AS i(id, n) ON i.n = p.first_id + g.index - p.next_index + 1
  ORDER BY i.n
)
UPDATE jobs j SET tail_count = j.tail_count - p.count FROM pages p WHERE j.id = p.own_job_id
RETURNING p.count
"""


@dataclass(frozen=True, slots=True)
class Tail:
    """Trials of a job that have no row. next_index: of the first of them. outcome: None, or what they end as."""

    job_id: UUID
    next_index: int
    count: int
    outcome: str | None


@dataclass(frozen=True, slots=True)
class TailPage:
    """How many of a job's trials to make now, from which index on."""

    job_id: UUID
    next_index: int
    count: int


class MaterialisingRepository(SqlRepository):
    """Makes trials. Needs the lock of their batch, so that no verb misses one that is being made."""

    def batches_with_tail(self, *, after: UUID, limit: int) -> list[UUID]:
        """Batches that have trials without a row, by id, after `after`."""
        rows = self._rows(_BATCHES_WITH_TAIL, {"after": after, "limit": limit})
        return [row["batch_id"] for row in rows]

    def open_trials(self, batch_id: UUID, *, limit: int) -> int:
        """How many rows of the batch are not finished, counted up to `limit`."""
        return int(self._rows(_OPEN, {"batch_id": batch_id, "limit": limit})[0]["n"])

    def tails(self, batch_id: UUID, *, limit: int) -> list[Tail]:
        """What is to be made next, urgent jobs first, then in the order of the batch."""
        return [Tail(**row) for row in self._rows(_TAILS, {"batch_id": batch_id, "limit": limit})]

    def make(
        self, pages: Sequence[TailPage], ids: Sequence[UUID], failures: Mapping[str, Mapping[str, Any]]
    ) -> int:
        """Make trials; gives how many. ids: one for each, in order. failures: of those made as ended, by outcome."""
        firsts, first = [], 0
        for page in pages:
            firsts.append(first)
            first += page.count
        rows = self._rows(
            _MAKE,
            {
                "jobs": [page.job_id for page in pages],
                "indexes": [page.next_index for page in pages],
                "counts": [page.count for page in pages],
                "first_ids": firsts,
                "ids": list(ids),
                "failures": Jsonb(failures),
            },
        )
        return sum(row["count"] for row in rows)
