"""Why a queued trial waits, where it is not merely for its turn. Pure: no database, no clock."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from repositories.nodes import NodeCapacity
from repositories.quotas import QuotaStanding
from repositories.trials_read import TrialRow

__all__ = [
    "Demand",
    "Quota",
    "WaitReason",
    "lack_of_nodes",
    "lacking_quota",
    "reason_to_wait",
    "suited_nodes",
]


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


class Quota(StrEnum):
    """A quota of a tenant, by the name under which operators set it."""

    RUNNING = "max_running"
    RATE = "rate_per_second"
    CPU = "max_cpu_millicores"
    MEMORY = "max_memory_bytes"
    GPU = "max_gpu"
    BUDGET = "budget_cpu_seconds"


@dataclass(frozen=True, slots=True)
class Demand:
    """What a node has to have for each trial of a job. queue_seconds: so long they wait for one."""

    runtime: str
    cpu_millicores: int
    memory_bytes: int
    gpu: int
    node_labels: Mapping[str, str]
    queue_seconds: float

    @property
    def key(self) -> object:
        """Equal for equal demands."""
        rest = (self.cpu_millicores, self.memory_bytes, self.gpu, self.queue_seconds)
        return self.runtime, rest, frozenset(self.node_labels.items())


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
    never = lack_of_nodes(trial, nodes)
    if never is not None:
        return never
    queue_is_paused = (stopped_queues or {}).get(trial.queue)
    if queue_is_paused or (standing is not None and standing.is_paused):
        return WaitReason.PAUSED
    if standing is not None and lacking_quota(trial, standing) is not None:
        return WaitReason.QUOTA
    if trial.is_before_gate:
        return WaitReason.CONCURRENCY
    return None if queue_is_paused is None else WaitReason.QUEUE


def lack_of_nodes(wanted: TrialRow | Demand, nodes: Sequence[NodeCapacity]) -> WaitReason | None:
    """Say what is missing on all nodes, even if they were empty."""
    if not nodes:
        return WaitReason.NO_NODE
    offering = [node for node in nodes if wanted.runtime in node.runtimes]
    if not offering:
        return WaitReason.NO_RUNTIME
    suited = suited_nodes(wanted, nodes)
    if not suited:
        return WaitReason.NO_LABELS
    has_room = any(
        wanted.cpu_millicores <= node.cpu_millicores
        and wanted.memory_bytes <= node.memory_bytes
        and wanted.gpu <= node.gpu
        for node in suited
    )
    return None if has_room else WaitReason.TOO_LARGE


def suited_nodes(wanted: TrialRow | Demand, nodes: Sequence[NodeCapacity]) -> list[NodeCapacity]:
    """Give the nodes with the runtime and the labels, whatever their size."""
    return [
        node
        for node in nodes
        if wanted.runtime in node.runtimes and wanted.node_labels.items() <= node.labels.items()
    ]


def lacking_quota(trial: TrialRow, standing: QuotaStanding) -> tuple[Quota, float, float] | None:
    """Give the first quota that leaves no room for one such trial: (quota, what the trial takes, what is left)."""
    amounts = (
        (Quota.RUNNING, 1.0, standing.running_left),
        # Also what `max_running` leaves: of the two it is the rate where there is room to run.
        (Quota.RATE, 1.0, standing.starts_left),
        (Quota.CPU, trial.cpu_millicores, standing.cpu_left),
        (Quota.MEMORY, trial.memory_bytes, standing.memory_left),
        (Quota.GPU, trial.gpu, standing.gpu_left),
        (Quota.BUDGET, trial.max_cpu_seconds, standing.budget_left),
    )
    for quota, wanted, left in amounts:
        if left is not None and wanted > left and wanted:
            return quota, wanted, left
    return None
