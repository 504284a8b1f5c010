"""SQL that reads the log of an attempt."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from repositories.tenant_base import TenantSqlRepository

__all__ = ["LogChunkRow", "LogKey", "LogReadRepository", "LogState"]

_KEY = """
SELECT a.id AS attempt_id, a.trial_id, a.fence FROM attempts a WHERE a.id = %(id)s AND a.tenant_id = %(tenant_id)s
"""

_CHUNKS = """
SELECT c.seq, c.at, c.stream, c.step, c.bytes AS data FROM log_chunks c
WHERE c.trial_id = %(trial_id)s AND c.fence = %(fence)s AND c.seq > %(after)s
  AND (%(step)s::text IS NULL OR c.step = %(step)s) AND (%(stream)s::text IS NULL OR c.stream = %(stream)s)
ORDER BY c.seq LIMIT %(limit)s
"""

# An attempt that was lost or never started is closed by nobody, yet nothing will follow.
_STATE = """
SELECT coalesce(h.closed, false) OR a.state IN ('lost', 'never_started') AS closed,
       coalesce(h.truncated_bytes, 0) AS truncated_bytes,
       (SELECT max(c.seq) FROM log_chunks c WHERE c.trial_id = a.trial_id AND c.fence = a.fence) AS last_seq
FROM attempts a LEFT JOIN log_heads h ON h.trial_id = a.trial_id AND h.fence = a.fence
WHERE a.trial_id = %(trial_id)s AND a.fence = %(fence)s
"""


@dataclass(frozen=True, slots=True)
class LogKey:
    """Where the log of an attempt lies."""

    attempt_id: UUID
    trial_id: UUID
    fence: int


@dataclass(frozen=True, slots=True)
class LogChunkRow:
    """A run of output of one stream. seq goes up by one over both streams."""

    seq: int
    at: datetime
    stream: str
    step: str
    data: bytes


@dataclass(frozen=True, slots=True)
class LogState:
    """closed: nothing will be added. last_seq: None while there is nothing."""

    closed: bool
    truncated_bytes: int
    last_seq: int | None


class LogReadRepository(TenantSqlRepository):
    """Logs of one tenant. Chunks are reached only by a LogKey, which is given to their owner alone."""

    def key(self, attempt_id: UUID) -> LogKey | None:
        """Find the log of an attempt."""
        row = self._mine_or_none(_KEY, {"id": attempt_id})
        return None if row is None else LogKey(**row)

    def chunks(
        self, key: LogKey, *, after: int, limit: int, step: str | None = None, stream: str | None = None
    ) -> list[LogChunkRow]:
        """Read stored chunks in order, with seq > after."""
        parameters = {
            "trial_id": key.trial_id,
            "fence": key.fence,
            "after": after,
            "limit": limit,
            "step": step,
            "stream": stream,
        }
        return [LogChunkRow(**row) for row in self._rows(_CHUNKS, parameters)]

    def state(self, key: LogKey) -> LogState:
        """Say whether the log has ended."""
        row = self._row(_STATE, {"trial_id": key.trial_id, "fence": key.fence})
        return LogState(closed=True, truncated_bytes=0, last_seq=None) if row is None else LogState(**row)
