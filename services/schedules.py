"""Schedules of a tenant: make, look, change, pause, delete."""

from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import Connection

from core.blobstore import BlobStore
from core.errors import ConflictError, InvalidRequestError, NotFoundError, QuotaExceededError
from core.ids import new_id
from repositories.schedules import FireRow, ScheduleRepository, ScheduleRow
from services.batch_templates import to_template
from services.batches import BatchService, NewBatch
from services.cron import fires_after, parse_cron
from services.problems import InvalidFieldsError, Problem
from services.sandbox_caps import DEFAULT_CAPS, SandboxCaps

__all__ = ["CatchUp", "NewSchedule", "Overlap", "ScheduleService", "next_fires"]

MAX_SCHEDULES = 1000
CatchUp = Literal["none", "one", "all"]
Overlap = Literal["allow", "skip"]


@dataclass(frozen=True, slots=True)
class NewSchedule:
    """A wish. template: the batch as the client sent it; batch: the same, checked."""

    name: str
    cron: str
    timezone: str
    template: dict[str, Any]
    batch: NewBatch
    catch_up: CatchUp
    overlap: Overlap
    is_paused: bool = False


def next_fires(row: ScheduleRow, *, count: int) -> list[datetime]:
    """Give the next times, UTC; none while it is paused."""
    if row.next_fire_at is None:
        return []
    following = fires_after(row.cron, row.timezone, row.next_fire_at)
    return [row.next_fire_at, *islice(following, count - 1)]


class ScheduleService:
    """Schedules of one tenant, inside the caller's transaction."""

    def __init__(
        self,
        connection: Connection,
        tenant_id: int,
        *,
        store: BlobStore,
        caps: SandboxCaps = DEFAULT_CAPS,
    ) -> None:
        """store: for inputs that came inline; the caller has put them there. caps: on what a job's sandbox may have."""
        self._repository = ScheduleRepository(connection, tenant_id)
        self._batches = BatchService(connection, tenant_id, store=store, caps=caps)

    def create(self, wanted: NewSchedule) -> ScheduleRow:
        """Add one. Raises InvalidRequestError, InvalidFieldsError, ConflictError, QuotaExceededError."""
        parse_cron(wanted.cron, wanted.timezone)
        if self._repository.count() >= MAX_SCHEDULES:
            raise QuotaExceededError(f"there are {MAX_SCHEDULES} schedules: delete one first")
        schedule_id = new_id()
        values = {**self._values(wanted), "is_paused": wanted.is_paused}
        if not self._repository.insert(schedule_id, values, digests=_digests(wanted.batch)):
            raise _name_taken(wanted.name)
        return self.get(schedule_id)

    def get(self, schedule_id: UUID) -> ScheduleRow:
        """Look one up. Raises NotFoundError."""
        return _required(self._repository.find(schedule_id), schedule_id)

    def lock(self, schedule_id: UUID) -> ScheduleRow:
        """Look one up that is about to change. Raises NotFoundError."""
        return _required(self._repository.lock(schedule_id), schedule_id)

    def page(self, *, after: UUID | None, limit: int) -> list[ScheduleRow]:
        """List them, oldest first."""
        return self._repository.page(after=after, limit=limit)

    def update(self, schedule_id: UUID, wanted: NewSchedule) -> ScheduleRow:
        """Write one anew that was locked. What it has missed so far stays missed. Raises as `create` does."""
        parse_cron(wanted.cron, wanted.timezone)
        if self._repository.is_name_taken(wanted.name, by_other_than=schedule_id):
            raise _name_taken(wanted.name)
        self._repository.update(schedule_id, self._values(wanted), digests=_digests(wanted.batch))
        return self.get(schedule_id)

    def pause(self, schedule_id: UUID) -> ScheduleRow:
        """Fire no more; again is no error. Raises NotFoundError."""
        self.lock(schedule_id)
        self._repository.pause(schedule_id)
        return self.get(schedule_id)

    def resume(self, schedule_id: UUID) -> ScheduleRow:
        """Fire again, from now on: what was due while it was paused is not caught up. Raises NotFoundError."""
        row = self.lock(schedule_id)
        if row.paused_at is not None:
            self._repository.resume(schedule_id, self._next(row.cron, row.timezone))
        return self.get(schedule_id)

    def delete(self, schedule_id: UUID) -> None:
        """Remove it; what it has submitted goes on. Raises NotFoundError."""
        if not self._repository.delete(schedule_id):
            raise NotFoundError("schedule", schedule_id)

    def page_fires(self, schedule_id: UUID, *, before: datetime | None, limit: int) -> list[FireRow]:
        """List what became of its times, newest first. Raises NotFoundError."""
        self.get(schedule_id)
        return self._repository.page_fires(schedule_id, before=before, limit=limit)

    def _values(self, wanted: NewSchedule) -> dict[str, Any]:
        self._check(wanted.batch)
        return {
            "name": wanted.name,
            "cron": wanted.cron,
            "timezone": wanted.timezone,
            "template": wanted.template,
            "batch": to_template(wanted.batch),
            "catch_up": wanted.catch_up,
            "overlap": wanted.overlap,
            "next_fire_at": None if wanted.is_paused else self._next(wanted.cron, wanted.timezone),
        }

    def _check(self, batch: NewBatch) -> None:
        """Check what only the database knows; fields are those of the schedule."""
        try:
            self._batches.check(batch)
        except InvalidFieldsError as error:
            problems = [Problem(f"batch.{p.field}", p.message) for p in error.problems]
            raise InvalidFieldsError(problems) from error
        except InvalidRequestError as error:
            raise InvalidRequestError(error.message, field=f"batch.{error.field}") from error

    def _next(self, cron: str, timezone: str) -> datetime | None:
        return next(fires_after(cron, timezone, self._repository.now()), None)


def _required(row: ScheduleRow | None, schedule_id: UUID) -> ScheduleRow:
    if row is None:
        raise NotFoundError("schedule", schedule_id)
    return row


def _name_taken(name: str) -> ConflictError:
    return ConflictError(f"a schedule is named {name} already", field="name")


def _digests(batch: NewBatch) -> list[str]:
    used = {item.blob for spec in batch.jobs.specs for item in spec.inputs if item.blob is not None}
    return sorted(used)
