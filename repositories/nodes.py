"""SQL that looks at nodes: which of them take work now, and how large they are."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from repositories.base import SqlRepository

__all__ = ["TAKES_WORK", "NodeCapacity", "NodeReadRepository"]

TAKES_WORK = """
n.cordoned_at IS NULL AND n.drained_at IS NULL AND EXISTS (
  SELECT 1 FROM worker_sessions s
  WHERE s.node_id = n.id AND s.ended_at IS NULL AND NOT s.draining AND s.lease_until > clock_timestamp())
"""
"""Condition on `nodes n`, and the only place that says it."""

_CAPACITIES = f"""
SELECT n.runtimes, n.cpu_millicores, n.memory_bytes, n.gpu, n.labels FROM nodes n WHERE {TAKES_WORK}
"""


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

    def capacities(self) -> list[NodeCapacity]:
        """All nodes that take work now, in no order."""
        return [
            NodeCapacity(**{**row, "runtimes": frozenset(row["runtimes"])}) for row in self._rows(_CAPACITIES)
        ]
