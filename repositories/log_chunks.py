"""SQL of log chunks on the worker's side: append and read back for the verdict."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from repositories.base import SqlRepository

__all__ = ["Chunk", "LogChunkRepository", "StoredLog"]

_APPENDS = 0x6C6F6773
"""First half of the advisory locks that appends share and `settle` takes alone; the second half tells nodes apart."""

# %()b sends the bytes as they are: as text each would be escaped. Without a node the lock's function is not called.
_APPEND = f"""
INSERT INTO log_chunks (trial_id, fence, seq, step, stream, at, bytes)
SELECT c.* FROM (SELECT pg_advisory_xact_lock_shared({_APPENDS}, %(node)s::int)) l,
     unnest(%(trials)s::uuid[], %(fences)s::bigint[], %(seqs)s::int[], %(steps)s::text[], %(streams)s::text[],
            %(ats)s::timestamptz[], %(bytes)b::bytea[]) c
ON CONFLICT (trial_id, fence, seq) DO NOTHING
"""

_SETTLE = f"SELECT pg_advisory_xact_lock({_APPENDS}, %(node)s::int)"

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

    def append(self, chunks: Sequence[Chunk], *, node_id: UUID | None = None) -> None:
        """Store chunks of any attempts in one statement; a chunk that is there already stays.

        node_id: of the worker, for `settle`.
        """
        self._count(
            _APPEND,
            {
                "node": None if node_id is None else _lock_of(node_id),
                "trials": [c.trial_id for c in chunks],
                "fences": [c.fence for c in chunks],
                "seqs": [c.seq for c in chunks],
                "steps": [c.step for c in chunks],
                "streams": [c.stream for c in chunks],
                "ats": [c.at for c in chunks],
                "bytes": [c.data for c in chunks],
            },
        )

    def settle(self, node_id: UUID) -> None:
        """Wait until every append of the node's earlier worker is decided.

        A worker may be killed while its commit is under way. Its successor would read how far a log is stored, then the
        commit would come through, and what the successor stores under those numbers would be dropped as there already.
        """
        self._rows(_SETTLE, {"node": _lock_of(node_id)})

    def stored(self, trial_id: UUID, fence: int) -> StoredLog:
        """Say how far the log of an attempt is stored."""
        rows = self._rows(_STORED, {"trial_id": trial_id, "fence": fence})
        return StoredLog(sum(row["chunks"] for row in rows), {row["step"]: row["bytes"] for row in rows})

    def read_step(self, trial_id: UUID, fence: int, step: str) -> bytes:
        """All stored output of one step, both streams in their one order."""
        rows = self._rows(_READ_STEP, {"trial_id": trial_id, "fence": fence, "step": step})
        return b"".join(row["bytes"] for row in rows)


def _lock_of(node_id: UUID) -> int:
    return node_id.int & 0x7FFF_FFFF
