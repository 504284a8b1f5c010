"""SQL of attempts that are to make room, or to leave a drained node. Runs under the dispatch lock."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from models.states import LIVE_ATTEMPT_STATES, sql_list
from repositories.base import SqlRepository

__all__ = ["PreemptionRepository", "Victim"]

_LIVE = f"state IN ({sql_list(LIVE_ATTEMPT_STATES)})"

# Those told already are listed, too: what they hold comes free without anybody else being told.
_PREEMPTIBLE = f"""
SELECT a.trial_id, a.fence, a.tenant_id, a.node_id, a.cpu_millicores, a.memory_bytes, a.gpu, a.created_at,
       a.desired = 'preempt' AS is_told
FROM attempts a JOIN trials t ON t.id = a.trial_id
WHERE a.{_LIVE} AND (a.desired = 'preempt' OR (t.preemptible AND t.desired = 'run'))
"""

_HELD = f"""
SELECT tenant_id, sum(cpu_millicores)::bigint AS cpu, sum(memory_bytes)::bigint AS memory, sum(gpu)::bigint AS gpu
FROM attempts WHERE {_LIVE} GROUP BY tenant_id
"""

_GUARANTEES = f"""
SELECT id, weight::float8 AS weight, coalesce(guaranteed_share, 0)::float8 AS share FROM tenants
WHERE EXISTS (SELECT 1 FROM tenants WHERE guaranteed_share IS NOT NULL)
  AND (guaranteed_share IS NOT NULL OR id IN (SELECT tenant_id FROM attempts WHERE {_LIVE}))
"""

_PREEMPT = f"""
UPDATE attempts a SET desired = 'preempt'
FROM unnest(%(trials)s::uuid[], %(fences)s::bigint[]) AS v(trial_id, fence)
WHERE a.trial_id = v.trial_id AND a.fence = v.fence AND a.desired = 'run' AND a.{_LIVE}
RETURNING a.trial_id, a.node_id
"""

_DRAIN = f"""
UPDATE attempts a SET desired = 'preempt' FROM nodes n
WHERE a.node_id = n.id AND n.drained_at IS NOT NULL AND a.desired = 'run' AND a.{_LIVE}
RETURNING a.trial_id, a.node_id
"""

# Nobody has claimed it, so nobody has to be asked: the trial goes back as after a bell without an answer.
_TAKE_BACK = """
UPDATE attempts SET start_deadline = clock_timestamp() WHERE state = 'dispatched' AND desired = 'preempt'
"""


@dataclass(frozen=True, slots=True)
class Victim:
    """An attempt that may be taken away. is_told: it is on its way out already."""

    trial_id: UUID
    fence: int
    tenant_id: int
    node_id: UUID
    cpu_millicores: int
    memory_bytes: int
    gpu: int
    created_at: datetime
    is_told: bool


class PreemptionRepository(SqlRepository):
    """Tells attempts to make room; their workers end them."""

    def preemptible(self) -> list[Victim]:
        """All live attempts that may be taken away, or are being."""
        return [Victim(**row) for row in self._rows(_PREEMPTIBLE)]

    def held(self) -> dict[int, tuple[int, int, int]]:
        """(cpu millicores, memory bytes, GPUs) that each tenant holds."""
        return {row["tenant_id"]: (row["cpu"], row["memory"], row["gpu"]) for row in self._rows(_HELD)}

    def guarantees(self) -> dict[int, tuple[float, float]]:
        """(weight, guaranteed share or 0) of tenants that hold something or are guaranteed some; none if none is."""
        return {row["id"]: (row["weight"], row["share"]) for row in self._rows(_GUARANTEES)}

    def preempt(self, victims: Sequence[Victim]) -> list[tuple[UUID, UUID]]:
        """Tell them; gives (trial, node) of those that were not told before."""
        parameters = {"trials": [v.trial_id for v in victims], "fences": [v.fence for v in victims]}
        return [(row["trial_id"], row["node_id"]) for row in self._rows(_PREEMPT, parameters)]

    def drain(self) -> list[tuple[UUID, UUID]]:
        """Tell all attempts on drained nodes; gives (trial, node) of those that were not told before."""
        return [(row["trial_id"], row["node_id"]) for row in self._rows(_DRAIN)]

    def take_back_unclaimed(self) -> int:
        """Let the next look at unclaimed attempts take back those that nobody has claimed."""
        return self._count(_TAKE_BACK)
