"""Which of the chosen trials goes to which node. Pure: no database, no clock."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from uuid import UUID

from repositories.fair_share import NodeRoom, QueuedTrial, WaitingShape

__all__ = ["could_hold", "has_room", "place"]


def place(
    trials: Sequence[QueuedTrial],
    nodes: Sequence[NodeRoom],
    *,
    full: Sequence[NodeRoom] = (),
    avoid_seconds: float = 0.0,
) -> list[tuple[UUID, UUID]]:
    """Give (trial id, node id) pairs, in the order of the trials; a trial that fits nowhere is left out.

    Best fit: a node that has a free member of a warm pool which will do, else one that has the image; of those the one
    on which the scarcest resource is left fullest, so that large free pieces stay whole; ties go to the node with more
    free slots, then by id. A node that a trial avoids is taken only if no other one, of those that are `full` now
    neither, could ever hold the trial, or the trial has waited for `avoid_seconds`.
    Never gives a node more than its free slots, cpu, memory or GPUs.
    """
    rooms = {node.id: node for node in nodes}
    placed = []
    for trial in trials:
        fitting = [node for node in rooms.values() if has_room(trial, node)]
        if trial.avoided:
            fitting = _without_avoided(trial, [*nodes, *full], fitting, avoid_seconds)
        best = min(fitting, key=partial(_rank, trial), default=None)
        if best is None:
            continue
        placed.append((trial.id, best.id))
        rooms[best.id] = replace(
            best,
            free_slots=best.free_slots - 1,
            free_cpu_millicores=best.free_cpu_millicores - trial.cpu_millicores,
            free_memory_bytes=best.free_memory_bytes - trial.memory_bytes,
            free_gpu=best.free_gpu - trial.gpu,
            spares=_without_one(best.spares, trial),
        )
    return placed


def could_hold(wanted: QueuedTrial | WaitingShape, node: NodeRoom) -> bool:
    """Whether the trial would fit on the node if nothing else ran there."""
    return (
        _is_suited(wanted, node)
        and wanted.cpu_millicores <= node.cpu_millicores
        and wanted.memory_bytes <= node.memory_bytes
        and wanted.gpu <= node.gpu
    )


def has_room(wanted: QueuedTrial | WaitingShape, node: NodeRoom) -> bool:
    """Whether the trial fits on the node now."""
    return (
        node.free_slots > 0
        and _is_suited(wanted, node)
        and wanted.cpu_millicores <= node.free_cpu_millicores
        and wanted.memory_bytes <= node.free_memory_bytes
        and wanted.gpu <= node.free_gpu
    )


def _is_suited(wanted: QueuedTrial | WaitingShape, node: NodeRoom) -> bool:
    return wanted.runtime in node.runtimes and wanted.node_labels.items() <= node.labels.items()


def _without_avoided(
    trial: QueuedTrial, nodes: Sequence[NodeRoom], fitting: list[NodeRoom], avoid_seconds: float
) -> list[NodeRoom]:
    others = [node for node in fitting if node.id not in trial.avoided]
    has_hope = any(node.id not in trial.avoided and could_hold(trial, node) for node in nodes)
    return others if others or (has_hope and trial.waited_seconds < avoid_seconds) else fitting


def _kind(trial: QueuedTrial) -> tuple[int, str, str]:
    return trial.tenant_id, trial.runtime, trial.sandbox_key or ""


def _without_one(
    spares: Mapping[tuple[int, str, str], int], trial: QueuedTrial
) -> Mapping[tuple[int, str, str], int]:
    left = spares.get(_kind(trial), 0)
    return {**spares, _kind(trial): left - 1} if left else spares


def _rank(trial: QueuedTrial, node: NodeRoom) -> tuple[bool, bool, float, int, UUID]:
    cpu_left = (node.free_cpu_millicores - trial.cpu_millicores) / node.cpu_millicores
    memory_left = (node.free_memory_bytes - trial.memory_bytes) / node.memory_bytes
    gpu_left = (node.free_gpu - trial.gpu) / node.gpu if node.gpu else 1.0
    # A trial without GPUs goes where there are none or few left: GPUs are for those that need them.
    left = (
        min(cpu_left, memory_left, gpu_left)
        if trial.gpu
        else min(cpu_left, memory_left) + gpu_left * bool(node.gpu)
    )
    has_spare = node.spares.get(_kind(trial), 0) > 0
    return not has_spare, trial.image not in node.images, left, -node.free_slots, node.id
