"""Which of the chosen trials goes to which node. Pure: no database, no clock."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from uuid import UUID

from repositories.dispatch import NodeRoom, QueuedTrial

__all__ = ["place"]


def place(trials: Sequence[QueuedTrial], nodes: Sequence[NodeRoom]) -> list[tuple[UUID, UUID]]:
    """Give (trial id, node id) pairs, in the order of the trials; a trial that fits nowhere is left out.

    Best fit: the node on which the scarcer resource is left fullest, so that large free pieces stay whole; ties go
    to the node with more free slots, then by id. Never gives a node more than its free slots, cpu or memory.
    """
    rooms = {node.id: node for node in nodes}
    placed = []
    for trial in trials:
        fitting = [node for node in rooms.values() if _fits(trial, node)]
        best = min(fitting, key=partial(_leftover, trial), default=None)
        if best is None:
            continue
        placed.append((trial.id, best.id))
        rooms[best.id] = replace(
            best,
            free_slots=best.free_slots - 1,
            free_cpu_millicores=best.free_cpu_millicores - trial.cpu_millicores,
            free_memory_bytes=best.free_memory_bytes - trial.memory_bytes,
        )
    return placed


def _fits(trial: QueuedTrial, node: NodeRoom) -> bool:
    return (
        node.free_slots > 0
        and trial.runtime in node.runtimes
        and trial.cpu_millicores <= node.free_cpu_millicores
        and trial.memory_bytes <= node.free_memory_bytes
    )


def _leftover(trial: QueuedTrial, node: NodeRoom) -> tuple[float, int, UUID]:
    cpu_left = (node.free_cpu_millicores - trial.cpu_millicores) / node.cpu_millicores
    memory_left = (node.free_memory_bytes - trial.memory_bytes) / node.memory_bytes
    return min(cpu_left, memory_left), -node.free_slots, node.id
