"""SQL of the scheduler about trials that wait: due, past a deadline, to be cancelled. All under the dispatch lock."""

from models.states import WAITING_TRIAL_STATES, sql_list
from repositories.base import SqlRepository

__all__ = ["SweepRepository"]

_WAITING = f"state IN ({sql_list(WAITING_TRIAL_STATES)})"

_PROMOTE_DUE = """
UPDATE trials SET state = CASE WHEN is_paused THEN 'paused' ELSE 'queued' END, run_at = NULL,
                  queued_at = clock_timestamp()
WHERE id IN (SELECT id FROM trials WHERE state = 'retry_wait' AND desired = 'run' AND run_at <= clock_timestamp()
             ORDER BY run_at LIMIT 1000 FOR UPDATE SKIP LOCKED)
"""

# The deadlines of a paused trial stand still, so it is not looked at. queue_deadline counts until the first start only;
# total_deadline is set by that start.
_EXPIRE = f"""
UPDATE trials SET state = 'finished', outcome = 'error', finished_at = clock_timestamp(),
  state_reason = CASE WHEN total_deadline <= clock_timestamp() THEN 'total_timeout' ELSE 'queue_timeout' END,
  failure = CASE WHEN total_deadline <= clock_timestamp() THEN %(total)s::jsonb ELSE %(queue)s::jsonb END
WHERE id IN (
  SELECT id FROM trials
  WHERE {_WAITING} AND deadline <= clock_timestamp()
    AND (started_at IS NULL OR total_deadline <= clock_timestamp())
  ORDER BY deadline LIMIT 1000 FOR UPDATE SKIP LOCKED)
"""

# Catches the trial that went back to the queue while its cancel was being written.
_CANCEL_WAITING = f"""
UPDATE trials SET state = 'finished', outcome = 'cancelled', state_reason = 'cancelled', failure = %(failure)s,
                  finished_at = clock_timestamp()
WHERE id IN (SELECT id FROM trials WHERE ({_WAITING} OR state = 'paused') AND desired = 'cancel'
             ORDER BY id LIMIT 1000 FOR UPDATE SKIP LOCKED)
"""


class SweepRepository(SqlRepository):
    """Moves waiting trials on, some thousand at most in a call."""

    def promote_due(self) -> int:
        """Queue trials whose backoff is over."""
        return self._count(_PROMOTE_DUE)

    def expire(self, *, queue_failure: str, total_failure: str) -> int:
        """End waiting trials past their deadline. Failures: JSON texts."""
        return self._count(_EXPIRE, {"queue": queue_failure, "total": total_failure})

    def cancel_waiting(self, failure: str) -> int:
        """End waiting trials that are to be cancelled. failure: JSON text."""
        return self._count(_CANCEL_WAITING, {"failure": failure})
