"""States of trials, attempts, batches and sandboxes, and the moves between them.

The migrations copy TRANSITIONS into the table `state_transitions`, which a trigger reads: a bug in one process
cannot corrupt the machine. Pictures and who may write which move: `docs/states.md`.
"""

from enum import StrEnum

__all__ = [
    "BEFORE_THE_GATE",
    "BEHIND_THE_GATE",
    "LIVE_ATTEMPT_STATES",
    "READY",
    "TRANSITIONS",
    "WAITING_TRIAL_STATES",
    "AttemptState",
    "BatchState",
    "NeedOutcome",
    "Outcome",
    "SandboxState",
    "TrialState",
    "sql_list",
]


class TrialState(StrEnum):
    """Where a trial is. `finished` is the only end; how it ended is its outcome."""

    BLOCKED = "blocked"
    PAUSED = "paused"
    QUEUED = "queued"
    RUNNING = "running"
    RETRY_WAIT = "retry_wait"
    CANCELLING = "cancelling"
    FINISHED = "finished"


class AttemptState(StrEnum):
    """Where one physical try is. The last three are ends."""

    DISPATCHED = "dispatched"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    COLLECTING = "collecting"
    FINISHED = "finished"
    LOST = "lost"
    NEVER_STARTED = "never_started"


class BatchState(StrEnum):
    """A batch runs until it takes no more jobs and its last trial is finished; a retry lets it run again."""

    RUNNING = "running"
    FINISHED = "finished"


class SandboxState(StrEnum):
    """What the database knows of a sandbox; the node is asked for the rest."""

    CREATING = "creating"
    RUNNING = "running"
    REMOVED = "removed"


class Outcome(StrEnum):
    """How a trial ended. `error` means that there is no verdict, and is neither 0 nor 1."""

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


WAITING_TRIAL_STATES = (TrialState.BLOCKED, TrialState.QUEUED, TrialState.RETRY_WAIT)
"""Accepted, not finished, and without a live attempt: the API may end it, and its deadlines are the scheduler's."""


class NeedOutcome(StrEnum):
    """How a needed job has to end. `finished` is any end."""

    PASSED = "passed"
    FAILED = "failed"
    FINISHED = "finished"


LIVE_ATTEMPT_STATES = (
    AttemptState.DISPATCHED,
    AttemptState.STARTING,
    AttemptState.RUNNING,
    AttemptState.STOPPING,
    AttemptState.COLLECTING,
)

READY = "state = 'queued' AND (cap_labels IS NULL OR is_admitted)"
"""Condition on `trials` for what may be dispatched: word for word that of `trials_ready_idx`."""

BEFORE_THE_GATE = (
    "cap_labels IS NOT NULL AND ((state = 'blocked' AND state_reason = 'concurrency')"
    " OR (state = 'queued' AND NOT is_admitted))"
)
"""Condition on `trials` for what waits for the caps of its batch: that of `trials_before_gate_idx`."""

BEHIND_THE_GATE = (
    "cap_labels IS NOT NULL AND (state IN ('running', 'cancelling') OR (state = 'queued' AND is_admitted))"
)
"""Condition on `trials` for what counts against the caps of its batch: that of `trials_behind_gate_idx`."""

_NEW = ""  # the state before the insert

TRANSITIONS: dict[str, tuple[tuple[str, str], ...]] = {
    "trial": (
        (_NEW, TrialState.BLOCKED),
        (_NEW, TrialState.PAUSED),
        (_NEW, TrialState.QUEUED),
        # A trial of the tail that was cancelled or skipped before it had a row.
        (_NEW, TrialState.FINISHED),
        (TrialState.BLOCKED, TrialState.PAUSED),
        (TrialState.BLOCKED, TrialState.QUEUED),
        (TrialState.BLOCKED, TrialState.FINISHED),
        (TrialState.PAUSED, TrialState.BLOCKED),
        (TrialState.PAUSED, TrialState.QUEUED),
        (TrialState.PAUSED, TrialState.FINISHED),
        (TrialState.QUEUED, TrialState.PAUSED),
        (TrialState.QUEUED, TrialState.RUNNING),
        (TrialState.QUEUED, TrialState.FINISHED),
        (TrialState.RUNNING, TrialState.PAUSED),
        (TrialState.RUNNING, TrialState.QUEUED),
        (TrialState.RUNNING, TrialState.RETRY_WAIT),
        (TrialState.RUNNING, TrialState.CANCELLING),
        (TrialState.RUNNING, TrialState.FINISHED),
        (TrialState.RETRY_WAIT, TrialState.PAUSED),
        (TrialState.RETRY_WAIT, TrialState.QUEUED),
        (TrialState.RETRY_WAIT, TrialState.FINISHED),
        (TrialState.CANCELLING, TrialState.FINISHED),
    ),
    "attempt": (
        (_NEW, AttemptState.DISPATCHED),
        (AttemptState.DISPATCHED, AttemptState.STARTING),
        (AttemptState.DISPATCHED, AttemptState.NEVER_STARTED),
        (AttemptState.STARTING, AttemptState.RUNNING),
        (AttemptState.STARTING, AttemptState.FINISHED),
        (AttemptState.STARTING, AttemptState.LOST),
        (AttemptState.RUNNING, AttemptState.STOPPING),
        (AttemptState.RUNNING, AttemptState.COLLECTING),
        (AttemptState.RUNNING, AttemptState.FINISHED),
        (AttemptState.RUNNING, AttemptState.LOST),
        (AttemptState.STOPPING, AttemptState.COLLECTING),
        (AttemptState.STOPPING, AttemptState.FINISHED),
        (AttemptState.STOPPING, AttemptState.LOST),
        (AttemptState.COLLECTING, AttemptState.FINISHED),
        (AttemptState.COLLECTING, AttemptState.LOST),
    ),
}


def sql_list(states: tuple[StrEnum, ...]) -> str:
    """Write states as the inside of a SQL `IN (...)`; only for the constants of this module."""
    return ", ".join(f"'{state.value}'" for state in states)
