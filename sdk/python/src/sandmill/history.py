"""What is left of archived batches and their trials. Times are aware."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sandmill.record import Record
from sandmill.trials import Failure

__all__ = ["ArchivedBatch", "ArchivedTrial"]


@dataclass(frozen=True, slots=True)
class ArchivedBatch:
    """A batch whose other routes answer with ArchivedError. outcomes: how many trials ended how."""

    id: str
    name: str | None
    labels: Mapping[str, str]
    trials: int
    outcomes: Mapping[str, int]
    created_at: datetime
    finished_at: datetime
    archived_at: datetime

    @classmethod
    def from_json(cls, value: Any) -> "ArchivedBatch":
        """Read the wire form."""
        found = Record(value, "archived batch")
        return cls(
            id=found.text("id"),
            name=found.text_or_none("name"),
            labels=found.texts("labels"),
            trials=found.integer("trials"),
            outcomes=found.counts("outcomes"),
            created_at=found.time("created_at"),
            finished_at=found.time("finished_at"),
            archived_at=found.time("archived_at"),
        )


@dataclass(frozen=True, slots=True)
class ArchivedTrial:
    """A trial without its attempts, of which there were so many."""

    id: str
    batch_id: str
    job_key: str
    labels: Mapping[str, str]
    index: int
    outcome: str
    failure: Failure | None
    rewards: Mapping[str, float]
    attempts: int
    started_at: datetime | None
    finished_at: datetime

    @classmethod
    def from_json(cls, value: Any) -> "ArchivedTrial":
        """Read the wire form."""
        found = Record(value, "archived trial")
        return cls(
            id=found.text("id"),
            batch_id=found.text("batch_id"),
            job_key=found.text("job_key"),
            labels=found.texts("labels"),
            index=found.integer("index"),
            outcome=found.text("outcome"),
            failure=found.one_or_none("failure", Failure.from_json),
            rewards=found.numbers("rewards"),
            attempts=found.integer("attempts"),
            started_at=found.time_or_none("started_at"),
            finished_at=found.time("finished_at"),
        )
