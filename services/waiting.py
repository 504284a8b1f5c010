"""Why a queued trial waits, where it is not merely for its turn. Pure: no database, no clock."""

from collections.abc import Mapping, Sequence
from enum import StrEnum

from repositories.nodes import NodeCapacity
from repositories.quotas import QuotaStanding
from repositories.trials_read import TrialRow

__all__ = ["WaitReason", "reason_to_wait"]


class WaitReason(StrEnum):
    """What has to change before the trial can start; shown as `state_reason`, stored nowhere."""

    NO_NODE = "no_node"
    NO_RUNTIME = "no_node_offers_runtime"
    NO_LABELS = "no_node_has_labels"
    TOO_LARGE = "too_large_for_any_node"
    PAUSED = "paused"
    QUEUE = "queue"
    QUOTA = "quota"
    CONCURRENCY = "concurrency"


def reason_to_wait(
    trial: TrialRow,
    nodes: Sequence[NodeCapacity],
    standing: QuotaStanding | None = None,
    stopped_queues: Mapping[str, bool] | None = None,
) -> WaitReason | None:
    """Say why a queued trial could not start even if it were its turn. None: it could, or it is not queued.

    nodes: all that take work now. standing: of its tenant. stopped_queues: name to whether it is paused, else full.
    """
    if trial.state != "queued":
        return None
    never = _no_node(trial, nodes)
    if never is not None:
        return never
    queue_is_paused = (stopped_queues or {}).get(trial.queue)
    if queue_is_paused or (standing is not None and standing.is_paused):
        return WaitReason.PAUSED
    if standing is not None and not _has_quota(trial, standing):
        return WaitReason.QUOTA
    if trial.is_before_gate:
        return WaitReason.CONCURRENCY
    return None if queue_is_paused is None else WaitReason.QUEUE


def _no_node(trial: TrialRow, nodes: Sequence[NodeCapacity]) -> WaitReason | None:
    """Say what is missing on all nodes, even if they were empty."""
    if not nodes:
        return WaitReason.NO_NODE
    offering = [node for node in nodes if trial.runtime in node.runtimes]
    if not offering:
        return WaitReason.NO_RUNTIME
    labelled = [node for node in offering if trial.node_labels.items() <= node.labels.items()]
    if not labelled:
        return WaitReason.NO_LABELS
    has_room = any(
        trial.cpu_millicores <= node.cpu_millicores
        and trial.memory_bytes <= node.memory_bytes
        and trial.gpu <= node.gpu
        for node in labelled
    )
    return None if has_room else WaitReason.TOO_LARGE


def _has_quota(trial: TrialRow, standing: QuotaStanding) -> bool:
    """Whether all quotas of the tenant leave room for one such trial."""
    amounts = (
        (1.0, standing.starts_left),
        (trial.cpu_millicores, standing.cpu_left),
        (trial.memory_bytes, standing.memory_left),
        (trial.gpu, standing.gpu_left),
        (trial.max_cpu_seconds, standing.budget_left),
    )
    return all(left is None or not wanted or wanted <= left for wanted, left in amounts)
