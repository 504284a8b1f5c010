"""Trials that the infrastructure could not bring to a verdict, as they come back. Times are aware."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sandmill.record import Record
from sandmill.trials import Failure

__all__ = ["DeadLetter", "Replay"]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A trial that ended in `error` by a failure of class infra.

    state: open, replayed or discarded. code: of the failure, poison if node after node was lost under it. nodes_lost:
    how many different ones. replayed_as: the trial that ran it again. job_key: None once the job is archived.
    """

    trial_id: str
    batch_id: str
    job_id: str
    job_key: str | None
    state: str
    code: str
    failure: Failure
    attempts: int
    nodes_lost: int
    created_at: datetime
    replayed_as: str | None
    replayed_at: datetime | None
    discarded_at: datetime | None

    @classmethod
    def from_json(cls, value: Any) -> "DeadLetter":
        """Read the wire form."""
        found = Record(value, "dead letter")
        return cls(
            trial_id=found.text("trial_id"),
            batch_id=found.text("batch_id"),
            job_id=found.text("job_id"),
            job_key=found.text_or_none("job_key"),
            state=found.text("state"),
            code=found.text("code"),
            failure=found.one("failure", Failure.from_json),
            attempts=found.integer("attempts"),
            nodes_lost=found.integer("nodes_lost"),
            created_at=found.time("created_at"),
            replayed_as=found.text_or_none("replayed_as"),
            replayed_at=found.time_or_none("replayed_at"),
            discarded_at=found.time_or_none("discarded_at"),
        )


@dataclass(frozen=True, slots=True)
class Replay:
    """The trial that runs a dead one again, in a batch of its own. job_id, batch_id: None once they are archived."""

    trial_id: str
    job_id: str | None
    batch_id: str | None
    replay_of: str

    @classmethod
    def from_json(cls, value: Any) -> "Replay":
        """Read the wire form."""
        found = Record(value, "replay")
        return cls(
            trial_id=found.text("trial_id"),
            job_id=found.text_or_none("job_id"),
            batch_id=found.text_or_none("batch_id"),
            replay_of=found.text("replay_of"),
        )
