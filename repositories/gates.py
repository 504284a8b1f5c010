"""SQL of batch caps: which trials of a capped batch may queue. Runs under the dispatch lock."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from models.states import BEFORE_THE_GATE, BEHIND_THE_GATE
from repositories.base import SqlRepository

__all__ = ["BatchCaps", "CappedTrial", "GateRepository", "LabelGroup"]

# Loose scans: one probe per batch, or per batch and group of equal labels, however many trials wait.
_WAITING = f"""
WITH RECURSIVE found AS (
  (SELECT t.batch_id, 1 AS n FROM trials t WHERE {BEFORE_THE_GATE} AND t.batch_id > %(after)s
   ORDER BY t.batch_id LIMIT 1)
  UNION ALL
  SELECT t.batch_id, f.n + 1 FROM found f CROSS JOIN LATERAL (
    SELECT t.batch_id FROM trials t WHERE {BEFORE_THE_GATE} AND t.batch_id > f.batch_id ORDER BY t.batch_id LIMIT 1) t
  WHERE f.n < %(limit)s
)
SELECT b.id, b.max_running, b.max_per_label FROM found f JOIN batches b ON b.id = f.batch_id ORDER BY b.id
"""

_GROUPS = f"""
SELECT b.id AS batch_id, g.cap_group FROM unnest(%(batches)s::uuid[]) AS b(id) CROSS JOIN LATERAL (
  WITH RECURSIVE groups AS (
    (SELECT t.cap_group, 1 AS n FROM trials t WHERE {BEFORE_THE_GATE} AND t.batch_id = b.id
     ORDER BY t.cap_group LIMIT 1)
    UNION ALL
    SELECT t.cap_group, g.n + 1 FROM groups g CROSS JOIN LATERAL (
      SELECT t.cap_group FROM trials t WHERE {BEFORE_THE_GATE} AND t.batch_id = b.id AND t.cap_group > g.cap_group
      ORDER BY t.cap_group LIMIT 1) t
    WHERE g.n < %(limit)s
  ) SELECT cap_group FROM groups) g
"""

_ADMITTED = f"""
SELECT batch_id, cap_labels, count(*)::int AS n FROM trials
WHERE {BEHIND_THE_GATE} AND batch_id = ANY(%(ids)s::uuid[]) GROUP BY batch_id, cap_labels
"""

_FIRST = f"""
SELECT f.id, f.batch_id, f.cap_labels
FROM unnest(%(batches)s::uuid[], %(groups)s::bigint[], %(numbers)s::int[]) AS g(batch_id, cap_group, number)
CROSS JOIN LATERAL (
  SELECT t.id, t.batch_id, t.cap_labels, t.priority, t.seq FROM trials t
  WHERE {BEFORE_THE_GATE} AND t.batch_id = g.batch_id AND t.cap_group = g.cap_group AND t.desired = 'run'
  ORDER BY t.priority DESC, t.seq LIMIT g.number) f
ORDER BY f.priority DESC, f.seq
"""

# Locked by id, as everybody who locks several trials does. A paused one passes the gate once it is resumed.
_ADMIT = f"""
WITH locked AS MATERIALIZED (SELECT id FROM trials WHERE id = ANY(%(ids)s::uuid[]) ORDER BY id FOR UPDATE)
UPDATE trials t SET
  state = CASE WHEN is_paused THEN 'paused' ELSE 'queued' END, is_admitted = NOT is_paused,
  state_reason = CASE WHEN state = 'blocked' THEN NULL ELSE state_reason END,
  queued_at = CASE WHEN state = 'blocked' THEN clock_timestamp() ELSE queued_at END
FROM locked l WHERE t.id = l.id AND {BEFORE_THE_GATE}
"""


@dataclass(frozen=True, slots=True)
class BatchCaps:
    """The caps of a batch. max_per_label: label name to the most trials of each of its values."""

    max_running: int | None
    max_per_label: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class LabelGroup:
    """How many trials of a batch count against its caps, of those with equal labels as far as caps look at them."""

    labels: Mapping[str, str]
    count: int


@dataclass(frozen=True, slots=True)
class CappedTrial:
    """A trial before the gate of its batch."""

    id: UUID
    batch_id: UUID
    labels: Mapping[str, str]


class GateRepository(SqlRepository):
    """Looks at capped batches and admits their trials."""

    def waiting(self, *, after: UUID, limit: int) -> dict[UUID, BatchCaps]:
        """Batches with trials that wait for caps, by id after the given one."""
        rows = self._rows(_WAITING, {"after": after, "limit": limit})
        return {row["id"]: BatchCaps(row["max_running"], row["max_per_label"]) for row in rows}

    def admitted(self, batch_ids: Sequence[UUID]) -> dict[UUID, list[LabelGroup]]:
        """What counts against the caps, by batch."""
        found: dict[UUID, list[LabelGroup]] = {}
        for row in self._rows(_ADMITTED, {"ids": list(batch_ids)}):
            found.setdefault(row["batch_id"], []).append(LabelGroup(row["cap_labels"], row["n"]))
        return found

    def groups(self, batch_ids: Sequence[UUID], *, limit: int) -> list[tuple[UUID, int]]:
        """(batch, group) of what waits, at most `limit` groups of each batch."""
        rows = self._rows(_GROUPS, {"batches": list(batch_ids), "limit": limit})
        return [(row["batch_id"], row["cap_group"]) for row in rows]

    def first_waiting(self, groups: Sequence[tuple[UUID, int, int]]) -> list[CappedTrial]:
        """The first trials of each (batch, group, how many), all in the order of their turn."""
        parameters = {
            "batches": [batch for batch, _, _ in groups],
            "groups": [group for _, group, _ in groups],
            "numbers": [number for _, _, number in groups],
        }
        rows = self._rows(_FIRST, parameters)
        return [CappedTrial(row["id"], row["batch_id"], row["cap_labels"]) for row in rows]

    def admit(self, trial_ids: Sequence[UUID]) -> int:
        """Let these be dispatched."""
        return self._count(_ADMIT, {"ids": list(trial_ids)})
