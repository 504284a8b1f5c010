"""SQL by which nodes make and remove snapshots, and the scheduler gives up those that nobody will make."""

from dataclasses import dataclass
from uuid import UUID

from repositories.base import SqlRepository

__all__ = ["KeptSnapshot", "SnapshotKeepingRepository", "SnapshotOrder"]

# The source is over once its row says so, or its row has gone to the history.
_ORDERS = """
SELECT p.id, p.sandbox_id, p.state, p.runtime, p.runtime_name, s.trial_id IS NULL OR s.ended_at IS NOT NULL AS is_orphan
FROM snapshots p LEFT JOIN sandbox_sessions s ON s.trial_id = p.sandbox_id
WHERE p.node_id = %(node_id)s AND p.state IN ('Creating', 'Deleting') ORDER BY p.created_at LIMIT 500
"""

_ORDERS_OF = """
SELECT p.id, p.sandbox_id, p.state, p.runtime, p.runtime_name, false AS is_orphan
FROM snapshots p WHERE p.sandbox_id = %(sandbox_id)s AND p.state = 'Creating' ORDER BY p.created_at
"""

_SETTLE = """
WITH moved AS (
  UPDATE snapshots SET state = %(state)s, state_reason = %(reason)s, state_message = %(message)s,
                       size_bytes = coalesce(%(size)s, size_bytes), state_at = clock_timestamp()
  WHERE id = %(id)s AND state = %(from)s RETURNING id, sandbox_id
), happened AS (
  INSERT INTO sandbox_events (trial_id, actor, reason, message)
  SELECT m.sandbox_id, %(actor)s, %(event)s, concat_ws(': ', m.id::text, %(message)s::text) FROM moved m
  JOIN sandbox_sessions s ON s.trial_id = m.sandbox_id
)
SELECT id FROM moved
"""

_FORGET = "DELETE FROM snapshots WHERE id = %(id)s AND state = 'Deleting'"

_NOTE = "UPDATE snapshots SET state_message = %(message)s WHERE id = %(id)s AND state = 'Deleting'"

_KEPT = """
SELECT id, runtime, runtime_name, state FROM snapshots WHERE node_id = %(node_id)s AND state IN ('Creating', 'Ready')
"""

_LOST = """
SELECT p.id FROM snapshots p LEFT JOIN sandbox_sessions s ON s.trial_id = p.sandbox_id
WHERE p.state = 'Creating'
  AND coalesce(s.ended_at, p.state_at) < clock_timestamp() - make_interval(secs => %(seconds)s)
  AND (s.trial_id IS NULL OR s.ended_at IS NOT NULL)
LIMIT 500
"""


@dataclass(frozen=True, slots=True)
class SnapshotOrder:
    """A snapshot to make (Creating) or remove (Deleting). is_orphan: its sandbox is over."""

    id: UUID
    sandbox_id: UUID
    state: str
    runtime: str
    runtime_name: str
    is_orphan: bool


@dataclass(frozen=True, slots=True)
class KeptSnapshot:
    """A snapshot that a node has, or is about to have."""

    id: UUID
    runtime: str
    runtime_name: str
    state: str


class SnapshotKeepingRepository(SqlRepository):
    """Snapshots of all tenants, for nodes and the scheduler."""

    def orders(self, node_id: UUID) -> list[SnapshotOrder]:
        """What a node has to make and to remove, oldest first."""
        return [SnapshotOrder(**row) for row in self._rows(_ORDERS, {"node_id": node_id})]

    def orders_of(self, sandbox_id: UUID) -> list[SnapshotOrder]:
        """What is to be made of one sandbox, oldest first."""
        return [SnapshotOrder(**row) for row in self._rows(_ORDERS_OF, {"sandbox_id": sandbox_id})]

    def mark_ready(self, snapshot_id: UUID, *, size_bytes: int | None, actor: str) -> bool:
        """It is whole. False: it was not to be made any more."""
        return self._settle(
            snapshot_id,
            state="Ready",
            reason="snapshot_runtime_ready",
            event="SNAPSHOT_READY",
            size=size_bytes,
            actor=actor,
        )

    def mark_failed(
        self, snapshot_id: UUID, *, reason: str, message: str, actor: str, was: str = "Creating"
    ) -> bool:
        """It could not be made; or, was Ready, is gone. False: somebody else has settled it."""
        return self._settle(
            snapshot_id,
            state="Failed",
            reason=reason,
            message=message,
            event="SNAPSHOT_FAILED",
            actor=actor,
            **{"from": was},
        )

    def forget(self, snapshot_id: UUID) -> None:
        """Nothing of a deleted one is left."""
        self._count(_FORGET, {"id": snapshot_id})

    def note_not_removed(self, snapshot_id: UUID, message: str) -> None:
        """Say why a deleted one is still there."""
        self._count(_NOTE, {"id": snapshot_id, "message": message})

    def kept(self, node_id: UUID) -> list[KeptSnapshot]:
        """Those a node is to have."""
        return [KeptSnapshot(**row) for row in self._rows(_KEPT, {"node_id": node_id})]

    def lost(self, *, after_seconds: float) -> list[UUID]:
        """Those to be made of a sandbox that has been over for so long."""
        return [row["id"] for row in self._rows(_LOST, {"seconds": after_seconds})]

    def _settle(self, snapshot_id: UUID, **values: object) -> bool:
        parameters = {"id": snapshot_id, "from": "Creating", "message": None, "size": None, **values}
        return bool(self._rows(_SETTLE, parameters))
