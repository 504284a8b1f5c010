"""SQL of a tenant's snapshots: insert, look, list, and the wish that one goes."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from repositories.tenant_base import TenantSqlRepository

__all__ = ["NewSnapshotRow", "SnapshotFilter", "SnapshotRepository", "SnapshotRow"]

_LOCK_COUNT = "SELECT pg_advisory_xact_lock(hashtextextended('sandmill.snapshots', %(tenant_id)s))"

_COUNT = """
SELECT count(*)::int AS n FROM (
  SELECT 1 FROM snapshots WHERE tenant_id = %(tenant_id)s AND state <> 'Deleting' LIMIT %(limit)s) s
"""

_INSERT = """
WITH happened AS (
  INSERT INTO sandbox_events (trial_id, actor, reason, message)
  VALUES (%(sandbox_id)s, %(created_by)s, 'SNAPSHOT_ACCEPTED', %(id)s::text)
)
INSERT INTO snapshots (id, tenant_id, sandbox_id, name, state_reason, node_id, runtime, runtime_name, image, entrypoint,
                       env, platform, created_by)
SELECT %(id)s, s.tenant_id, s.trial_id, %(name)s, 'snapshot_accepted', s.node_id, s.runtime, %(runtime_name)s, s.image,
       s.entrypoint, coalesce(j.spec -> 'env', '{}'::jsonb), s.platform, %(created_by)s
FROM sandbox_sessions s JOIN trials t ON t.id = s.trial_id JOIN jobs j ON j.id = t.job_id
WHERE s.trial_id = %(sandbox_id)s AND s.tenant_id = %(tenant_id)s AND s.runtime IS NOT NULL
"""

_COLUMNS = """
s.id, s.sandbox_id, s.name, s.state, s.state_reason, s.state_message, s.state_at, s.node_id, s.runtime, s.runtime_name,
s.env, s.platform, s.size_bytes, s.created_at
"""

_FIND = f"SELECT {_COLUMNS} FROM snapshots s WHERE s.id = %(id)s AND s.tenant_id = %(tenant_id)s"
_LOCK = _FIND + " FOR NO KEY UPDATE"
# Others may start from it meanwhile, nobody may ask that it goes.
_HOLD = _FIND + " FOR SHARE"

_MATCHES = """
s.tenant_id = %(tenant_id)s AND (%(sandbox_id)s::uuid IS NULL OR s.sandbox_id = %(sandbox_id)s)
AND (%(name)s::text IS NULL OR s.name = %(name)s) AND (%(states)s::text[] IS NULL OR lower(s.state) = ANY(%(states)s))
"""

_PAGE = f"""
SELECT {_COLUMNS} FROM snapshots s WHERE {_MATCHES}
ORDER BY s.created_at DESC, s.id DESC LIMIT %(limit)s OFFSET %(offset)s
"""

_TOTAL = f"SELECT count(*)::int AS n FROM snapshots s WHERE {_MATCHES}"

_DELETE = """
WITH moved AS (
  UPDATE snapshots SET state = 'Deleting', state_reason = 'snapshot_delete_requested', state_message = NULL,
                       state_at = clock_timestamp()
  WHERE id = %(id)s AND tenant_id = %(tenant_id)s RETURNING id, sandbox_id
)
INSERT INTO sandbox_events (trial_id, actor, reason, message)
SELECT m.sandbox_id, %(actor)s, 'SNAPSHOT_DELETE_REQUESTED', m.id::text FROM moved m
JOIN sandbox_sessions s ON s.trial_id = m.sandbox_id
"""


@dataclass(frozen=True, slots=True)
class NewSnapshotRow:
    """A snapshot to make. runtime_name: what the runtime shall call it. created_by: who asked."""

    id: UUID
    sandbox_id: UUID
    name: str | None
    runtime_name: str
    created_by: str


@dataclass(frozen=True, slots=True)
class SnapshotRow:
    """A snapshot as it is now."""

    id: UUID
    sandbox_id: UUID
    name: str | None
    state: str
    state_reason: str
    state_message: str | None
    state_at: datetime
    node_id: UUID
    runtime: str
    runtime_name: str
    env: dict[str, str]
    platform: dict[str, str] | None
    size_bytes: int | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class SnapshotFilter:
    """Which snapshots; None: any. states: lower case."""

    sandbox_id: UUID | None = None
    name: str | None = None
    states: Sequence[str] | None = None


class SnapshotRepository(TenantSqlRepository):
    """Snapshots of one tenant."""

    def lock_count(self) -> None:
        """Let nobody else count this tenant's snapshots until the end of the transaction."""
        self._mine(_LOCK_COUNT)

    def count(self, *, limit: int) -> int:
        """How many there are that nobody wants gone, up to a limit."""
        row = self._mine_or_none(_COUNT, {"limit": limit})
        return 0 if row is None else int(row["n"])

    def insert(self, row: NewSnapshotRow) -> bool:
        """Insert one of a sandbox that has run, with the sandbox's facts. False: there is none such."""
        return self._mine_count(_INSERT, {name: getattr(row, name) for name in NewSnapshotRow.__slots__}) == 1

    def find(self, snapshot_id: UUID) -> SnapshotRow | None:
        """Look one up."""
        return _to_row(self._mine_or_none(_FIND, {"id": snapshot_id}))

    def lock(self, snapshot_id: UUID) -> SnapshotRow | None:
        """Look one up, and let nobody change it until the end of the transaction."""
        return _to_row(self._mine_or_none(_LOCK, {"id": snapshot_id}))

    def hold(self, snapshot_id: UUID) -> SnapshotRow | None:
        """Look one up, and let nobody ask for its end until the end of the transaction."""
        return _to_row(self._mine_or_none(_HOLD, {"id": snapshot_id}))

    def page(self, wanted: SnapshotFilter, *, limit: int, offset: int) -> list[SnapshotRow]:
        """List, newest first."""
        rows = self._mine(_PAGE, {**_parameters(wanted), "limit": limit, "offset": offset})
        return [SnapshotRow(**row) for row in rows]

    def total(self, wanted: SnapshotFilter) -> int:
        """How many `page` has in all."""
        row = self._mine_or_none(_TOTAL, _parameters(wanted))
        return 0 if row is None else int(row["n"])

    def delete(self, snapshot_id: UUID, *, actor: str) -> None:
        """Wish that it goes: its node removes it, and then the row."""
        self._mine_count(_DELETE, {"id": snapshot_id, "actor": actor})


def _parameters(wanted: SnapshotFilter) -> dict[str, object]:
    states = None if wanted.states is None else list(wanted.states)
    return {"sandbox_id": wanted.sandbox_id, "name": wanted.name, "states": states}


def _to_row(row: dict[str, object] | None) -> SnapshotRow | None:
    return None if row is None else SnapshotRow(**row)  # type: ignore[arg-type] # columns as the class names them
