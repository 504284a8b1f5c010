"""Ends what nobody else ends: sandboxes that expired or whose trial has ended, snapshots that no node will make."""

from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

from sqlalchemy import Connection, Engine

from core.logging import get_logger
from models.states import Outcome
from repositories.session_keeping import OrphanedSandbox, SessionKeepingRepository
from repositories.snapshot_keeping import SnapshotKeepingRepository
from repositories.trial_ending import TrialEndingRepository
from services.early_ends import session_end
from services.sandbox_waits import SandboxWaits

__all__ = ["SessionSweeper"]

log = get_logger(__name__)

_ACTOR = "scheduler"
_SNAPSHOT_SECONDS = 30.0
"""A node that is there settles a snapshot within a second of its sandbox's end."""
_QUEUE_TIMEOUT = "queue_timeout"
_REASONS = {
    _QUEUE_TIMEOUT: "SANDBOX_NOT_SCHEDULED",
    "node_lost": "NODE_LOST",
    "orphaned": "NODE_LOST",
    "poison": "NODE_LOST",
    "start_timeout": "SANDBOX_START_TIMEOUT",
    "worker_stuck": "NODE_LOST",
}
_MESSAGES = {
    "node_lost": "the node that ran it was lost, and what was in it with it",
}


class SessionSweeper:
    """One in the installation is enough, two do no harm."""

    def __init__(
        self,
        engine: Engine,
        *,
        tell_nodes: Callable[[Mapping[UUID, Sequence[UUID]]], None],
        tell: Callable[[UUID], None],
    ) -> None:
        """tell_nodes: called with what is to be ended, by node. tell: called with each sandbox that has changed."""
        self._engine = engine
        self._tell_nodes = tell_nodes
        self._tell = tell

    def run(self) -> int:
        """Look once; gives how many were ended or begun to be ended."""
        return self._expire() + self._end_orphaned() + self._give_up_snapshots()

    def _expire(self) -> int:
        with self._engine.begin() as connection:
            keeping = SessionKeepingRepository(connection)
            ids = [one.trial_id for one in keeping.expired()]
            if not ids:
                return 0
            keeping.expire(ids, actor=_ACTOR)
            met = TrialEndingRepository(connection).end_trials(ids, session_end("SANDBOX_EXPIRED"))
        nodes: dict[UUID, list[UUID]] = {}
        for trial in met:
            if trial.node_id is not None:
                nodes.setdefault(trial.node_id, []).append(trial.trial_id)
        self._tell_nodes(nodes)
        log.info("sandboxes_expired", count=len(ids))
        return len(ids)

    def _end_orphaned(self) -> int:
        with self._engine.begin() as connection:
            keeping = SessionKeepingRepository(connection)
            orphaned = keeping.orphaned()
            missed = _missed(connection, [one for one in orphaned if one.code == _QUEUE_TIMEOUT])
            for one in orphaned:
                code = one.code or one.state_reason or "unknown"
                message = missed.get(one.trial_id, _MESSAGES.get(code, one.message))
                is_wanted = one.outcome == Outcome.CANCELLED
                keeping.end(
                    one.trial_id,
                    reason="SANDBOX_DELETED"
                    if is_wanted
                    else _REASONS.get(code, "DOCKER::SANDBOX_START_FAILED"),
                    message=None if is_wanted else message,
                    actor=_ACTOR,
                    is_wanted=is_wanted,
                )
        for one in orphaned:
            self._tell(one.trial_id)
        return len(orphaned)

    def _give_up_snapshots(self) -> int:
        """Fail snapshots that nobody will make: the sandbox is over, and its node has not said a word since."""
        with self._engine.begin() as connection:
            keeping = SnapshotKeepingRepository(connection)
            lost = keeping.lost(after_seconds=_SNAPSHOT_SECONDS)
            for snapshot_id in lost:
                keeping.mark_failed(
                    snapshot_id,
                    reason="snapshot_runtime_timeout",
                    message="its sandbox is over, and its node was lost before the snapshot was made",
                    actor=_ACTOR,
                )
        for snapshot_id in lost:
            self._tell(snapshot_id)
        return len(lost)


def _missed(connection: Connection, orphaned: Sequence[OrphanedSandbox]) -> dict[UUID, str]:
    """Say of those that were not started in time what they waited for, by id."""
    tenants: dict[int, list[UUID]] = {}
    for one in orphaned:
        tenants.setdefault(one.tenant_id, []).append(one.trial_id)
    return {
        trial_id: f"not started in time: {cause}"
        for tenant_id, ids in tenants.items()
        for trial_id, cause in SandboxWaits(connection, tenant_id).missed(ids).items()
    }
