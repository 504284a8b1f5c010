"""Batches and jobs as they come back. Times are aware."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sandmill.record import Record

__all__ = [
    "BatchInfo",
    "Cancellation",
    "JobInfo",
    "PauseResult",
    "TrialCounts",
]


@dataclass(frozen=True, slots=True)
class TrialCounts:
    """How many trials are where, and how the finished ones ended. Names that are absent count zero."""

    total: int
    by_state: Mapping[str, int]
    by_outcome: Mapping[str, int]

    @property
    def finished(self) -> int:
        """Trials that have ended."""
        return self.by_state.get("finished", 0)

    @classmethod
    def from_json(cls, value: Any) -> "TrialCounts":
        """Read the wire form."""
        found = Record(value, "count of trials")
        return cls(found.integer("total"), found.counts("by_state"), found.counts("by_outcome"))


@dataclass(frozen=True, slots=True)
class BatchInfo:
    """A batch. state: running or finished. jobs: how many. implicit: made for a lone job.

    open: takes more jobs. stopped: the outcome by which its `stop_when` ended it. warnings: of a submission, its jobs
    that no node could start now, however empty; they wait for one.
    """

    id: str
    name: str | None
    labels: Mapping[str, str]
    priority: int
    state: str
    implicit: bool
    open: bool
    paused: bool
    cancel_requested: bool
    stopped: str | None
    jobs: int
    trials: TrialCounts
    created_at: datetime
    finished_at: datetime | None
    warnings: Sequence[str] = ()

    @property
    def is_finished(self) -> bool:
        """Whether the last trial has ended."""
        return self.state == "finished"

    @classmethod
    def from_json(cls, value: Any) -> "BatchInfo":
        """Read the wire form."""
        found = Record(value, "batch")
        return cls(
            id=found.text("id"),
            name=found.text_or_none("name"),
            labels=found.texts("labels"),
            priority=found.integer("priority"),
            state=found.text("state"),
            implicit=found.flag("implicit"),
            open=found.flag_or_false("open"),
            paused=found.flag_or_false("paused"),
            stopped=found.text_or_none("stopped"),
            cancel_requested=found.flag("cancel_requested"),
            jobs=found.integer("jobs"),
            trials=found.one("trials", TrialCounts.from_json),
            created_at=found.time("created_at"),
            finished_at=found.time_or_none("finished_at"),
            warnings=_warnings(value),
        )


@dataclass(frozen=True, slots=True)
class JobInfo:
    """A job. digest: equal for equal work. spec: all defaults filled in; empty in lists. warnings: see BatchInfo."""

    id: str
    batch_id: str
    key: str
    kind: str
    digest: str
    labels: Mapping[str, str]
    trials: TrialCounts
    created_at: datetime
    spec: Mapping[str, Any]
    warnings: Sequence[str] = ()

    @classmethod
    def from_json(cls, value: Any) -> "JobInfo":
        """Read the wire form."""
        found = Record(value, "job")
        return cls(
            id=found.text("id"),
            batch_id=found.text("batch_id"),
            key=found.text("key"),
            kind=found.text("kind"),
            digest=found.text("digest"),
            labels=found.texts("labels"),
            trials=found.one("trials", TrialCounts.from_json),
            created_at=found.time("created_at"),
            spec=found.json_object("spec"),
            warnings=_warnings(value),
        )


def _warnings(value: Any) -> tuple[str, ...]:
    """Read what a submission was warned of; nothing where nothing is told, as by a server of an earlier release."""
    found = (Record(item, "warning") for item in value.get("warnings") or ())
    return tuple(f"{item.text('field')}: {item.text('message')}" for item in found)


@dataclass(frozen=True, slots=True)
class Cancellation:
    """cancelled: trials that had not started and are finished now. cancelling: running ones that were told to stop."""

    cancelled: int
    cancelling: int

    @classmethod
    def from_json(cls, value: Any) -> "Cancellation":
        """Read the wire form."""
        found = Record(value, "cancellation")
        return cls(found.integer("cancelled"), found.integer("cancelling"))


@dataclass(frozen=True, slots=True)
class PauseResult:
    """paused: trials that will not start until they are resumed. running: those that run on."""

    paused: int
    running: int

    @classmethod
    def from_json(cls, value: Any) -> "PauseResult":
        """Read the wire form."""
        found = Record(value, "pause")
        return cls(found.integer("paused"), found.integer("running"))
