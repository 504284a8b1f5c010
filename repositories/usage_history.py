"""SQL of decayed usage: what tenants held in the past, forgotten by half-life. Written under the dispatch lock only."""

from models.states import LIVE_ATTEMPT_STATES, sql_list
from repositories.base import SqlRepository

__all__ = ["UsageHistoryRepository"]

_LIVE = f"state IN ({sql_list(LIVE_ATTEMPT_STATES)})"

# A mean of the dominant share that forgets: after one half-life what was counts half. Whoever holds nothing falls no
# lower than the least of those who do (for its weight), so that nobody saves up by idling.
_ROLL = f"""
WITH held AS MATERIALIZED (
  SELECT tenant_id, greatest(sum(cpu_millicores) / %(cpu)s::float8, sum(memory_bytes) / %(memory)s::float8,
                             sum(gpu) / %(gpu)s::float8) AS share
  FROM attempts WHERE {_LIVE} GROUP BY tenant_id
), known AS (
  SELECT coalesce(h.tenant_id, s.tenant_id) AS tenant_id, coalesce(h.share, 0) AS share,
         h.tenant_id IS NOT NULL AS is_active, coalesce(s.usage, 0) AS usage,
         power(0.5, extract(epoch FROM clock_timestamp() - coalesce(s.usage_at, clock_timestamp()))::float8
                    / %(half_life)s::float8) AS kept
  FROM held h FULL JOIN tenant_schedule s ON s.tenant_id = h.tenant_id
), rolled AS MATERIALIZED (
  SELECT k.tenant_id, k.is_active, t.weight, k.usage * k.kept + k.share * (1 - k.kept) AS usage
  FROM known k JOIN tenants t ON t.id = k.tenant_id
), floor AS (SELECT coalesce(min(usage / weight), 0) AS least FROM rolled WHERE is_active)
INSERT INTO tenant_schedule (tenant_id, usage, usage_at)
SELECT r.tenant_id, CASE WHEN r.is_active THEN r.usage ELSE greatest(r.usage, f.least * r.weight) END, clock_timestamp()
FROM rolled r CROSS JOIN floor f
ON CONFLICT (tenant_id) DO UPDATE SET usage = excluded.usage, usage_at = excluded.usage_at
"""


class UsageHistoryRepository(SqlRepository):
    """Rolls the usage of all tenants on."""

    def roll(self, *, half_life_seconds: float, capacity: tuple[int, int, int]) -> int:
        """Count what is held now into the past; gives of how many tenants. capacity: as in `PickLimits`."""
        cpu, memory, gpu = capacity
        parameters = {
            "half_life": half_life_seconds,
            "cpu": max(1, cpu),
            "memory": max(1, memory),
            "gpu": max(1, gpu),
        }
        return self._count(_ROLL, parameters)
