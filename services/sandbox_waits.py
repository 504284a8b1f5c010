"""Says in words what a live sandbox waits for that no node has been given yet."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from sqlalchemy import Connection

from models.live_sandboxes import WireState
from repositories.live_sandboxes import SandboxRow
from repositories.nodes import NodeCapacity, NodeReadRepository
from repositories.quotas import QuotaRepository, QuotaStanding
from repositories.trials_read import TrialReadRepository, TrialRow
from services.waiting import Quota, WaitReason, lacking_quota, reason_to_wait, suited_nodes

__all__ = ["SandboxWaits", "wait_in_words"]


class SandboxWaits:
    """Of one tenant. Asks the database nothing where nobody waits."""

    def __init__(self, connection: Connection, tenant_id: int) -> None:
        """connection: the caller begins and commits."""
        self._tenant_id = tenant_id
        self._trials = TrialReadRepository(connection, tenant_id)
        self._nodes = NodeReadRepository(connection)
        self._quotas = QuotaRepository(connection)

    def told(self, rows: Sequence[SandboxRow]) -> list[SandboxRow]:
        """Give the rows in their order; those that wait say in their message for what."""
        pending = [row.id for row in rows if row.state == WireState.PENDING and row.node_id is None]
        causes = self._causes([trial for trial in self._find(pending) if trial.state == "queued"])
        return [_with_cause(row, causes.get(row.id)) for row in rows]

    def missed(self, ids: Sequence[UUID]) -> dict[UUID, str]:
        """Say of those that were not started in time what would keep them waiting now, by id."""
        return self._causes([replace(trial, state="queued") for trial in self._find(ids)])

    def _find(self, ids: Sequence[UUID]) -> list[TrialRow]:
        return self._trials.many(ids) if ids else []

    def _causes(self, trials: Sequence[TrialRow]) -> dict[UUID, str]:
        if not trials:
            return {}
        nodes, stopped = self._nodes.capacities(), self._quotas.stopped_queues()
        standing = self._quotas.standing(self._tenant_id)
        return {trial.id: wait_in_words(trial, nodes, standing, stopped) for trial in trials}


def wait_in_words(
    trial: TrialRow,
    nodes: Sequence[NodeCapacity],
    standing: QuotaStanding | None,
    stopped_queues: Mapping[str, bool],
) -> str:
    """Say what has to change before the queued trial of a sandbox starts. Arguments: as of `reason_to_wait`."""
    reason = reason_to_wait(trial, nodes, standing, stopped_queues)
    if reason is WaitReason.QUOTA and standing is not None:
        return _quota(trial, standing)
    is_paused = standing is not None and standing.is_paused
    labels = ", ".join(f"{name}={trial.node_labels[name]}" for name in sorted(trial.node_labels))
    words = {
        WaitReason.NO_NODE: "no node takes work now",
        WaitReason.NO_RUNTIME: f"no node that takes work offers the runtime {trial.runtime}",
        WaitReason.NO_LABELS: f"no node that takes work has what it asks for: {labels}",
        WaitReason.TOO_LARGE: f"it is larger than any node that takes work: {_size(trial)}",
        WaitReason.PAUSED: "your tenant is paused" if is_paused else f"the queue {trial.queue} is paused",
        WaitReason.QUEUE: f"the queue {trial.queue} runs as many as it may",
    }
    count = len(suited_nodes(trial, nodes))
    busy = f"nodes that could take it (there are {count}) have no room, or others are before it"
    return busy if reason is None else words.get(reason, busy)


def _quota(trial: TrialRow, standing: QuotaStanding) -> str:
    lacking = lacking_quota(trial, standing)
    if lacking is None:
        return "a quota of your tenant is full"
    quota, wanted, left = lacking
    if quota is Quota.RUNNING and standing.max_running is not None:
        running = standing.max_running - (standing.running_left or 0)
        return f"your tenant's quota {quota} is full: {running:.0f} of {standing.max_running:.0f} run"
    if quota in (Quota.RUNNING, Quota.RATE):
        return f"your tenant's quota {quota} allows no start at this moment"
    return f"your tenant's quota {quota} has {max(left, 0):.0f} left, and this one takes {wanted:.0f}"


def _size(trial: TrialRow) -> str:
    return f"{trial.cpu_millicores} millicores, {trial.memory_bytes} bytes of memory and {trial.gpu} GPUs"


def _with_cause(row: SandboxRow, cause: str | None) -> SandboxRow:
    if cause is None:
        return row
    # What became of an earlier start stays to be read.
    before = "" if row.state_message is None else f"{row.state_message}; "
    return replace(row, state_message=f"{before}waits: {cause}")
