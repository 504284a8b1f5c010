"""Why a queued trial waits, where more patience will not help. Pure: no database, no clock."""

from collections.abc import Sequence
from enum import StrEnum

from repositories.nodes import NodeCapacity
from repositories.trials_read import TrialRow

__all__ = ["WaitReason", "reason_to_wait"]


class WaitReason(StrEnum):
    """What has to change before the trial can start; shown as `state_reason`, stored nowhere."""

    NO_NODE = "no_node"
    NO_RUNTIME = "no_node_offers_runtime"
    TOO_LARGE = "too_large_for_any_node"


def reason_to_wait(trial: TrialRow, nodes: Sequence[NodeCapacity]) -> WaitReason | None:
    """Say why no node could take a queued trial even if it were empty. None: one could, or it is not queued.

    nodes: all that take work now.
    """
    if trial.state != "queued":
        return None
    if not nodes:
        return WaitReason.NO_NODE
    offering = [node for node in nodes if trial.runtime in node.runtimes]
    if not offering:
        return WaitReason.NO_RUNTIME
    has_room = any(
        trial.cpu_millicores <= node.cpu_millicores and trial.memory_bytes <= node.memory_bytes
        for node in offering
    )
    return None if has_room else WaitReason.TOO_LARGE
