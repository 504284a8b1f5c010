"""SQL of log chunks on the worker's side: append and read back for the verdict."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from repositories.base import SqlRepository

__all__ = ["Chunk", "LogChunkRepository", "StoredLog"]

# %()b sends the bytes as they are: as text each would be escaped.
_APPEND = """
INSERT INTO log_chunks (trial_id, fence, seq, step, stream, at, bytes)
SELECT * FROM unnest(%(trials)s::uuid[], %(fences)s::bigint[], %(seqs)s::int[], %(steps)s::text[], %(streams)s::text[],
                     %(ats)s::timestamptz[], %(bytes)b::bytea[])
ON CONFLICT (trial_id, fence, seq) DO NOTHING
"""

_READ_STEP = """
SELECT bytes FROM log_chunks
WHERE trial_id = %(trial_id)s AND fence = %(fence)s AND step = %(step)s ORDER BY seq
"""


_STORED = """
SELECT step, count(*)::int AS chunks, sum(length(bytes))::bigint AS bytes FROM log_chunks
WHERE trial_id = %(trial_id)s AND fence = %(fence)s GROUP BY step
"""


@dataclass(frozen=True, slots=True)
class StoredLog:
    """What is stored of an attempt's log so far. next_seq: number of the next chunk. step_bytes: by step."""

    next_seq: int = 0
    step_bytes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A run of output of one stream. attempt_id names the channel of live readers."""

    attempt_id: UUID
    trial_id: UUID
    fence: int
    seq: int
    step: str
    stream: str
    at: datetime
    data: bytes


class LogChunkRepository(SqlRepository):
    """Chunks by (trial, fence, seq)."""

    def append(self, chunks: Sequence[Chunk]) -> None:
        """Store chunks of any attempts in one statement; a chunk that is there already stays."""
        self._count(
            _APPEND,
            {
                "trials": [c.trial_id for c in chunks],
                "fences": [c.fence for c in chunks],
                "seqs": [c.seq for c in chunks],
                "steps": [c.step for c in chunks],
                "streams": [c.stream for c in chunks],
                "ats": [c.at for c in chunks],
                "bytes": [c.data for c in chunks],
            },
        )

    def stored(self, trial_id: UUID, fence: int) -> StoredLog:
        """Say how far the log of an attempt is stored."""
        rows = self._rows(_STORED, {"trial_id": trial_id, "fence": fence})
        return StoredLog(sum(row["chunks"] for row in rows), {row["step"]: row["bytes"] for row in rows})

    def read_step(self, trial_id: UUID, fence: int, step: str) -> bytes:
        """All stored output of one step, both streams in their one order."""
        rows = self._rows(_READ_STEP, {"trial_id": trial_id, "fence": fence, "step": step})
        return b"".join(row["bytes"] for row in rows)
