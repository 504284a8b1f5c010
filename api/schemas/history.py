"""Archived batches and trials on the wire."""

from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import Field

from api.schemas.base import ResponseSchema
from api.schemas.trials import FailureView
from repositories.history import ArchivedBatch, ArchivedTrial

__all__ = ["HistoryBatchView", "HistoryTrialView", "to_history_batch", "to_history_trial"]


class HistoryBatchView(ResponseSchema):
    """What is left of a batch: no jobs, logs and files."""

    id: UUID
    name: str | None
    labels: dict[str, str]
    trials: int
    outcomes: dict[str, int] = Field(description="How many trials ended how.")
    created_at: datetime
    finished_at: datetime
    archived_at: datetime


class HistoryTrialView(ResponseSchema):
    """What is left of a trial."""

    id: UUID
    batch_id: UUID
    job_key: str
    labels: dict[str, str]
    index: int
    outcome: str
    failure: FailureView | None
    rewards: dict[str, Any] | None
    attempts: int
    started_at: datetime | None
    finished_at: datetime


def to_history_batch(row: ArchivedBatch) -> HistoryBatchView:
    """Show an archived batch."""
    batch = row.batch
    return HistoryBatchView.model_validate(
        {
            "id": row.id,
            "name": batch["name"],
            "labels": batch["labels"],
            "trials": batch["trial_count"],
            "outcomes": row.outcomes,
            "created_at": batch["created_at"],
            "finished_at": batch["finished_at"],
            "archived_at": row.archived_at,
        }
    )


def to_history_trial(row: ArchivedTrial) -> HistoryTrialView:
    """Show an archived trial."""
    kept = ("job_key", "labels", "index", "outcome", "failure", "rewards", "started_at", "finished_at")
    values = {name: row.trial[name] for name in kept}
    return HistoryTrialView.model_validate(
        {**values, "id": row.id, "batch_id": row.batch_id, "attempts": len(row.attempts)}
    )
