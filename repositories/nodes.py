"""SQL that looks at nodes: which of them take work now, and how large they are."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from repositories.base import SqlRepository

__all__ = ["TAKES_WORK", "NodeCapacity", "NodeReadRepository", "RuntimeOffer"]

TAKES_WORK = """
n.cordoned_at IS NULL AND n.drained_at IS NULL AND EXISTS (
  SELECT 1 FROM worker_sessions s
  WHERE s.node_id = n.id AND s.ended_at IS NULL AND NOT s.draining AND s.lease_until > clock_timestamp())
"""
"""Condition on `nodes n`, and the only place that says it."""

_CAPACITIES = f"""
SELECT n.runtimes, n.cpu_millicores, n.memory_bytes, n.gpu, n.labels FROM nodes n WHERE {TAKES_WORK}
"""

_LABELS = f"""
SELECT n.labels, n.cpu_millicores >= %(cpu)s AND n.memory_bytes >= %(memory)s AND n.gpu >= %(gpu)s AS is_large_enough
FROM nodes n WHERE %(runtime)s = ANY(n.runtimes) AND {TAKES_WORK}
"""

_LABELS_OF = "SELECT labels FROM nodes WHERE id = %(node_id)s"

_OFFERS = f"""
SELECT r.name AS runtime, max(n.gpu)::int AS gpu, array_agg(DISTINCT n.labels ->> %(label)s) AS labels,
       max(n.cpu_millicores)::bigint AS cpu_millicores, max(n.memory_bytes)::bigint AS memory_bytes,
       bool_or({TAKES_WORK}) AS is_there
FROM nodes n, unnest(n.runtimes) AS r(name) GROUP BY r.name
"""


@dataclass(frozen=True, slots=True)
class RuntimeOffer:
    """What there is of a runtime. labels: values of one label; None: a node without it.

    gpu, cpu_millicores, memory_bytes: of the node with most. is_there: whether one of the nodes takes work now.
    """

    gpu: int
    labels: frozenset[str | None]
    cpu_millicores: int
    memory_bytes: int
    is_there: bool


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """What a node that takes work can run when nothing else runs on it."""

    runtimes: frozenset[str]
    cpu_millicores: int
    memory_bytes: int
    gpu: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)


class NodeReadRepository(SqlRepository):
    """Nodes of the whole installation: they belong to no tenant."""

    def offers(self, *, label: str) -> dict[str, RuntimeOffer]:
        """By runtime, over all nodes there ever were: one that is away now may be back soon. label: its values."""
        return {
            row["runtime"]: RuntimeOffer(
                gpu=row["gpu"],
                labels=frozenset(row["labels"]),
                cpu_millicores=row["cpu_millicores"],
                memory_bytes=row["memory_bytes"],
                is_there=row["is_there"],
            )
            for row in self._rows(_OFFERS, {"label": label})
        }

    def labels(
        self, runtime: str, *, cpu_millicores: int, memory_bytes: int, gpu: int
    ) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
        """Labels of nodes that offer a runtime and take work now: of those that have so much, and of the others."""
        parameters = {"runtime": runtime, "cpu": cpu_millicores, "memory": memory_bytes, "gpu": gpu}
        rows = self._rows(_LABELS, parameters)
        large, small = (
            [row["labels"] for row in rows if row["is_large_enough"] is wanted] for wanted in (True, False)
        )
        return large, small

    def labels_of(self, node_id: UUID) -> dict[str, str]:
        """Labels of one node, also of one that is away; none of one that was never there."""
        row = self._row(_LABELS_OF, {"node_id": node_id})
        return {} if row is None else dict(row["labels"])

    def capacities(self) -> list[NodeCapacity]:
        """All nodes that take work now, in no order."""
        return [
            NodeCapacity(**{**row, "runtimes": frozenset(row["runtimes"])}) for row in self._rows(_CAPACITIES)
        ]
