"""SQL that moves old rows to the history and deletes what has served its time, some thousand rows at a time."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from uuid import UUID

from repositories.base import SqlRepository

__all__ = ["PAGE", "ArchivedPage", "RetentionRepository"]

PAGE = 5_000
"""Rows per transaction: few enough that nobody waits long for their locks."""

# Only what is over in every respect: no trial is open, nothing is left to be counted or graded.
_MARK = """
UPDATE batches SET archiving_at = clock_timestamp() WHERE id IN (
  SELECT b.id FROM batches b
  WHERE b.state = 'finished' AND b.archiving_at IS NULL
    AND b.finished_at < clock_timestamp() - make_interval(secs => %(seconds)s)
    AND NOT EXISTS (SELECT 1 FROM trials t WHERE t.batch_id = b.id AND t.state <> 'finished')
    AND NOT EXISTS (SELECT 1 FROM batch_inbox i WHERE i.batch_id = b.id)
    AND NOT EXISTS (SELECT 1 FROM regrades r JOIN grades g ON g.regrade_id = r.id
                    WHERE r.batch_id = b.id AND g.graded_at IS NULL)
  ORDER BY b.finished_at LIMIT 100 FOR UPDATE OF b SKIP LOCKED)
"""

_LOCK_BATCH = (
    "SELECT id FROM batches WHERE archiving_at IS NOT NULL ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED"
)

_TRIALS = """
SELECT id FROM trials WHERE batch_id = %(batch_id)s AND state = 'finished' ORDER BY id LIMIT %(limit)s FOR UPDATE
"""

# Somebody has begun something in it after all: it is left alone until that has ended, too.
_UNMARK = """
UPDATE batches SET archiving_at = NULL
WHERE id = %(batch_id)s AND EXISTS (SELECT 1 FROM trials WHERE batch_id = %(batch_id)s)
"""

_KEEP_TRIALS = """
INSERT INTO trial_history (id, tenant_id, batch_id, trial, attempts)
SELECT t.id, t.tenant_id, t.batch_id, to_jsonb(t) || jsonb_build_object('job_key', j.key, 'labels', j.labels),
       coalesce((SELECT jsonb_agg(to_jsonb(a) ORDER BY a.fence) FROM attempts a WHERE a.trial_id = t.id), '[]')
FROM trials t JOIN jobs j ON j.id = t.job_id WHERE t.id = ANY(%(ids)s)
"""

# The same sums as `repositories.usage` makes: in this transaction the attempts go from one half to the other.
_KEEP_USAGE = """
INSERT INTO usage_days AS d (tenant_id, day, kind, attempts, attempt_seconds, cpu_seconds, memory_peak_bytes, log_bytes,
                             artifact_bytes)
SELECT a.tenant_id, (a.finished_at AT TIME ZONE 'UTC')::date,
       CASE WHEN a.state = 'lost' OR a.failure ->> 'class' = 'infra' THEN 'infra' ELSE 'task' END AS kind, count(*),
       sum(extract(epoch FROM a.finished_at - a.claimed_at)), sum(coalesce((a.usage ->> 'cpu_seconds')::float8, 0)),
       max(coalesce((a.usage ->> 'memory_peak_bytes')::bigint, 0)),
       sum(coalesce((a.usage ->> 'log_bytes')::bigint, 0)),
       sum(coalesce((SELECT sum(f.size_bytes) FROM artifacts f WHERE f.trial_id = a.trial_id AND f.fence = a.fence), 0)
           + a.expired_artifact_bytes)
FROM attempts a WHERE a.trial_id = ANY(%(ids)s) AND a.claimed_at IS NOT NULL AND a.finished_at IS NOT NULL
GROUP BY 1, 2, 3
ON CONFLICT (tenant_id, day, kind) DO UPDATE SET attempts = d.attempts + excluded.attempts,
  attempt_seconds = d.attempt_seconds + excluded.attempt_seconds, cpu_seconds = d.cpu_seconds + excluded.cpu_seconds,
  memory_peak_bytes = greatest(d.memory_peak_bytes, excluded.memory_peak_bytes),
  log_bytes = d.log_bytes + excluded.log_bytes, artifact_bytes = d.artifact_bytes + excluded.artifact_bytes
"""

_DELETE_OF_TRIALS = (
    "DELETE FROM artifacts WHERE trial_id = ANY(%(ids)s)",
    "DELETE FROM log_heads WHERE trial_id = ANY(%(ids)s)",
    "DELETE FROM grades WHERE trial_id = ANY(%(ids)s)",
    "DELETE FROM sandboxes WHERE trial_id = ANY(%(ids)s)",
    "DELETE FROM sandbox_events WHERE trial_id = ANY(%(ids)s)",
    "DELETE FROM sandbox_outputs WHERE trial_id = ANY(%(ids)s)",
    "DELETE FROM sandbox_sessions WHERE trial_id = ANY(%(ids)s)",
    "DELETE FROM attempts WHERE trial_id = ANY(%(ids)s)",
    "DELETE FROM trials WHERE id = ANY(%(ids)s)",
)
"""Children first. Events and log chunks go with their month."""

_KEEP_BATCH = """
INSERT INTO batch_history (id, tenant_id, batch, outcomes)
SELECT b.id, b.tenant_id, to_jsonb(b), (
  SELECT coalesce(jsonb_object_agg(o.outcome, o.n), '{}') FROM (
    SELECT outcome, sum(n)::bigint AS n FROM (
      SELECT trial ->> 'outcome' AS outcome, 1 AS n FROM trial_history
      WHERE batch_id = b.id AND trial ->> 'superseded_by' IS NULL
      UNION ALL SELECT tail_outcome, tail_count FROM jobs WHERE batch_id = b.id AND tail_outcome IS NOT NULL) e
    GROUP BY outcome) o)
FROM batches b WHERE b.id = %(batch_id)s
"""

_DELETE_OF_BATCH = (
    "DELETE FROM blob_uses WHERE owner_id IN (SELECT id FROM jobs WHERE batch_id = %(batch_id)s)",
    "DELETE FROM jobs WHERE batch_id = %(batch_id)s",
    "DELETE FROM batch_webhooks WHERE batch_id = %(batch_id)s",
    "DELETE FROM batches WHERE id = %(batch_id)s",
)

# What they took stays part of what the attempt used.
_EXPIRE_ARTIFACTS = """
WITH gone AS (
  DELETE FROM artifacts WHERE (trial_id, fence, path) IN (
    SELECT f.trial_id, f.fence, f.path FROM artifacts f JOIN trials t ON t.id = f.trial_id
    WHERE f.created_at < clock_timestamp() - make_interval(secs => %(seconds)s) AND t.state = 'finished'
    ORDER BY f.created_at LIMIT %(limit)s)
  RETURNING trial_id, fence, size_bytes
), sums AS (
  SELECT trial_id, fence, sum(size_bytes)::bigint AS bytes FROM gone GROUP BY trial_id, fence
), noted AS (
  UPDATE attempts a SET expired_artifact_bytes = expired_artifact_bytes + s.bytes
  FROM sums s WHERE a.trial_id = s.trial_id AND a.fence = s.fence
)
SELECT count(*)::int AS n FROM gone
"""

_DELETE_DELIVERIES = """
DELETE FROM webhook_deliveries WHERE id IN (
  SELECT id FROM webhook_deliveries WHERE finished_at < clock_timestamp() - make_interval(secs => %(seconds)s)
  ORDER BY finished_at LIMIT %(limit)s)
"""

_DELETE_ENDPOINTS = """
DELETE FROM webhook_endpoints e WHERE e.deleted_at IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM webhook_deliveries d WHERE d.endpoint_id = e.id)
  AND NOT EXISTS (SELECT 1 FROM batch_webhooks w WHERE w.endpoint_id = e.id)
"""

# As long as the trial has its row, so has its dead letter.
_DELETE_DEAD_LETTERS = """
DELETE FROM dead_letters WHERE trial_id IN (
  SELECT d.trial_id FROM dead_letters d
  WHERE (coalesce(d.replayed_at, d.discarded_at) < clock_timestamp() - make_interval(secs => %(settled)s)
         OR d.created_at < clock_timestamp() - make_interval(secs => %(open)s))
    AND NOT EXISTS (SELECT 1 FROM trials t WHERE t.id = d.trial_id)
  ORDER BY d.n LIMIT %(limit)s)
"""

_DELETE_FIRES = """
DELETE FROM schedule_fires WHERE (schedule_id, fire_at) IN (
  SELECT schedule_id, fire_at FROM schedule_fires
  WHERE fired_at < clock_timestamp() - make_interval(secs => %(seconds)s) ORDER BY fired_at LIMIT %(limit)s)
"""

# In two statements: the first locks, the second looks with a snapshot from after the lock. Who was about to use one of
# these holds its row: it is passed over, or its use is seen.
_LOCK_BLOBS = """
SELECT b.tenant_id, b.digest FROM blobs b
WHERE b.used_at < clock_timestamp() - make_interval(secs => %(seconds)s)
  AND NOT EXISTS (SELECT 1 FROM blob_uses u WHERE u.tenant_id = b.tenant_id AND u.digest = b.digest)
ORDER BY b.used_at LIMIT %(limit)s FOR UPDATE OF b SKIP LOCKED
"""

_DELETE_BLOBS = """
DELETE FROM blobs b USING unnest(%(tenants)s::bigint[], %(digests)s::text[]) AS g(tenant_id, digest)
WHERE b.tenant_id = g.tenant_id AND b.digest = g.digest
  AND b.used_at < clock_timestamp() - make_interval(secs => %(seconds)s)
  AND NOT EXISTS (SELECT 1 FROM blob_uses u WHERE u.tenant_id = b.tenant_id AND u.digest = b.digest)
"""

_KNOWN = """
SELECT d.digest FROM unnest(%(digests)s::text[]) AS d(digest)
WHERE EXISTS (SELECT 1 FROM blobs b WHERE b.digest = d.digest)
   OR EXISTS (SELECT 1 FROM artifacts a WHERE a.digest = d.digest)
"""


@dataclass(frozen=True, slots=True)
class ArchivedPage:
    """trials: how many went to the history. is_batch_done: the batch went, too."""

    batch_id: UUID
    trials: int
    is_batch_done: bool


class RetentionRepository(SqlRepository):
    """Each method is a transaction's work. Ages are seconds by the database's clock."""

    def mark_batches(self, *, age_seconds: float) -> int:
        """Close finished batches of this age to everybody else; gives how many, a hundred at most."""
        return self._count(_MARK, {"seconds": age_seconds})

    def archive_page(self) -> ArchivedPage | None:
        """Move one page of a marked batch to the history, and with the last page the batch. None: there is none."""
        row = self._row(_LOCK_BATCH)
        if row is None:
            return None
        batch = {"batch_id": row["id"]}
        ids = [found["id"] for found in self._rows(_TRIALS, {**batch, "limit": PAGE})]
        if ids:
            self._archive_trials(ids)
        if len(ids) == PAGE:
            return ArchivedPage(row["id"], PAGE, is_batch_done=False)
        if self._count(_UNMARK, batch):
            return ArchivedPage(row["id"], len(ids), is_batch_done=False)
        self._count(_KEEP_BATCH, batch)
        for statement in _DELETE_OF_BATCH:
            self._count(statement, batch)
        return ArchivedPage(row["id"], len(ids), is_batch_done=True)

    def expire_artifacts(self, *, age_seconds: float) -> int:
        """Delete old artifacts of finished trials; gives how many, a page at most."""
        row = self._row(_EXPIRE_ARTIFACTS, {"seconds": age_seconds, "limit": PAGE}) or {"n": 0}
        return int(row["n"])

    def delete_deliveries(self, *, age_seconds: float) -> int:
        """Delete old messages, and then webhooks that were deleted and have none left."""
        deleted = self._count(_DELETE_DELIVERIES, {"seconds": age_seconds, "limit": PAGE})
        self._count(_DELETE_ENDPOINTS)
        return deleted

    def delete_dead_letters(self, *, settled_seconds: float, open_seconds: float) -> int:
        """Delete those that were replayed or discarded so long ago, and any that is as old as that, once archived."""
        parameters = {"settled": settled_seconds, "open": open_seconds, "limit": PAGE}
        return self._count(_DELETE_DEAD_LETTERS, parameters)

    def delete_fires(self, *, age_seconds: float) -> int:
        """Delete old times of schedules."""
        return self._count(_DELETE_FIRES, {"seconds": age_seconds, "limit": PAGE})

    def delete_blobs(self, *, age_seconds: float) -> int:
        """Take blobs from tenants who use them for nothing and have not sent them for so long."""
        rows = self._rows(_LOCK_BLOBS, {"seconds": age_seconds, "limit": PAGE})
        if not rows:
            return 0
        parameters = {"tenants": [r["tenant_id"] for r in rows], "digests": [r["digest"] for r in rows]}
        return self._count(_DELETE_BLOBS, {**parameters, "seconds": age_seconds})

    def known_digests(self, digests: Collection[str]) -> set[str]:
        """Those of the digests whose bytes anybody may still read."""
        return {row["digest"] for row in self._rows(_KNOWN, {"digests": list(digests)})}

    def _archive_trials(self, ids: Sequence[UUID]) -> None:
        parameters = {"ids": list(ids)}
        self._count(_KEEP_TRIALS, parameters)
        self._count(_KEEP_USAGE, parameters)
        for statement in _DELETE_OF_TRIALS:
            self._count(statement, parameters)
