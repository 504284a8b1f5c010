"""Fires schedules: submits their batches at their times, each time once, whatever crashes."""

from collections import deque
from datetime import datetime, timedelta
from itertools import takewhile
from uuid import UUID

from sqlalchemy import Connection, Engine

from core.blobstore import BlobStore
from core.errors import SandmillError
from core.logging import get_logger
from repositories.schedules import DueRepository, NewFire, ScheduleRow
from services.batch_templates import from_template
from services.batches import BatchService
from services.cron import fires_after
from services.sandbox_caps import DEFAULT_CAPS, SandboxCaps

__all__ = ["MAX_CATCH_UP", "ScheduleFirer"]

log = get_logger(__name__)

MAX_CATCH_UP = 100
"""Most times that are caught up, or written down as missed, at once: the newest ones."""
_ON_TIME = timedelta(seconds=60)
"""A time that is no longer ago than this is on time: schedulers restart, databases fail over."""
_MAX_LOOK_BACK = timedelta(days=370)
"""A schedule every minute that nobody fired for years need not be counted through."""


class ScheduleFirer:
    """Looks for schedules that are due."""

    def __init__(
        self,
        engine: Engine,
        store: BlobStore,
        *,
        default_runtime: str,
        caps: SandboxCaps = DEFAULT_CAPS,
    ) -> None:
        """default_runtime: of jobs that name none. caps: on what a job's sandbox may ask for."""
        self._engine = engine
        self._store = store
        self._default_runtime = default_runtime
        self._caps = caps

    def tick(self) -> int:
        """Fire all that is due; gives how many batches were submitted.

        A schedule and its batch are one transaction, and two schedulers never hold the same schedule.
        """
        submitted = 0
        failed: list[UUID] = []
        while True:
            current: UUID | None = None
            try:
                with self._engine.begin() as connection:
                    repository = DueRepository(connection)
                    row = repository.lock_next_due(without=failed)
                    if row is None:
                        return submitted
                    current = row.id
                    count = self._fire(connection, repository, row)
            except Exception:
                # Not of one schedule alone: the database is away, say.
                if current is None:
                    raise
                failed.append(current)
                log.exception("schedule_failed", schedule_id=str(current))
                continue
            submitted += count

    def _fire(self, connection: Connection, repository: DueRepository, row: ScheduleRow) -> int:
        now = repository.now()
        due, following = _due(row, now)
        fires = _plan(row, due, now)
        submitted = 0
        for fire_at, is_wanted in fires:
            if not is_wanted:
                repository.add_fire(row, NewFire(fire_at, "missed"))
            elif not repository.has_fired(row.id, fire_at):
                fire = self._submit(connection, repository, row, fire_at)
                repository.add_fire(row, fire)
                submitted += fire.outcome == "submitted"
        repository.set_next(row.id, following)
        log.info("schedule_fired", schedule_id=str(row.id), submitted=submitted, due=len(fires))
        return submitted

    def _submit(
        self, connection: Connection, repository: DueRepository, row: ScheduleRow, fire_at: datetime
    ) -> NewFire:
        if row.overlap == "skip" and repository.last_batch_runs(row.id):
            return NewFire(fire_at, "overlapped", detail="the batch before is still running")
        service = BatchService(
            connection,
            row.tenant_id,
            store=self._store,
            default_runtime=self._default_runtime,
            caps=self._caps,
        )
        try:
            # What a refusal leaves behind must not be in the transaction that notes it.
            with connection.begin_nested():
                created = service.create(from_template(row.batch))
        except SandmillError as error:
            return NewFire(fire_at, "refused", detail=error.message)
        return NewFire(fire_at, "submitted", batch_id=created.batch_id)


def _due(row: ScheduleRow, now: datetime) -> tuple[list[datetime], datetime | None]:
    """Give the newest times up to now, and the first after it."""
    if row.next_fire_at is None:
        return [], None
    first = max(row.next_fire_at, now - _MAX_LOOK_BACK)
    times = fires_after(row.cron, row.timezone, first - timedelta(seconds=1))
    due = deque(takewhile(lambda at: at <= now, times), maxlen=MAX_CATCH_UP)
    return list(due), next(fires_after(row.cron, row.timezone, now), None)


def _plan(row: ScheduleRow, due: list[datetime], now: datetime) -> list[tuple[datetime, bool]]:
    """Say of each due time whether it is fired, or was missed."""
    if row.catch_up == "all":
        return [(at, True) for at in due]
    return [(at, at is due[-1] and (row.catch_up == "one" or now - at <= _ON_TIME)) for at in due]
