"""From schedules as services give them to what the wire shows, and back."""

from typing import Any

from api.schemas.schedules import FireView, ScheduleEnvelope, SchedulePatch, ScheduleView
from api.services import ApiServices
from repositories.schedules import FireRow, ScheduleRow
from services.batch_templates import from_template
from services.batches import NewBatch
from services.blobs import store_files
from services.problems import InvalidFieldsError, Problem
from services.schedules import NewSchedule, next_fires
from services.webhooks import check_receiver

__all__ = ["check_template", "to_change", "to_fire_view", "to_new_schedule", "to_schedule_view"]

_SHOWN_FIRES = 5


def to_new_schedule(services: ApiServices, wanted: ScheduleEnvelope) -> NewSchedule:
    """Check the batch as if it were submitted, and put its files in the store. Raises InvalidFieldsError."""
    return NewSchedule(
        name=wanted.name,
        cron=wanted.cron,
        timezone=wanted.timezone,
        template=wanted.batch,
        batch=check_template(services, wanted.batch),
        catch_up=wanted.catch_up,
        overlap=wanted.overlap,
        is_paused=wanted.paused,
    )


def check_template(services: ApiServices, template: dict[str, Any]) -> NewBatch:
    """Check a batch that is submitted later. Raises InvalidFieldsError with fields below `batch`."""
    try:
        batch = services.checker.check_batch(template)
    except InvalidFieldsError as error:
        raise InvalidFieldsError([Problem(f"batch.{p.field}", p.message) for p in error.problems]) from error
    if batch.webhook is not None:
        check_receiver(services.guard, batch.webhook.url, field="batch.on_complete.webhook.url")
    store_files(services.store, batch.jobs.files)
    return batch


def to_change(row: ScheduleRow, patch: SchedulePatch, batch: NewBatch | None) -> NewSchedule:
    """Lay what is to change over what there is. batch: that of the patch, checked."""

    def pick(name: str) -> Any:
        wanted = getattr(patch, name)
        return getattr(row, name) if wanted is None else wanted

    return NewSchedule(
        name=pick("name"),
        cron=pick("cron"),
        timezone=pick("timezone"),
        template=row.template if patch.batch is None else patch.batch,
        batch=from_template(row.batch) if batch is None else batch,
        catch_up=pick("catch_up"),
        overlap=pick("overlap"),
        is_paused=row.paused_at is not None,
    )


def to_schedule_view(row: ScheduleRow) -> ScheduleView:
    """Show a schedule."""
    return ScheduleView.model_validate(
        {
            "id": row.id,
            "name": row.name,
            "cron": row.cron,
            "timezone": row.timezone,
            "batch": row.template,
            "catch_up": row.catch_up,
            "overlap": row.overlap,
            "paused_at": row.paused_at,
            "next_fires": next_fires(row, count=_SHOWN_FIRES),
            "created_at": row.created_at,
            "updated_at": row.updated_at,
        }
    )


def to_fire_view(row: FireRow) -> FireView:
    """Show what became of one time."""
    return FireView.model_validate(
        {
            "fire_at": row.fire_at,
            "outcome": row.outcome,
            "batch_id": row.batch_id,
            "detail": row.detail,
            "fired_at": row.fired_at,
        }
    )
