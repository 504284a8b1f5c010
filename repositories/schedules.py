"""SQL of schedules and of what became of their times."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from repositories.base import SqlRepository
from repositories.tenant_base import TenantSqlRepository

__all__ = ["DueRepository", "FireRow", "NewFire", "ScheduleRepository", "ScheduleRow"]

_COLUMNS = """
s.id, s.tenant_id, s.name, s.cron, s.timezone, s.template, s.batch, s.catch_up, s.overlap, s.next_fire_at, s.paused_at,
s.created_at, s.updated_at
"""
_MINE = "s.tenant_id = %(tenant_id)s"

_NOW = "SELECT clock_timestamp() AS now"

_INSERT = """
INSERT INTO schedules (id, tenant_id, name, cron, timezone, template, batch, catch_up, overlap, next_fire_at, paused_at)
VALUES (%(id)s, %(tenant_id)s, %(name)s, %(cron)s, %(timezone)s, %(template)s, %(batch)s, %(catch_up)s, %(overlap)s,
        %(next_fire_at)s, CASE WHEN %(is_paused)s THEN clock_timestamp() END)
ON CONFLICT (tenant_id, name) DO NOTHING
"""

_COUNT = f"SELECT count(*)::int AS n FROM schedules s WHERE {_MINE}"
_FIND = f"SELECT {_COLUMNS} FROM schedules s WHERE {_MINE} AND s.id = %(id)s"
_LOCK = f"{_FIND} FOR UPDATE"
_NAME_TAKEN = f"SELECT 1 FROM schedules s WHERE {_MINE} AND s.name = %(name)s AND s.id <> %(id)s"
_LIST = f"""
SELECT {_COLUMNS} FROM schedules s
WHERE {_MINE} AND (%(after)s::uuid IS NULL OR s.id > %(after)s) ORDER BY s.id LIMIT %(limit)s
"""

_UPDATE = f"""
UPDATE schedules s SET name = %(name)s, cron = %(cron)s, timezone = %(timezone)s, template = %(template)s,
  batch = %(batch)s, catch_up = %(catch_up)s, overlap = %(overlap)s, next_fire_at = %(next_fire_at)s,
  updated_at = clock_timestamp()
WHERE {_MINE} AND s.id = %(id)s
"""

_PAUSE = f"""
UPDATE schedules s SET paused_at = coalesce(paused_at, clock_timestamp()), next_fire_at = NULL
WHERE {_MINE} AND s.id = %(id)s
"""

_RESUME = f"""
UPDATE schedules s SET paused_at = NULL, next_fire_at = %(next_fire_at)s WHERE {_MINE} AND s.id = %(id)s
"""

_DELETE = f"DELETE FROM schedules s WHERE {_MINE} AND s.id = %(id)s"

_FORGET_BLOBS = "DELETE FROM blob_uses WHERE owner_id = %(id)s AND tenant_id = %(tenant_id)s"
_USE_BLOBS = """
INSERT INTO blob_uses (owner_id, tenant_id, digest)
SELECT %(id)s, %(tenant_id)s, d FROM unnest(%(digests)s::text[]) AS d
"""

_FIRES = """
SELECT f.fire_at, f.outcome, f.batch_id, f.detail, f.fired_at FROM schedule_fires f
WHERE f.schedule_id = %(id)s AND f.tenant_id = %(tenant_id)s
  AND (%(before)s::timestamptz IS NULL OR f.fire_at < %(before)s)
ORDER BY f.fire_at DESC LIMIT %(limit)s
"""

# One at a time, so that one that cannot be fired stands in nobody's way; another scheduler takes the next one.
_NEXT_DUE = f"""
SELECT {_COLUMNS} FROM schedules s
WHERE s.next_fire_at <= clock_timestamp() AND NOT s.id = ANY(%(without)s::uuid[])
ORDER BY s.next_fire_at LIMIT 1 FOR UPDATE SKIP LOCKED
"""

_ADD_FIRE = """
INSERT INTO schedule_fires (schedule_id, fire_at, tenant_id, outcome, batch_id, detail)
VALUES (%(schedule_id)s, %(fire_at)s, %(tenant_id)s, %(outcome)s, %(batch_id)s, %(detail)s)
ON CONFLICT (schedule_id, fire_at) DO NOTHING
"""

_SET_NEXT = "UPDATE schedules SET next_fire_at = %(next_fire_at)s WHERE id = %(id)s"

_HAS_FIRED = "SELECT 1 FROM schedule_fires WHERE schedule_id = %(id)s AND fire_at = %(fire_at)s"

_LAST_BATCH_RUNS = """
SELECT 1 FROM (
  SELECT batch_id FROM schedule_fires WHERE schedule_id = %(id)s AND outcome = 'submitted'
  ORDER BY fire_at DESC LIMIT 1) f JOIN batches b ON b.id = f.batch_id
WHERE b.state <> 'finished'
"""


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """One row of `schedules`."""

    id: UUID
    tenant_id: int
    name: str
    cron: str
    timezone: str
    template: dict[str, Any]
    batch: dict[str, Any]
    catch_up: str
    overlap: str
    next_fire_at: datetime | None
    paused_at: datetime | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class FireRow:
    """What became of one time of a schedule."""

    fire_at: datetime
    outcome: str
    batch_id: UUID | None
    detail: str | None
    fired_at: datetime


@dataclass(frozen=True, slots=True)
class NewFire:
    """One to be written down."""

    fire_at: datetime
    outcome: str
    batch_id: UUID | None = None
    detail: str | None = None


class _Clock(SqlRepository):
    def now(self) -> datetime:
        """The database's time."""
        row = self._row(_NOW)
        if row is None:
            message = "the database gave no time"
            raise LookupError(message)
        now: datetime = row["now"]
        return now


class ScheduleRepository(_Clock, TenantSqlRepository):
    """Schedules of one tenant."""

    def insert(self, schedule_id: UUID, values: Mapping[str, Any], *, digests: Sequence[str]) -> bool:
        """Add one. values: by column. digests: of the blobs its batch names. False: the name is taken."""
        added = self._mine_count(_INSERT, {**_to_columns(values), "id": schedule_id}) == 1
        if added:
            self._use_blobs(schedule_id, digests)
        return added

    def count(self) -> int:
        """How many there are."""
        return int(self._mine(_COUNT)[0]["n"])

    def find(self, schedule_id: UUID) -> ScheduleRow | None:
        """Look one up."""
        row = self._mine_or_none(_FIND, {"id": schedule_id})
        return None if row is None else ScheduleRow(**row)

    def lock(self, schedule_id: UUID) -> ScheduleRow | None:
        """Look one up that is about to change: it does not fire until the transaction ends."""
        row = self._mine_or_none(_LOCK, {"id": schedule_id})
        return None if row is None else ScheduleRow(**row)

    def is_name_taken(self, name: str, *, by_other_than: UUID) -> bool:
        """Say whether another schedule has this name."""
        return self._mine_or_none(_NAME_TAKEN, {"name": name, "id": by_other_than}) is not None

    def page(self, *, after: UUID | None, limit: int) -> list[ScheduleRow]:
        """Oldest first, after `after`."""
        return [ScheduleRow(**row) for row in self._mine(_LIST, {"after": after, "limit": limit})]

    def update(self, schedule_id: UUID, values: Mapping[str, Any], *, digests: Sequence[str]) -> None:
        """Write a locked one anew."""
        self._mine_count(_UPDATE, {**_to_columns(values), "id": schedule_id})
        self._mine_count(_FORGET_BLOBS, {"id": schedule_id})
        self._use_blobs(schedule_id, digests)

    def pause(self, schedule_id: UUID) -> None:
        """Fire no more."""
        self._mine_count(_PAUSE, {"id": schedule_id})

    def resume(self, schedule_id: UUID, next_fire_at: datetime | None) -> None:
        """Fire again, from this time on."""
        self._mine_count(_RESUME, {"id": schedule_id, "next_fire_at": next_fire_at})

    def delete(self, schedule_id: UUID) -> bool:
        """Remove it with its list of fires; batches stay. False: there is no such schedule."""
        self._mine_count(_FORGET_BLOBS, {"id": schedule_id})
        return self._mine_count(_DELETE, {"id": schedule_id}) == 1

    def page_fires(self, schedule_id: UUID, *, before: datetime | None, limit: int) -> list[FireRow]:
        """Newest first, before `before`."""
        parameters = {"id": schedule_id, "before": before, "limit": limit}
        return [FireRow(**row) for row in self._mine(_FIRES, parameters)]

    def _use_blobs(self, schedule_id: UUID, digests: Sequence[str]) -> None:
        if digests:
            self._mine_count(_USE_BLOBS, {"id": schedule_id, "digests": list(digests)})


class DueRepository(_Clock):
    """Schedules of all tenants, as the scheduler sees them."""

    def lock_next_due(self, *, without: Sequence[UUID]) -> ScheduleRow | None:
        """Lock the one that is most overdue; those that another scheduler holds are passed over."""
        row = self._row(_NEXT_DUE, {"without": list(without)})
        return None if row is None else ScheduleRow(**row)

    def add_fire(self, schedule: ScheduleRow, fire: NewFire) -> bool:
        """Write a time down. False: it was, before."""
        parameters = {
            "schedule_id": schedule.id,
            "fire_at": fire.fire_at,
            "tenant_id": schedule.tenant_id,
            "outcome": fire.outcome,
            "batch_id": fire.batch_id,
            "detail": fire.detail,
        }
        return self._count(_ADD_FIRE, parameters) == 1

    def has_fired(self, schedule_id: UUID, fire_at: datetime) -> bool:
        """Say whether a time was written down before."""
        return self._row(_HAS_FIRED, {"id": schedule_id, "fire_at": fire_at}) is not None

    def set_next(self, schedule_id: UUID, next_fire_at: datetime | None) -> None:
        """Say when it is due again."""
        self._count(_SET_NEXT, {"id": schedule_id, "next_fire_at": next_fire_at})

    def last_batch_runs(self, schedule_id: UUID) -> bool:
        """Say whether the batch it submitted last is still under way."""
        return self._row(_LAST_BATCH_RUNS, {"id": schedule_id}) is not None


def _to_columns(values: Mapping[str, Any]) -> dict[str, Any]:
    return {**values, "template": Jsonb(values["template"]), "batch": Jsonb(values["batch"])}
