"""Keeps a node free for what has waited long at the head and fits nowhere, so that small trials cannot starve it."""

from collections.abc import Sequence
from uuid import UUID

from repositories.fair_share import NodeRoom, Starving
from services.placement import could_hold, has_room

__all__ = ["Reservations"]

_NODES_PER_RESERVATION = 4
"""At most one node in so many is kept free at a time, but always one."""


class Reservations:
    """Which node is kept for which shape. In memory: after a change of leader it is decided anew."""

    def __init__(self) -> None:
        """Start with none."""
        self._held: dict[UUID, Starving] = {}

    @property
    def nodes(self) -> frozenset[UUID]:
        """The nodes that are kept."""
        return frozenset(self._held)

    def ready(self, nodes: Sequence[NodeRoom]) -> list[tuple[NodeRoom, Starving]]:
        """Which of the nodes have room now for what they are kept for."""
        return [
            (node, self._held[node.id])
            for node in nodes
            if node.id in self._held and has_room(self._held[node.id].wanted, node)
        ]

    def drop(self, node_id: UUID) -> None:
        """Keep the node no longer."""
        self._held.pop(node_id, None)

    def update(self, starving: Sequence[Starving], nodes: Sequence[NodeRoom]) -> None:
        """Keep what is still waited for, drop the rest, and reserve for whose turn it would be.

        starving: in the order of their claims. nodes: all that take work. The node with the largest part free of those
        that could hold the trial is taken: there is least to wait for.
        """
        waiting = {_key(shape) for shape in starving}
        by_id = {node.id: node for node in nodes}
        self._held = {
            node: shape
            for node, shape in self._held.items()
            if node in by_id and _key(shape) in waiting and could_hold(shape.wanted, by_id[node])
        }
        for shape in starving:
            if len(self._held) >= max(1, len(nodes) // _NODES_PER_RESERVATION):
                return
            if (
                shape.has_room
                or not shape.is_next
                or _key(shape) in {_key(held) for held in self._held.values()}
            ):
                continue
            suited = [node for node in nodes if node.id not in self._held and could_hold(shape.wanted, node)]
            best = max(suited, key=_free_part, default=None)
            if best is not None:
                self._held[best.id] = shape


def _key(shape: Starving) -> tuple[int, int]:
    return shape.tenant_id, shape.shape


def _free_part(node: NodeRoom) -> tuple[float, UUID]:
    cpu = node.free_cpu_millicores / node.cpu_millicores
    return min(cpu, node.free_memory_bytes / node.memory_bytes), node.id
