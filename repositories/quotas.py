"""SQL that says what is left of a tenant's quotas, for who asks why a trial waits."""

from dataclasses import dataclass

from models.states import LIVE_ATTEMPT_STATES, sql_list
from repositories.base import SqlRepository
from repositories.tenant_budgets import BUDGET_LEFT, TOKENS

__all__ = ["QuotaRepository", "QuotaStanding"]

_LIVE = f"state IN ({sql_list(LIVE_ATTEMPT_STATES)})"

# As the dispatcher counts it (repositories/fair_share.py), for one tenant and without a lock: what is told may be a
# moment old.
_STANDING = f"""
SELECT t.paused_at IS NOT NULL AS is_paused,
       t.max_running::float8 AS max_running, (t.max_running - u.n)::float8 AS running_left,
       least(t.max_running - u.n, floor({TOKENS}))::float8 AS starts_left,
       (t.max_cpu_millicores - u.cpu)::float8 AS cpu_left, (t.max_memory_bytes - u.memory)::float8 AS memory_left,
       (t.max_gpu - u.gpu)::float8 AS gpu_left, ({BUDGET_LEFT})::float8 AS budget_left
FROM tenants t LEFT JOIN tenant_schedule s ON s.tenant_id = t.id CROSS JOIN (
  SELECT count(*) AS n, coalesce(sum(cpu_millicores), 0) AS cpu, coalesce(sum(memory_bytes), 0) AS memory,
         coalesce(sum(gpu), 0) AS gpu FROM attempts WHERE tenant_id = %(id)s AND {_LIVE}) u
WHERE t.id = %(id)s
"""

_STOPPED_QUEUES = f"""
SELECT name, paused_at IS NOT NULL AS is_paused FROM queues q
WHERE paused_at IS NOT NULL
   OR max_running <= (SELECT count(*) FROM attempts a WHERE a.{_LIVE} AND a.queue = q.name)
"""


@dataclass(frozen=True, slots=True)
class QuotaStanding:
    """What is left of a tenant's quotas now; None: no such quota. running_left: starts_left without the rate's part."""

    is_paused: bool
    starts_left: float
    cpu_left: float | None
    memory_left: float | None
    gpu_left: float | None
    budget_left: float | None
    running_left: float | None = None
    max_running: float | None = None


class QuotaRepository(SqlRepository):
    """Looks at quotas of a tenant, which the caller names, and at named queues, which are everybody's."""

    def standing(self, tenant_id: int) -> QuotaStanding | None:
        """What is left of a tenant's quotas."""
        row = self._row(_STANDING, {"id": tenant_id})
        return None if row is None else QuotaStanding(**row)

    def stopped_queues(self) -> dict[str, bool]:
        """Named queues from which nothing starts now; True: paused, False: at their cap."""
        return {row["name"]: row["is_paused"] for row in self._rows(_STOPPED_QUEUES)}
